"""rebase-continue: take the corrected files of build/rebase/work (or DROP=1: leave the patch out) and go on stepping."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from scripts.common import errors
from scripts.common.files import hold
from scripts.rebase.adopt import take_over
from scripts.rebase.resolve import taken
from scripts.rebase.start import bound, go_on
from scripts.rebase.state import LOCK, read_state, repository, write_state
from scripts.series.patch import load
from scripts.upstream.releases import read_pin

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Command line of `rebase-continue`."""
    parser = argparse.ArgumentParser(prog="rebase-continue", description=__doc__)
    parser.add_argument("--drop", action="store_true", help="leave the stopped patch out of the series from here on")
    parser.add_argument("--adopt", action="store_true", help="take the result over into this repository, in two commits")
    args = parser.parse_args(argv)
    with hold(LOCK, "rebase-continue"):
        state = read_state()
        if state is None:
            raise errors.UserError("no rebase is under way", "there is nothing to go on with", "start one: `make rebase VLLM=x.y.z`")
        if state.directory and args.adopt:
            raise errors.UserError("ADOPT=1 takes a known release over, no folder", "a folder has no sha256 to pin", "leave ADOPT out")
        repo, pin, patches = repository(), read_pin(), load()
        if bound(repo, pin, patches, state) != state.run:
            raise errors.RebaseConflict(
                f"the series, the pin or the given folder changed since `{state.asked}` began",
                "its resolutions were made for other bytes",
                "put them back (`git stash`), or `make rebase-abort` and start again",
            )
        if state.stop:
            answer = "drop"
            if not args.drop:
                correction = taken(repo, state)
                print(correction)
                answer = correction.tree
            state = replace(state, resolutions={**state.resolutions, state.stop: answer}, stop="", tree="", conflicts={})
            write_state(state)
        result = go_on(repo, pin, patches, state)
    if args.adopt and result:
        take_over(result)
    return 0
