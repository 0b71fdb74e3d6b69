"""rebase-continue: take the corrected files of build/rebase/work (or DROP=1: leave the patch out) and go on stepping."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from scripts.common import errors
from scripts.common.files import hold
from scripts.rebase import result
from scripts.rebase.start import go_on
from scripts.rebase.state import LOCK, RunState, discard, read_state, repository, taken, write_state
from scripts.rebase.walk import run_id
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
        pin, patches = read_pin(), load()
        if run_id(pin, patches, state.target) != state.run:
            raise errors.RebaseConflict(
                f"the series or the pin changed since the rebase to {state.target} began",
                "its resolutions were made for other bytes",
                "put them back (`git stash`), or `make rebase-abort` and start again",
            )
        if state.stop:
            answer = "drop" if args.drop else taken(repository(), state)
            state = RunState(state.run, state.target, {**state.resolutions, state.stop: answer})
            write_state(state)
        finished = go_on(pin, patches, state)
        result.finish(repository(), pin, patches, finished, state.target, None, args.adopt)
        discard()
    return 0
