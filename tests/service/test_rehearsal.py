"""The short rehearsal: eight real servers, one after the other, and every check over what they did.

The report lands in build/rehearsal, as `make rehearse SHORT=1` writes it. The checks themselves are seen failing in
tests/unit/test_rehearsal_checks.py; the full form plants its faults in real servers.
"""

from __future__ import annotations

import json

import pytest
from vllm.dcu.evidence.report import load_report

from scripts.rehearsal import report
from scripts.rehearsal.records import Run
from scripts.rehearsal.verb import FOLDER, SHORT, host_kernel, rehearse, write_report
from scripts.serving.ready import ready_python
from tests.support import not_run


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    found = rehearse(SHORT, ready_python())
    write_report(found)
    return found


def test_every_check_holds(runs: list[Run]) -> None:
    assert [(row.run, row.claim, row.problems) for row in report.judge(runs) if row.problems] == []


def test_nothing_was_left_out(runs: list[Run]) -> None:
    assert [(run.name, run.variant, run.mode) for run in runs] == [
        (scene.name, scene.variant, "compiled" if scene.compiled else "eager") for scene in SHORT
    ]
    assert {run.variant for run in runs} == {"on", "off", "stock", "gfx928", "plugin", "beside", "after"}
    assert all(run.version.startswith("0.18.1+gfx936.") for run in runs if run.variant != "stock")
    assert [run.version for run in runs if run.variant == "stock"] == ["0.18.1+cpu"]


def test_the_kernel_of_the_probe_was_the_real_source_on_the_host(runs: list[Run]) -> None:
    if host_kernel() is None:
        not_run("no C++ compiler made the host build of the kernel")
    for run in runs:
        if run.variant in ("on", "beside"):
            assert sum(phase.counts.host_calls for phase in run.phases) == 9 * run.layers


def test_the_report_states_its_border_and_claims_no_hardware(runs: list[Run]) -> None:
    climb = load_report(FOLDER / "report" / "report.json")
    assert (climb.tool, {step.border for step in climb.steps}) == ("rehearse", {report.BORDER})
    assert climb.binding.simulated
    assert [entry["on_hardware"] for entry in json.loads((FOLDER / "report" / "runs.json").read_text())["evidence"]] == [False, False]
    assert report.BORDER in (FOLDER / "report" / "report.md").read_text()
