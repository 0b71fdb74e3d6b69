"""help: what there is."""

from __future__ import annotations

from collections.abc import Sequence

from scripts import cli
from scripts.common import errors

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Print every verb, and with --exit-codes every exit code."""
    width = max(map(len, cli.VERBS))
    print("make TARGET            (or: python -m scripts TARGET [options]; --help after a target lists its options)\n")
    for verb, (module, _) in cli.VERBS.items():
        print(f"  {verb:{width}}  {cli.summary(module)}")
    if "--exit-codes" in argv:
        print("\nexit codes\n  0   done")
        for code, name, meaning in errors.catalogue():
            print(f"  {code:<3} {name}: {meaning}")
    return 0
