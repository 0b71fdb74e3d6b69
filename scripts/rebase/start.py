"""rebase: step the series through every known release to VLLM=x.y.z, and say what became of each patch.

The pinned version's files are not touched: the carried series, its lock, the new pin, a range-diff and the report go to
build/rebase/VERSION/. `--adopt` (ADOPT=1) then takes them over, in two commits: the version, and the mechanical refresh.
A conflict stops the run with three lists and the commands to go on; after a killed run the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scripts.common import errors
from scripts.common.files import hold, say
from scripts.common.git import Repo
from scripts.common.paths import ADOPTION, shown
from scripts.rebase import adopt, settle
from scripts.rebase.onto import import_folder, release_of
from scripts.rebase.report import stop_report
from scripts.rebase.result import Result, finish
from scripts.rebase.state import LOCK, WORK, RunState, discard, lay_out, read_state, remembered, repository, write_state
from scripts.rebase.walk import Step, run_id, walk
from scripts.series.patch import Patch, load
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import Pin, read_pin

__all__ = ["bound", "go_on", "main"]


def main(argv: Sequence[str]) -> int:
    """Command line of `rebase`."""
    parser = argparse.ArgumentParser(prog="rebase", description=__doc__)
    parser.add_argument("version", nargs="?", default=os.environ.get("VLLM"), help="a known release (or VLLM=...)")
    parser.add_argument("--adopt", action="store_true", help="take the result over into this repository, in two commits")
    parser.add_argument("--dir", type=Path, help="carry the series onto this source tree (UPSTREAM_DIR=...), which is only read")
    parser.add_argument("--checkout", type=Path, help="also lay the finished tree out in this folder")
    args = parser.parse_args(argv)
    if args.dir and args.adopt:
        raise errors.UserError("ADOPT=1 takes a known release over, no folder", "a folder has no sha256 to pin", "leave one of them out")
    if not args.version and not args.dir:
        raise errors.UserError("rebase needs a release", "there is no other place to go to", "run `make rebase VLLM=x.y.z`")
    with hold(LOCK, "rebase"):
        if ADOPTION.exists():
            return settle.finish(args.version if args.adopt else None)
        pin = read_pin()
        target = release_of(pin, args.dir, args.version) if args.dir else pin.release(args.version).version
        if target == pin.version and not args.dir:
            print(f"nothing to be done: vLLM {target} is the pinned release; `make apply` lays it out")
            return 0
        asked = RunState("", target, {}, str(args.dir or ""), str(args.checkout or ""))
        result = _begin(pin, load(), asked)
    if args.adopt and result:
        adopt.take_over(result)
    return 0


def _begin(pin: Pin, patches: Sequence[Patch], asked: RunState) -> Result | None:
    repo, state = repository(), read_state()
    run = bound(repo, pin, patches, asked)
    if state is not None and state.run != run:
        raise errors.RebaseConflict(
            f"`{state.asked}` is under way, for another series, pin or target than yours",
            "its resolutions do not fit your run",
            f"finish it (`make rebase-continue`, with the files it began with) or drop it: `make rebase-abort`; it stopped at {state.stop or 'no patch'}",
        )
    if state is None:
        known = {} if asked.directory else remembered(repo, run, asked.target)
        state = replace(asked, run=run, resolutions=known)
    return go_on(repo, pin, patches, replace(state, checkout=asked.checkout or state.checkout))


def bound(repo: Repo, pin: Pin, patches: Sequence[Patch], state: RunState) -> str:
    """What a run is bound to: `run_id`, with the content of the folder as it is now."""
    return run_id(pin, patches, state.target, import_folder(repo, Path(state.directory)) if state.directory else "")


def go_on(repo: Repo, pin: Pin, patches: Sequence[Patch], state: RunState) -> Result | None:
    """Walk as far as it goes; at the target, write the result and forget the run (its resolutions stay with the result).

    Raises:
        errors.RebaseConflict: it stopped; the state and the work tree are there for a person.
    """
    onto = (Path(state.directory).resolve().name, import_folder(repo, Path(state.directory))) if state.directory else None
    done = walk(repo, pin, patches, state.target, state.resolutions, fetch, _tell, onto)
    if done.stop is None:
        result = finish(repo, pin, patches, done, state)
        discard()
        return result
    stop = done.stop
    same = state.stop == stop.key and state.tree == stop.tree and WORK.is_dir()
    if not same:  # a person's edits of the same stop are kept
        lay_out(repo, stop)
    kinds = {c.path: c.kind for c in stop.conflicts}
    write_state(replace(state, stop=stop.key, parent=stop.parent, tree=stop.tree, conflicts=kinds))
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
