"""The ladder engine: a verdict for every rung, nothing green that did not run, and a climb that survives being killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from vllm.dcu.evidence.binding import Binding, differences
from vllm.dcu.evidence.ladder import Climb, LadderError, Measure, Outcome, Result, Rung, Trial, climb, failed, not_run, passed
from vllm.dcu.evidence.report import ReportError, as_json, as_markdown, compare, load_report, write_report
from vllm.dcu.records.record import Toolchain
from vllm.dcu.records.strict import StrictError
from vllm.dcu.records.typed import dump, load

SIMULATED = Binding("", "gfx936", Toolchain("2.10.0", "6.2.0", "0.18.1"), "", "", "", "", "", simulated="a test")


def rung(ident: str, run: Callable[[Trial], Result], needs: tuple[str, ...] = (), proves: str = "kernel") -> Rung:
    return Rung(ident, f"title of {ident}", proves, "anything else", run, needs)


def ok(trial: Trial) -> Result:
    return passed({"seen": 1})


def go(folder: Path, *rungs: Rung, binding: Binding = SIMULATED, only: tuple[str, ...] = (), resume: bool = False) -> Climb:
    return climb(rungs, tool="verify", subject="a test", binding=binding, folder=folder, only=only, resume=resume)


def outcomes(found: Climb) -> dict[str, str]:
    return {step.id: step.result.outcome.value for step in found.steps}


def test_each_rung_gets_the_verdict_that_it_has(tmp_path: Path) -> None:
    found = go(tmp_path, rung("V0", ok), rung("V1", lambda t: not_run("no tool")), rung("V2", lambda t: failed("wrong numbers")))
    assert outcomes(found) == {"V0": "passed", "V1": "not run", "V2": "failed"}
    assert not found.green


def test_an_exception_is_a_failure_with_its_traceback_kept(tmp_path: Path) -> None:
    def broken(trial: Trial) -> Result:
        raise RuntimeError("HIP error: invalid device function")

    (step,) = go(tmp_path, rung("V2", broken)).steps
    assert step.result.outcome is Outcome.FAILED
    assert "RuntimeError: HIP error: invalid device function" in step.result.why
    assert "in broken" in (tmp_path / step.raw[0]).read_text()


def test_a_rung_above_a_failed_one_does_not_run(tmp_path: Path) -> None:
    found = go(tmp_path, rung("V2", lambda t: failed("wrong")), rung("V3", ok, needs=("V2",)))
    assert outcomes(found) == {"V2": "failed", "V3": "not run"}


def test_a_rung_above_one_that_could_not_run_does(tmp_path: Path) -> None:
    found = go(tmp_path, rung("V1", lambda t: not_run("no tool")), rung("V2", ok, needs=("V1",)))
    assert outcomes(found) == {"V1": "not run", "V2": "passed"}


def test_what_was_not_asked_for_is_not_green(tmp_path: Path) -> None:
    found = go(tmp_path, rung("V0", ok), rung("V1", ok), only=("V1",))
    assert outcomes(found) == {"V0": "not run", "V1": "passed"}
    assert not found.green


def test_a_pass_without_a_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one figure"):
        passed({})


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.NOT_RUN])
def test_what_is_not_passed_says_why(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match="says why"):
        Result(outcome, " ")


@pytest.mark.parametrize(
    ("rungs", "words"),
    [
        ((rung("v0", ok),), "cannot be the id"),
        ((rung("V0", ok), rung("V0", ok)), "stands twice"),
        ((rung("V0", ok, proves="numbers"),), "not one of"),
        ((rung("V1", ok, needs=("V0",)),), "does not stand before it"),
        ((replace(rung("V0", ok), border=" "),), "unproved"),
    ],
)
def test_a_badly_stated_ladder_is_refused(tmp_path: Path, rungs: tuple[Rung, ...], words: str) -> None:
    with pytest.raises(LadderError, match=words):
        go(tmp_path, *rungs)


def test_an_unknown_rung_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(LadderError, match=r"V9.*the rungs are V0"):
        go(tmp_path, rung("V0", ok), only=("V9",))


def test_raw_output_is_kept_and_named(tmp_path: Path) -> None:
    def keeping(trial: Trial) -> Result:
        trial.keep("figures.csv", "1,2\n")
        return passed({"rows": 1})

    (step,) = go(tmp_path, rung("V2", keeping)).steps
    assert step.raw == ("raw/V2/figures.csv",)
    assert (tmp_path / step.raw[0]).read_text() == "1,2\n"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "", ".hidden"])
def test_raw_output_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        Trial(SIMULATED, tmp_path, lambda line: None).keep(name, "")


def test_a_folder_is_not_climbed_twice_by_accident(tmp_path: Path) -> None:
    go(tmp_path, rung("V0", ok))
    with pytest.raises(LadderError, match="--resume"):
        go(tmp_path, rung("V0", ok))


def test_resume_keeps_what_ran_and_runs_what_did_not(tmp_path: Path) -> None:
    ran: list[str] = []

    def counted(trial: Trial) -> Result:
        ran.append(trial.raw.name)
        return passed({"seen": 1})

    go(tmp_path, rung("V0", counted), rung("V1", counted), only=("V0",))
    found = go(tmp_path, rung("V0", counted), rung("V1", counted), resume=True)
    assert ran == ["V0", "V1"]
    assert [step.resumed for step in found.steps] == [True, False]


def test_results_of_another_toolchain_are_never_resumed(tmp_path: Path) -> None:
    go(tmp_path, rung("V0", ok))
    with pytest.raises(LadderError, match="not carried over"):
        go(tmp_path, rung("V0", ok), binding=replace(SIMULATED, toolchain=Toolchain("2.10.1", "6.2.0", "0.18.1")), resume=True)


def test_a_half_written_result_is_climbed_again(tmp_path: Path) -> None:
    go(tmp_path, rung("V0", ok))
    file = tmp_path / "rungs" / "V0.json"
    file.write_text(file.read_text()[:40])
    (step,) = go(tmp_path, rung("V0", ok), resume=True).steps
    assert not step.resumed


def test_a_killed_climb_goes_on_where_it_was(tmp_path: Path) -> None:
    """The process dies of SIGKILL inside V1: V0's result is there, V1's is not, and nothing half-written counts."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from tests.unit.dcu.evidence.test_ladder import go, ok, rung\n"
        "def die(trial): os.kill(os.getpid(), signal.SIGKILL)\n"
        "go(Path(sys.argv[1]), rung('V0', ok), rung('V1', die))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    found = go(tmp_path, rung("V0", ok), rung("V1", ok), resume=True)
    assert outcomes(found) == {"V0": "passed", "V1": "passed"}
    assert [step.resumed for step in found.steps] == [True, False]


def measured(low: float, median: float, high: float, better: str = "lower") -> Rung:
    return rung("V7", lambda t: passed({"time": Measure(median, low, high, 4, "ms", better)}))


def test_a_report_comes_back_as_it_was_written(tmp_path: Path) -> None:
    found = go(tmp_path, rung("V0", ok), rung("V1", lambda t: not_run("no | tool")), measured(1.0, 2.0, 3.0))
    write_report(found, tmp_path)
    assert load_report(tmp_path / "report.json") == found
    assert as_json(load_report(tmp_path / "report.json")) == as_json(found)


def test_a_simulated_report_says_so_before_its_first_verdict(tmp_path: Path) -> None:
    text = as_markdown(go(tmp_path, rung("V0", ok)))
    assert text.index("Not a DCU: a test") < text.index("passed")


def test_the_report_says_what_each_rung_leaves_unproved(tmp_path: Path) -> None:
    assert as_markdown(go(tmp_path, rung("V0", ok), rung("V1", ok))).count("Does not prove: anything else") == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 2, "steps": [{}]}'])
def test_a_damaged_baseline_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ReportError, match=r"report\.json"):
        load_report(tmp_path / "report.json")


def test_a_pass_cannot_be_read_from_a_report_that_does_not_say_why_it_failed(tmp_path: Path) -> None:
    write_report(go(tmp_path, rung("V0", lambda t: failed("wrong"))), tmp_path)
    data = json.loads((tmp_path / "report.json").read_text())
    data["steps"][0]["result"]["why"] = ""
    (tmp_path / "report.json").write_text(json.dumps(data))
    with pytest.raises(ReportError, match="says why"):
        load_report(tmp_path / "report.json")


def test_a_newly_failing_rung_is_a_regression(tmp_path: Path) -> None:
    before = go(tmp_path / "a", rung("V0", ok), rung("V1", lambda t: failed("always")))
    now = go(tmp_path / "b", rung("V0", lambda t: failed("broken now")), rung("V1", lambda t: failed("always")))
    assert [(r.rung, "broken now" in r.what) for r in compare(before, now)] == [("V0", True)]


def test_a_rung_that_passed_and_does_not_run_any_more_is_a_regression(tmp_path: Path) -> None:
    found = compare(go(tmp_path / "a", rung("V0", ok)), go(tmp_path / "b", rung("V0", lambda t: not_run("no device"))))
    assert [r.rung for r in found] == ["V0"]


@pytest.mark.parametrize(
    ("now", "worse"),
    [
        (measured(0.9, 1.0, 1.2), False),
        (measured(1.05, 1.2, 1.4), False),  # slower in the median, within the noise
        (measured(1.2, 1.3, 1.4), True),
        (measured(0.2, 0.3, 0.4), False),
    ],
)
def test_a_loss_counts_beyond_the_noise_only(tmp_path: Path, now: Rung, worse: bool) -> None:
    assert bool(compare(go(tmp_path / "a", measured(0.9, 1.0, 1.1)), go(tmp_path / "b", now))) is worse


def test_for_throughput_less_is_the_loss(tmp_path: Path) -> None:
    before = go(tmp_path / "a", measured(90, 100, 110, "higher"))
    assert compare(before, go(tmp_path / "b", measured(70, 80, 85, "higher")))
    assert not compare(before, go(tmp_path / "c", measured(120, 130, 140, "higher")))


def test_a_figure_that_is_not_measured_any_more_is_a_regression(tmp_path: Path) -> None:
    assert compare(go(tmp_path / "a", measured(1, 1, 1)), go(tmp_path / "b", rung("V7", ok)))


def test_a_binding_comes_back_as_it_was_dumped() -> None:
    assert load(Binding, dump(SIMULATED)) == SIMULATED


@pytest.mark.parametrize("change", [{"arch": 1}, {"more": "x"}, {"toolchain": {"torch": "2"}}, {"toolchain": None}])
def test_a_binding_of_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(StrictError):
        load(Binding, {**dump(SIMULATED), **change})


def test_every_field_but_pythons_version_binds() -> None:
    for name in ("device", "arch", "hip_runtime", "dtk", "build", "extension", "driver", "simulated"):
        assert differences(SIMULATED, replace(SIMULATED, **{name: "other"})) == (name,)
    for name in ("torch", "hip", "vllm"):
        assert differences(SIMULATED, replace(SIMULATED, toolchain=replace(SIMULATED.toolchain, **{name: "9"}))) == (name,)
    assert differences(SIMULATED, replace(SIMULATED, toolchain=replace(SIMULATED.toolchain, python="3.12"))) == ()
