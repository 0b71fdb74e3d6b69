"""The upper rungs' verdicts on what their children saw, and the record a climb is good for: each fault is planted once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.dcu.evidence.ladder import Climb, Figure, LadderError, Measure, Outcome, Result, Step, Trial, failed, not_run, passed
from vllm.dcu.evidence.site import State, status_of
from vllm.dcu.evidence.store import Entry, add, entry_of, read_store
from vllm.dcu.records.kernels import LLMM1
from vllm.dcu.records.record import Contract, RecordError, Verdict
from vllm.dcu.verify import verb
from vllm.dcu.verify.climb import make_record, rungs_of
from vllm.dcu.verify.rungs import endtoend, model
from vllm.dcu.verify.rungs.children import ChildError, ModelRun, environment, hits_in, read_result
from vllm.dcu.verify.rungs.endtoend import Load
from vllm.dcu.verify.rungs.stage import ModelPlan, Stage, Subject, subject_of

from tests.unit.dcu.evidence.evidence_samples import BINDING, BUILT_IN, SIMULATED, WRONG, context, records_by_id, rungs, site_of

RECORD = records_by_id()[BUILT_IN]
HARDWARE = Stage(BINDING, subject_of(RECORD), "cuda", None, None, 64, plan=ModelPlan("/model"))
ON_CPU = replace(HARDWARE, binding=SIMULATED, device="cpu")
NEW = Subject("site-llmm1-gfx936-bfloat16-n1-m14336-k5120-r4", LLMM1, Contract("bfloat16", 1, 14336, 5120, args={"rows_per_block": 4}))


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(BINDING, tmp_path / "raw", lambda line: None)


def saw(monkeypatch: pytest.MonkeyPatch, **runs: ModelRun) -> None:
    """What the children of the rungs would have seen, by mode."""
    monkeypatch.setattr(model, "model_run", lambda stage, folder, mode: (runs[mode], folder))


EAGER = ModelRun((1, 2, 3, 4), hits=192, kernels=192, device_events=5000, seconds=1.0)
REPLAYED = replace(EAGER, hits=0, kernels=192)


def test_v4_passes_where_counter_and_profiler_agree(monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path) -> None:
    saw(monkeypatch, eager=EAGER)
    assert model.dispatch_hit(HARDWARE, trial, tmp_path).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (replace(EAGER, hits=0), Outcome.FAILED),  # the kernel runs, and nobody counts it
        (replace(EAGER, kernels=0), Outcome.FAILED),  # a counter that counts what never ran
        (replace(EAGER, kernels=191), Outcome.FAILED),
        (replace(EAGER, kernels=0, device_events=0), Outcome.NOT_RUN),  # a profiler that sees nothing proves nothing
    ],
)
def test_v4_is_never_green_on_half_of_it(
    monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path, run: ModelRun, outcome: Outcome
) -> None:
    saw(monkeypatch, eager=run)
    assert model.dispatch_hit(HARDWARE, trial, tmp_path).outcome is outcome


def test_v6_passes_where_tokens_agree_and_a_replay_ran_the_kernel(monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path) -> None:
    saw(monkeypatch, eager=EAGER, compiled=EAGER, captured=REPLAYED)
    assert model.compile_and_graph(HARDWARE, trial, tmp_path).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("compiled", "captured", "words"),
    [
        (replace(EAGER, tokens=(1, 2, 9, 4)), REPLAYED, "compiled makes another token than eager, the first at 2"),
        (EAGER, replace(REPLAYED, tokens=(1, 2, 3)), "captured makes another token than eager, the first at 3"),
        (replace(EAGER, hits=0), REPLAYED, "compiled, the capability is never hit"),
        (EAGER, replace(REPLAYED, kernels=0), "no replayed graph ran the kernel"),
        (EAGER, EAGER, "no replayed graph ran the kernel"),  # every run was a dispatch: nothing was replayed
    ],
)
def test_v6_refuses(
    monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path, compiled: ModelRun, captured: ModelRun, words: str
) -> None:
    saw(monkeypatch, eager=EAGER, compiled=compiled, captured=captured)
    result = model.compile_and_graph(HARDWARE, trial, tmp_path)
    assert result.outcome is Outcome.FAILED
    assert words in result.why


def test_v6_on_a_cpu_is_not_green_although_the_tokens_agree(monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path) -> None:
    saw(monkeypatch, eager=EAGER, compiled=EAGER)
    result = model.compile_and_graph(ON_CPU, trial, tmp_path)
    assert result.outcome is Outcome.NOT_RUN
    assert "no graphs to capture on a CPU" in result.why


SERVED: dict[str, Figure] = {
    "on: tokens": 16, "off: tokens": 16, "on: exit code": 0, "off: exit code": 0, "on: hits": 15, "off: hits": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"on: hits": 0}, "never hit it"),
        ({"off: hits": 3}, "off and hit it 3 times"),
        ({"on: tokens": 12}, "made 12 tokens, not 16"),
        ({"off: exit code": -11}, "ended with -11"),
    ],
)
def test_v5_refuses(change: dict[str, Figure], words: str) -> None:
    assert model._judge_service(dict(SERVED), 16).outcome is Outcome.PASSED
    result = model._judge_service({**SERVED, **change}, 16)
    assert result.outcome is Outcome.FAILED
    assert words in result.why


def leg(tpot: float, hits: float = 100.0) -> dict[str, float]:
    return {"TTFT": 10.0, "TPOT": tpot, "output throughput": 1000 / tpot, "resident MiB": 1000.0, "completed": 4.0, "hits": hits}


def driven(
    monkeypatch: pytest.MonkeyPatch, trial: Trial, folder: Path, on: list[float], off: list[float], stage: Stage = HARDWARE
) -> Result:
    order: list[str] = []

    def fake(stage: Stage, trial: Trial, folder: Path, load: Load, name: str, number: int) -> Mapping[str, float]:
        order.append(name)
        return leg((on if name == "on" else off)[number], 100.0 if name == "on" else 0.0)

    monkeypatch.setattr(endtoend, "_leg", fake)
    result = endtoend.end_to_end(stage, trial, folder, Load(rounds=len(on)))
    assert order == ["on", "off"] * len(on), "the legs are not interleaved"
    return result


def test_v7_claims_a_gain_only_where_the_ranges_do_not_touch(monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path) -> None:
    result = driven(monkeypatch, trial, tmp_path, [47.0, 47.5, 47.2], [69.0, 69.5, 68.8])
    assert result.outcome is Outcome.PASSED
    assert result.why.startswith("claim: 1.462 times")
    assert result.figures["TPOT, on"] == Measure(47.2, 47.0, 47.5, 3, "ms", "lower")


def test_v7_makes_no_claim_within_the_noise(monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path) -> None:
    result = driven(monkeypatch, trial, tmp_path, [47.0, 70.0, 47.2], [69.0, 69.5, 68.8])
    assert result.outcome is Outcome.PASSED
    assert result.why.startswith("no claim")


def test_v7_slower_beyond_the_noise_fails(monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path) -> None:
    assert driven(monkeypatch, trial, tmp_path, [71.0, 72.0], [69.0, 69.5]).outcome is Outcome.FAILED


def test_v7_of_one_leg_has_no_spread_and_makes_no_claim(monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path) -> None:
    assert driven(monkeypatch, trial, tmp_path, [47.0], [69.0]).outcome is Outcome.NOT_RUN


def test_v7_of_a_simulation_is_not_green_whatever_its_times(monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path) -> None:
    result = driven(monkeypatch, trial, tmp_path, [47.0, 47.1], [69.0, 69.1], ON_CPU)
    assert result.outcome is Outcome.NOT_RUN
    assert "simulated" in result.why


@pytest.mark.parametrize("hits", [{"on": 0.0, "off": 0.0}, {"on": 5.0, "off": 5.0}])
def test_v7_between_two_equal_sides_fails(monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path, hits: dict[str, float]) -> None:
    monkeypatch.setattr(endtoend, "_leg", lambda stage, trial, folder, load, name, number: leg(50.0, hits[name]))
    assert endtoend.end_to_end(HARDWARE, trial, tmp_path, Load(rounds=2)).outcome is Outcome.FAILED


@pytest.mark.parametrize("counts", [{"failed": 1, "completed": 1}, {"failed": 0, "completed": 1}])
def test_v7_with_failed_requests_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch, trial: Trial, tmp_path: Path, counts: dict[str, int]
) -> None:
    """Seen: a prompt a token too long for the model halves the load, and the leg looks fast."""

    @contextlib.contextmanager
    def server(*args: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(process=SimpleNamespace(pid=1), stop=lambda: 0)

    def bench(stage: Stage, server: object, load: Load, home: Path, log: Path) -> None:
        times = {"median_ttft_ms": 1.0, "median_tpot_ms": 1.0, "output_throughput": 1.0}
        (home / "bench.json").write_text(json.dumps({**times, **counts}))

    monkeypatch.setattr(endtoend, "serving", server)
    monkeypatch.setattr(endtoend, "_bench", bench)
    with pytest.raises(ChildError, match="requests of a leg failed"):
        endtoend.end_to_end(HARDWARE, trial, tmp_path, Load(prompts=2))


@pytest.mark.parametrize("stage", [replace(HARDWARE, plan=None), replace(HARDWARE, no_device="no DCU here")])
def test_without_a_model_or_a_device_nothing_of_it_runs(trial: Trial, tmp_path: Path, stage: Stage) -> None:
    for rung in (model.dispatch_hit, model.service, model.compile_and_graph):
        assert rung(stage, trial, tmp_path).outcome is Outcome.NOT_RUN
    assert model.real_tensors(stage, trial, tmp_path, RECORD).outcome is Outcome.NOT_RUN
    assert endtoend.end_to_end(stage, trial, tmp_path, Load()).outcome is Outcome.NOT_RUN


def test_the_ladder_has_every_rung_that_evidence_may_name(tmp_path: Path) -> None:
    from vllm.dcu.evidence.store import RUNG_IDS

    assert {r.id: r.proves for r in rungs_of(HARDWARE, tmp_path, Load())} == RUNG_IDS


def climbed(subject: str = NEW.id, simulated: bool = False, **results: Result) -> Climb:
    from vllm.dcu.evidence.store import RUNG_IDS

    every = {**rungs(), **results}
    steps = tuple(Step(i, "t", RUNG_IDS[i], "b", r, 1.0, "2026-11-30T08:00:00Z", ()) for i, r in every.items())
    return Climb("verify", subject, SIMULATED if simulated else BINDING, "2026-11-30T08:00:00Z", steps)


def test_a_whole_climb_of_a_new_shape_opens_it(tmp_path: Path) -> None:
    climb = climbed()
    record = make_record(climb, NEW)
    assert record is not None
    assert record.verdict is Verdict.OPEN
    kept = add(tmp_path / "evidence.json", entry_of(climb, record))
    assert read_store(tmp_path / "evidence.json") == (kept,)
    assert status_of(NEW.id, (kept,), BINDING).state is State.VERIFIED


@pytest.mark.parametrize("ident", ["V1", "V2", "V2S", "V3", "V6", "V7"])
def test_a_wrong_or_slower_kernel_becomes_a_negative_record(tmp_path: Path, ident: str) -> None:
    climb = climbed(**{ident: WRONG})
    record = make_record(climb, NEW)
    assert record is not None
    assert record.verdict is Verdict.CLOSED
    assert f"{ident} failed: relative error 0.45" in record.why
    kept = add(tmp_path / "evidence.json", entry_of(climb, record))
    assert status_of(NEW.id, (kept,), BINDING).state is State.FAILED


def test_right_and_faster_without_a_model_opens_nothing_yet(tmp_path: Path) -> None:
    climb = climbed(**dict.fromkeys(("V3", "V4", "V5", "V6", "V7"), not_run("it needs a model")))
    kept = add(tmp_path / "evidence.json", entry_of(climb, make_record(climb, NEW)))
    status = status_of(NEW.id, (kept,), BINDING)
    assert status.state is State.UNFINISHED
    assert "V3, V4, V5, V6 did not run" in status.sentence


@pytest.mark.parametrize("results", [{}, {"V2": WRONG}])
def test_a_simulation_makes_no_record(results: dict[str, Result]) -> None:
    assert make_record(climbed(simulated=True, **results), NEW) is None


def test_a_record_of_the_catalogue_is_not_made_again() -> None:
    assert make_record(climbed(BUILT_IN), subject_of(RECORD)) is None


def test_a_negative_record_is_replaced_when_a_later_climb_passes(tmp_path: Path) -> None:
    store = tmp_path / "evidence.json"
    wrong, right = climbed(V2=WRONG), climbed()
    add(store, entry_of(wrong, make_record(wrong, NEW)))
    kept = add(store, entry_of(right, make_record(right, NEW)))
    assert kept.record is not None
    assert kept.record.verdict is Verdict.OPEN
    site = site_of(kept)
    assert [r.verdict for r in site.records] == [Verdict.OPEN]
    assert context(site=site).site.state(NEW.id) is State.VERIFIED


def test_a_shape_that_the_kernel_cannot_compute_never_becomes_a_record() -> None:
    wide = Subject("site-x", LLMM1, Contract("bfloat16", 1, 5120, 17408, args={"rows_per_block": 4}))
    with pytest.raises(RecordError, match="K=17408 is above 8192"):
        make_record(replace(climbed("site-x")), wide)


def test_children_see_this_climbs_evidence_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_DCU_EVIDENCE", "/site/evidence.json")
    env = environment(HARDWARE, tmp_path, True, tmp_path / "stats")
    assert env["VLLM_DCU_EVIDENCE"] == str(tmp_path / "candidate.json")
    assert env["VLLM_DCU_CAPABILITIES"] == f"{BUILT_IN}=force"
    assert environment(HARDWARE, tmp_path, False, tmp_path)["VLLM_DCU_CAPABILITIES"] == f"{BUILT_IN}=off"


def test_hits_of_every_process_are_summed(tmp_path: Path) -> None:
    from vllm.dcu.dispatch.countfiles import Header, Key, Writer

    for value in (3, 4):
        writer = Writer(tmp_path, Header("gfx936", "a test", (BUILT_IN,)))
        writer.add_keys(0, [Key("hit", "bfloat16", 34816, 5120, BUILT_IN, None, "1")])
        writer.cells[0] = value
    assert hits_in(tmp_path, BUILT_IN) == 7
    assert hits_in(tmp_path / "none", BUILT_IN) == 0


def test_an_earlier_rungs_result_survives_a_climb_that_did_not_run_it(tmp_path: Path) -> None:
    store = tmp_path / "evidence.json"
    add(store, Entry(BUILT_IN, BINDING, {"V2": passed({"a": 1})}, {"V2": "2026-11-30T08:00:00Z"}))
    only_v0 = climbed(BUILT_IN, **dict.fromkeys(("V1", "V2", "V2S", "V3", "V4", "V5", "V6", "V7"), not_run("not asked for")))
    assert set(add(store, entry_of(only_v0, None)).rungs) == {"V0", "V2"}
    assert json.loads(store.read_text())["format"] == 1
    assert failed("x").outcome is Outcome.FAILED


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a key twice": lambda store: store.write_text('{"format": 1, "entries": [], "entries": []}'),
    "cut": lambda store: store.write_text('{"format": 1, "entr'),
    "NaN": lambda store: store.write_text('{"format": NaN, "entries": []}'),
    "a folder": lambda store: store.mkdir(),
    "a FIFO": lambda store: os.mkfifo(store),
    "others may write it": lambda store: (store.write_text('{"format": 1, "entries": []}'), store.chmod(0o666)),
}


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_store_and_verify_evidence_the_store_is_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str, forgets: bool
) -> None:
    """Before the device is asked for, let alone a rung climbed; a verb that forgets to is seen to climb."""
    store = tmp_path / "evidence.json"
    DAMAGE[damage](store)
    asked: list[object] = []

    def stage_here(*args: object) -> None:
        asked.append(args)
        raise LadderError("it began to climb")

    monkeypatch.setattr(verb, "stage_here", stage_here)
    if forgets:
        monkeypatch.setattr(verb, "read_store", lambda path: ())
    assert verb.main(["--evidence", str(store), "--folder", str(tmp_path / "climb")]) == 1
    said = capsys.readouterr().err
    assert bool(asked) == forgets
    assert ("Move the file away and verify again" in said) != forgets, said
    assert said.count("\n") == 1
    assert not (tmp_path / "climb").exists()


RUN = '{"tokens": [1], "hits": 1, "kernels": 1, "device_events": 2, "seconds": 1.5, "by": {}}'


@pytest.mark.parametrize(
    "text",
    [
        RUN.replace('"hits": 1', '"hits": 1, "hits": 2'),
        RUN.replace("1.5", "NaN"),
        RUN.replace('"hits": 1', '"hits": "1"'),
        RUN[:-3],
        "[]",
        None,
    ],
)
def test_what_a_child_wrote_is_read_as_strictly_as_what_comes_from_outside(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "result.json"
    path.write_text(RUN)
    assert read_result(ModelRun, path) == ModelRun((1,), 1, 1, 2, 1.5)
    path.unlink()
    os.mkfifo(path) if text is None else path.write_text(text)
    with pytest.raises(ChildError, match="cannot be used"):
        read_result(ModelRun, path)


def test_what_the_load_measured_may_have_fields_of_its_own_and_no_key_twice(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text('{"failed": 0, "more": [1.5, "two\\nlines"]}')
    assert read_result(Mapping[str, Any], path) == {"failed": 0, "more": [1.5, "two\nlines"]}
    path.write_text('{"failed": 0, "failed": 1}')
    with pytest.raises(ChildError, match="twice"):
        read_result(Mapping[str, Any], path)
