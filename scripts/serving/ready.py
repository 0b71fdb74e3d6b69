"""env: the environment that serves and tests the wheel, in build/env/serve (or the one RUNTIME_PYTHON names)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from scripts.common.files import say
from scripts.runtime.environment import install_wheel, preload, runtime_python
from scripts.wheel.build import build

__all__ = ["main", "ready_python"]


def ready_python() -> Path:
    """The serving interpreter with the wheel of the tree as it is now: built and installed where it is not there yet.

    With RUNTIME_PYTHON set, that interpreter and whatever vllm it has: `tests/runtime` says which that is.
    """
    if os.environ.get("RUNTIME_PYTHON"):
        return runtime_python()
    return install_wheel(build("cpu", reuse=True))


def main(argv: Sequence[str]) -> int:
    """Command line of `env`."""
    parser = argparse.ArgumentParser(prog="env", description=__doc__)
    parser.parse_args(argv)
    python = ready_python()
    say("to serve by hand:")
    print(f"LD_PRELOAD={preload(python)} {python.parent / 'vllm'} serve MODEL")
    return 0
