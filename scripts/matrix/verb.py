"""matrix: every known release in one table: patches, drift before and after the series, native routing, dispatch.

Writes docs/matrix.md, docs/matrix.json and docs/matrix.svg. Each release is kept by content, so that a stopped run is gone
on with and a second one takes seconds. Exit 14 when the series leaves a BLOCK open or a patch conflicts; 15 when not,
and something was not evaluated or the dispatch did not run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, hold, say
from scripts.common.paths import ROOT, shown
from scripts.matrix import dispatch as matrixdispatch
from scripts.matrix.page import from_json, to_json, to_markdown, to_svg
from scripts.matrix.rows import HOME, Matrix, Row, Subject, make_row, patched_tree, take, warm
from scripts.rebase.result import carried_chain
from scripts.rebase.state import LOCK, remembered, repository
from scripts.rebase.walk import Step, run_id, walk
from scripts.series.patch import load
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import Pin, read_pin, version_key

__all__ = ["build_matrix", "main"]


def subjects(pin: Pin, wanted: Sequence[str]) -> tuple[list[Subject], str]:
    """Carry the series up and down to every wanted release. Returns them in order, and where a walk stopped."""
    repo, patches = repository(), load()
    known = sorted(pin.sdists, key=version_key)
    ends = {known[-1] if not wanted else max([*wanted, pin.version], key=version_key)}
    ends.add(known[0] if not wanted else min([*wanted, pin.version], key=version_key))
    steps: dict[str, Step] = {}
    stopped = []
    for target in sorted(ends, key=version_key):
        decided = remembered(repo, run_id(pin, patches, target), target)
        done = walk(repo, pin, patches, target, decided, fetch, lambda s: say(f"carried to {s.version}"))
        steps.update({s.version: s for s in done.steps})
        if done.stop:
            stopped.append(f"{done.stop.patch} at {done.stop.version} ({', '.join(c.path for c in done.stop.conflicts)})")

    def chain_of(version: str) -> tuple[str, str, str]:
        chain = carried_chain(repo, steps[version])
        return version, chain.head, chain.tree

    order = sorted(steps, key=version_key)
    found = []
    for at, version in enumerate(order):
        if not wanted or version in wanted:
            before = order[at - 1] if at else order[min(1, len(order) - 1)]
            _, head, tree = chain_of(version)
            found.append(Subject(steps[version], head, tree, chain_of(before), chain_of(pin.version), repo.git_dir))
    return found, "; ".join(stopped)


def build_matrix(pin: Pin, wanted: Sequence[str], jobs: int, dispatch: bool) -> Matrix:
    """All rows. Releases beyond a conflict have none, and the page says so."""
    found, stopped = subjects(pin, wanted)
    if not found:
        raise errors.CheckFailed(
            f"the series does not reach vLLM {', '.join(wanted)}: {stopped}",
            "there is no carried tree to judge",
            f"`make rebase VLLM={wanted[0]}` lays the conflict out; when it has come to its end, run this again",
        )
    missing: dict[str, str] = {}
    warm(found)  # what every row is compared with is taken once, not by each worker
    with ProcessPoolExecutor(jobs) as pool:
        list(pool.map(take, found))
        rows = []
        for row in pool.map(make_row, found):
            say(f"{row.version}: upstream {row.upstream}, with the series {row.carried}, {row.routing}")
            rows.append(row)
    if dispatch:
        rows, missing = _with_dispatch(found, rows)
    if os.environ.get("REHEARSE") == "1":
        missing["rehearsal"] = (
            "run `make rehearse` on a tree carried by `make rebase VLLM=x.y.z`: only the pinned release's CPU wheel is pinned"
        )
    return Matrix(pin.version, tuple(rows), stopped, missing)


def _with_dispatch(found: Sequence[Subject], rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
    python = matrixdispatch.interpreter()
    if python is None:
        return list(rows), {"dispatch": "no serving interpreter with torch here (`make env`, or RUNTIME_PYTHON=path)"}
    repo, tool = repository(), matrixdispatch.tool_id()[:12]
    notes = {s.step.version: HOME / "dispatch" / f"{s.step.version}-{s.tree[:12]}-{tool}.txt" for s in found}
    outcomes = {v: note.read_text(encoding="utf-8") for v, note in notes.items() if note.is_file()}
    ahead = [s for s in found if s.step.version not in outcomes]
    for at in range(0, len(ahead), 4):  # a few trees at a time: each is some megabytes of text
        group = ahead[at : at + 4]
        said = matrixdispatch.check(python, [patched_tree(repo, s.head, s.step.version) for s in group])
        for subject, outcome in zip(group, said, strict=True):
            say(f"{subject.step.version}: dispatch {outcome}")
            outcomes[subject.step.version] = outcome
            if outcome.startswith("passed"):
                atomic_write(notes[subject.step.version], outcome.encode())
    return [replace(row, dispatch=outcomes[row.version]) for row in rows], {}


def _write(matrix: Matrix, folder: Path) -> None:
    for name, content in (("matrix.md", to_markdown(matrix)), ("matrix.json", to_json(matrix)), ("matrix.svg", to_svg(matrix))):
        atomic_write(folder / name, content.encode())
        say(f"written: {shown(folder / name)}")


def _as_pin(committed: Matrix, row: Row) -> Matrix:
    """The committed matrix with `row`'s release as the pin; the other rows are those of the old pin's series, and it says so."""
    rows = tuple(row if r.version == row.version else r for r in committed.rows)
    old = f"all rows but {row.version}'s are of the series as it was pinned at {committed.pinned}: `make matrix` makes them anew"
    missing = {what: why for what, why in committed.missing.items() if what != "rows"}
    return replace(committed, pinned=row.version, rows=rows, missing={**missing, "rows": old})


def main(argv: Sequence[str]) -> int:
    """Command line of `matrix`."""
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__)
    parser.add_argument("versions", nargs="*", help="these releases only; nothing is written to docs/ then")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--no-dispatch", action="store_true", help="leave the behaviour check out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the three files")
    parser.add_argument("--as-pin", type=Path, help="write the committed pages, with the one asked release as the pin, to this folder")
    args = parser.parse_args(argv)
    pin = read_pin()
    for version in args.versions:
        pin.release(version)
    with hold(LOCK, "matrix"):
        matrix = build_matrix(pin, args.versions, args.jobs, not args.no_dispatch)
    text, data = to_markdown(matrix), to_json(matrix)
    sys.stdout.write(data if args.json else text)
    if not args.versions or args.out != ROOT / "docs":
        _write(matrix, args.out)
    if args.as_pin and (args.out / "matrix.json").is_file():
        _write(_as_pin(from_json((args.out / "matrix.json").read_text(encoding="utf-8")), matrix.rows[-1]), args.as_pin)
    failed = [r.version for r in matrix.rows if r.dispatch.startswith("failed")]
    if matrix.open_blocks or matrix.stopped or failed:
        raise errors.CheckFailed(
            f"{matrix.open_blocks} BLOCK finding(s) are open with the series applied; conflicts: {matrix.stopped or 'none'}; "
            f"dispatch failed at: {', '.join(failed) or 'none'}",
            "such a release would run code on gfx936 that nobody has proven, or none of ours",
            "the page names them; carry a patch or an overlay for them, then run `make matrix` again",
        )
    if matrix.unanswered or "dispatch" in matrix.missing:
        raise errors.NotRun(
            f"{matrix.unanswered} question(s) were not evaluated; dispatch: {matrix.missing.get('dispatch', 'ran')}",
            "what could not be answered is not known to be harmless",
            "the page lists them; decide by hand what they mean for gfx936 (`make env` brings the interpreter for the dispatch)",
        )
    return 0
