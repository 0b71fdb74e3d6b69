"""lint: the rules of the series, the order of the rooms, ruff and mypy (strict)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scripts.checks import rooms
from scripts.common import errors
from scripts.common.paths import ROOT
from scripts.common.run import echoed
from scripts.series import patch

__all__ = ["lint_series", "main"]


def lint_series() -> list[str]:
    """Every broken rule of the series, one sentence each."""
    return [f"patches/{p.name}: {what}" for p in patch.load() for what in patch.problems(p)]


def main(argv: Sequence[str]) -> int:
    """Command line of `lint`."""
    argparse.ArgumentParser(prog="lint", description=__doc__).parse_args(argv)
    failed: list[str] = []
    for what, found in (("broken rule(s) of the series", lint_series()), ("fault(s) in the order of the rooms", rooms.faults())):
        print("".join(f"{line}\n" for line in found), end="")
        failed += [f"{len(found)} {what}"] if found else []
    for name, words in (
        ("ruff", ["ruff", "check", "."]),
        ("ruff format", ["ruff", "format", "--check", "--diff", "-q", "."]),
        ("mypy", ["mypy", "scripts"]),
        ("mypy (overlay)", ["mypy", "--config-file", "pyproject.toml", "overlay/vllm/dcu"]),
    ):
        if echoed([sys.executable, "-m", *words], cwd=ROOT):
            failed.append(name)
    if failed:
        raise errors.CheckFailed(
            f"lint found faults: {', '.join(failed)}", "they are listed above", "correct them and run `make lint` again"
        )
    print(f"lint: {len(patch.load())} patches, rooms, ruff and mypy: no fault")
    return 0
