"""rebase: step the series through every known release to VLLM=x.y.z, and say what became of each patch.

The pinned version's files are not touched: the carried series, its lock, the new pin, a range-diff and the report go to
build/rebase/VERSION/. `--adopt` (ADOPT=1) then takes them over, in two commits: the version, and the mechanical refresh.
A conflict stops the run with three lists and the commands to go on; after a killed run the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.files import hold, say
from scripts.common.paths import shown
from scripts.rebase import result
from scripts.rebase.report import stop_report
from scripts.rebase.state import LOCK, WORK, RunState, discard, lay_out, read_state, repository, write_state
from scripts.rebase.walk import Step, Walk, run_id, walk
from scripts.series.patch import Patch, load
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import Pin, read_pin

__all__ = ["go_on", "main"]


def main(argv: Sequence[str]) -> int:
    """Command line of `rebase`."""
    parser = argparse.ArgumentParser(prog="rebase", description=__doc__)
    parser.add_argument("version", nargs="?", default=os.environ.get("VLLM"), help="a known release (or VLLM=...)")
    parser.add_argument("--adopt", action="store_true", help="take the result over into this repository, in two commits")
    parser.add_argument("--dir", type=Path, help="carry the series onto this source tree instead (UPSTREAM_DIR=...); it is only read")
    parser.add_argument("--checkout", type=Path, help="also lay the finished tree out in this folder")
    args = parser.parse_args(argv)
    pin, patches = read_pin(), load()
    with hold(LOCK, "rebase"):
        if args.dir:
            return result.onto_directory(repository(), pin, patches, args.dir, args.checkout)
        if not args.version:
            raise errors.UserError("rebase needs a release", "there is no other place to go to", "run `make rebase VLLM=x.y.z`")
        pin.release(args.version)
        run, state = run_id(pin, patches, args.version), read_state()
        if state is not None and state.run != run:
            raise errors.RebaseConflict(
                f"a rebase to {state.target} is under way, for another series, pin or target than yours",
                "its resolutions do not fit your run",
                f"finish it (`make rebase-continue`, with the files it began with) or drop it: `make rebase-abort`; it stopped at {state.stop or 'no patch'}",
            )
        finished = go_on(pin, patches, state or RunState(run, args.version))
        result.finish(repository(), pin, patches, finished, args.version, args.checkout, args.adopt)
        discard()  # last: a run that is killed before has its resolutions still
    return 0


def go_on(pin: Pin, patches: Sequence[Patch], state: RunState) -> Walk:
    """Walk as far as it goes. Returns the whole walk when it reaches the target.

    Raises:
        errors.RebaseConflict: it stopped; the state and the work tree are there for a person.
    """
    repo = repository()
    done = walk(repo, pin, patches, state.target, state.resolutions, fetch, _tell)
    if done.stop is None:
        return done
    stop = done.stop
    same = state.stop == stop.key and state.tree == stop.tree and WORK.is_dir()
    if not same:  # a person's edits of the same stop are kept
        lay_out(repo, stop)
    write_state(RunState(state.run, state.target, state.resolutions, stop.key, stop.tree, {c.path: c.kind for c in stop.conflicts}))
    print(stop_report(stop, len(done.steps) - 1))
    raise errors.RebaseConflict(
        f"stopped at vLLM {stop.version}, {stop.patch}",
        "it needs a person, the lists above say where",
        f"edit the files in {shown(WORK)}, then `make rebase-continue`; or `make rebase-continue DROP=1`; or `make rebase-abort`",
    )


def _tell(step: Step) -> None:
    other = [r for r in step.rows if r.verdict != "applies"]
    rest = "; ".join(f"{r.name}: {r.verdict}" + (f" ({r.note})" if r.note else "") for r in other)
    say(f"{step.version}: {len(step.rows) - len(other)} of {len(step.rows)} apply" + (f"; {rest}" if rest else ""))
