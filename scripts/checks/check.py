"""check: lint, generated files and unit tests, about a minute, no download beyond the sdist."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from scripts.checks import generate, lint
from scripts.checks.test import run_suites

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Command line of `check`."""
    argparse.ArgumentParser(prog="check", description=__doc__).parse_args(argv)
    lint.main([])
    generate.main(["--check"])
    return run_suites(["unit"], strict=False)
