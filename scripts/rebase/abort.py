"""rebase-abort: forget the rebase under way; the pinned version's files were never touched."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from scripts.common import errors
from scripts.common.files import hold
from scripts.rebase.settle import undo
from scripts.rebase.state import LOCK, STATE, WORK, discard

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Command line of `rebase-abort`."""
    argparse.ArgumentParser(prog="rebase-abort", description=__doc__).parse_args(argv)
    with hold(LOCK, "rebase-abort"):
        if undo():
            print("taken back: pin, patches and HEAD are as they were before ADOPT=1")
            return 0
        under_way = STATE.exists() or WORK.exists()
        discard()
        if not under_way:
            raise errors.UserError("no rebase is under way", "there is nothing to abort", "start one: `make rebase VLLM=x.y.z`")
    print("aborted: the pinned version's files are as they were")
    return 0
