"""A rehearsal is reported in `verify`'s rungs, with their verdicts, and its evidence opens nothing on hardware."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vllm.dcu.evidence.report import load_report
from vllm.dcu.evidence.site import Site, judge
from vllm.dcu.evidence.store import add, entry_of, read_store

from scripts.rehearsal.climb import as_climb
from scripts.rehearsal.report import Judged
from tests.unit.dcu.evidence.evidence_samples import BINDING

HOLDS = Judged("dispatch", "eager", "hits follow the law", (), "15 hits")
BROKEN = Judged("dispatch", "eager", "hits follow the law", ("14 hits, 15 expected",))
SKIPPED = Judged("kernel", "eager", "the host build computed the probe", (), "not run: no host build")


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [([HOLDS], "passed"), ([HOLDS, BROKEN], "failed"), ([], "not run")],
)
def test_the_checks_of_a_rung_make_its_verdict(tmp_path: Path, rows: list[Judged], verdict: str) -> None:
    step = as_climb(rows, [], tmp_path / "climb").step("V4")
    assert step is not None
    assert step.result.outcome.value == verdict


def test_what_was_left_out_is_not_green(tmp_path: Path) -> None:
    found = as_climb([HOLDS, SKIPPED], [], tmp_path / "climb")
    assert {s.id: s.result.outcome.value for s in found.steps if s.result.outcome.value != "not run"} == {"V4": "passed"}
    assert load_report(tmp_path / "climb" / "report.json") == found
    assert "not run: no host build" in (tmp_path / "climb" / "report.md").read_text()
    assert json.loads((tmp_path / "climb" / "runs.json").read_text()) == {"evidence": [], "runs": []}


def test_its_evidence_opens_nothing_on_hardware(tmp_path: Path) -> None:
    add(tmp_path / "evidence.json", entry_of(as_climb([HOLDS], [], tmp_path / "climb"), None))
    assert judge(read_store(tmp_path / "evidence.json"), BINDING) == Site()


def test_a_second_rehearsal_replaces_the_first(tmp_path: Path) -> None:
    as_climb([HOLDS], [], tmp_path / "climb")
    step = as_climb([BROKEN], [], tmp_path / "climb").step("V4")
    assert step is not None
    assert step.result.why == "1 of 1 checks failed, first eager: 14 hits, 15 expected"
