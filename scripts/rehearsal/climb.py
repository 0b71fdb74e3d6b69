"""A rehearsal in the words of `verify`: the same rungs, engine, report and evidence format (`overlay/vllm/dcu/evidence/ladder.py`).

What differs is where a rung ran and what it may open: the binding says what is simulated, so that nothing of it counts on hardware.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Climb, Figure, Result, Rung, Trial, climb, failed, not_run, passed, write_whole
from vllm.dcu.evidence.report import write_report
from vllm.dcu.evidence.store import RUNG_IDS
from vllm.dcu.records.record import Toolchain

from scripts.rehearsal.records import CAPABILITY, Run
from scripts.rehearsal.report import BORDER, ONLY_HARDWARE, Judged, evidence
from scripts.series.worktree import read_lock

__all__ = ["as_climb"]

_TITLES = {"V2": "the kernel's source on the host", "V3": "tokens and log probabilities", "V4": "hits", "V5": "the server"}


def as_climb(found: Sequence[Judged], runs: Sequence[Run], folder: Path) -> Climb:
    """Climb `verify`'s rungs with the checks of a rehearsal into `folder`, which is made anew.

    `report.md` and `report.json` are the climb's, `runs.json` is all that was seen, with the evidence entries it is good for.
    """
    shutil.rmtree(folder, ignore_errors=True)
    version = runs[0].version if runs else ""
    binding = Binding(
        device="",
        arch="gfx936",
        toolchain=Toolchain(torch="", hip="", vllm=version),
        hip_runtime="",
        dtk="",
        build=f"{version} {read_lock()['tree']}" if version else "",
        extension="",
        driver="",
        simulated="a rehearsal, the device simulated on the CPU",
    )
    rungs = [
        Rung(ident, _TITLES.get(ident, "only on hardware"), proves, BORDER, _run(ident, proves, found))
        for ident, proves in RUNG_IDS.items()
    ]
    made = climb(rungs, tool="rehearse", subject=CAPABILITY, binding=binding, folder=folder)
    servers = [
        f"Server {run.name}: {run.variant}, {run.model}, {run.layers} layer(s), {run.mode}, vLLM {run.version}, healthy after "
        f"{run.start_seconds} s, ended by {run.ending['how']}."
        for run in runs
    ]
    write_report(made, folder, [*servers, *(f"Only hardware can show {item}." for item in ONLY_HARDWARE)])
    seen = {"evidence": evidence(found, runs, made.started[:10]), "runs": [run.to_dict() for run in runs]}
    write_whole(folder / "runs.json", json.dumps(seen, indent=1, sort_keys=True) + "\n")
    return made


def _run(ident: str, proves: str, found: Sequence[Judged]) -> Callable[[Trial], Result]:
    mine = [row for row in found if row.rung == proves] if ident != "V2S" else []

    def run(trial: Trial) -> Result:
        ran = [row for row in mine if not row.figures.startswith("not run")]
        figures: dict[str, Figure] = {"checks": len(ran)}
        for row in mine:
            figures[f"{row.run}: {row.claim}"] = "; ".join(row.problems) or row.figures or "holds"
        broken = [f"{row.run}: {row.problems[0]}" for row in ran if row.problems]
        if broken:
            return failed(f"{len(broken)} of {len(ran)} checks failed, first {broken[0]}", figures)
        if not ran:
            return not_run("a rehearsal has no such check that ran; only hardware, or `verify`, shows it", figures if mine else None)
        return passed(figures)

    return run
