"""The borders of what `tune` keeps: simulations, the journal, export and import; and who is taken out of a joint run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vllm.dcu.dispatch.reasons import Reason
from vllm.dcu.dispatch.rules import standing_reasons
from vllm.dcu.evidence.ladder import Climb, LadderError, Result, Step, failed, passed
from vllm.dcu.evidence.site import REHEARSED, State, judge, status_of
from vllm.dcu.evidence.store import EvidenceError, add, read_store
from vllm.dcu.records.catalog import CATALOG, check_catalog
from vllm.dcu.records.kernels import GEMV
from vllm.dcu.records.record import Record, RecordError
from vllm.dcu.tune import climbs
from vllm.dcu.tune.climbs import Ascent, subject_for
from vllm.dcu.tune.exchange import bring, send
from vllm.dcu.tune.journal import read_journal
from vllm.dcu.tune.plan import Choice, Item
from vllm.dcu.verify.climb import make_record
from vllm.dcu.verify.rungs.children import environment
from vllm.dcu.verify.rungs.endtoend import Load
from vllm.dcu.verify.rungs.stage import Stage

from tests.unit.dcu.evidence.evidence_samples import BINDING, BUILT_IN, DATE, SIMULATED, SITE, context, entry, rungs, site_record
from tests.unit.dcu.tune.test_tune_plan import NINE, THREE, UP, found

DOWN = Item("MLP down", "bfloat16", 5120, 17408, 2, 64)


def simulated_record() -> Record:
    record = site_record(BINDING)
    return replace(record, simulated=SIMULATED.simulated, evidence=tuple(replace(e, on_hardware=False) for e in record.evidence))


def test_a_simulations_record_opens_in_that_simulation_and_nowhere_else(tmp_path: Path) -> None:
    record = simulated_record()
    seen = entry(SIMULATED, SITE, {name: passed({"seen": 1}) for name in REHEARSED}, record)
    assert status_of(SITE, [seen], SIMULATED).state is State.VERIFIED
    assert status_of(SITE, [replace(seen, binding=BINDING)], BINDING).state is State.UNFINISHED
    site = judge((seen,), SIMULATED)
    assert standing_reasons(record, context(SIMULATED, site)) == ()
    verified = replace(judge((seen,), SIMULATED), records=(record,))
    for other in (BINDING, replace(SIMULATED, simulated="another")):
        assert Reason.ARCH in standing_reasons(record, context(other, verified))
    with pytest.raises(EvidenceError, match="another simulation"):
        add(tmp_path / "e.json", replace(seen, binding=BINDING))
    for changes in ({"simulated": ""}, {"evidence": site_record(BINDING).evidence}):
        with pytest.raises(RecordError, match="evidence"):
            replace(record, **changes)
    with pytest.raises(RecordError, match="simulation"):
        check_catalog((*CATALOG, record))


def test_every_rehearsed_rung_has_to_pass() -> None:
    for missing in REHEARSED:
        some = {name: passed({"seen": 1}) for name in REHEARSED if name != missing}
        assert status_of(SITE, [entry(SIMULATED, SITE, some, simulated_record())], SIMULATED).state is State.UNFINISHED


def test_the_journal_knows_an_item_on_the_very_binding_only(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    read_journal(path).add(found(UP, 100.0, (NINE, 80.0, "")), BINDING)
    journal = read_journal(path)
    kept = journal.known(replace(UP, name="another model's", calls=3), BINDING)
    assert kept is not None
    assert (kept.item.calls, kept.winners[0].choice) == (3, NINE)
    assert journal.known(UP, replace(BINDING, hip_runtime=f"libamdhip64.so.7 {'ab' * 32}")) is None
    assert journal.known(replace(UP, n=2), BINDING) is None
    path.write_text("{")
    with pytest.raises(LadderError, match="measured again"):
        read_journal(path)


def test_evidence_goes_where_the_binding_is_equal_and_says_that_it_was_imported(tmp_path: Path) -> None:
    store, sent, there = (tmp_path / name for name in ("evidence.json", "sent.json", "there.json"))
    running = {"vllm._rocm_C": BINDING}
    with pytest.raises(LadderError, match="nothing that is verified"):
        send(store, sent, running.__getitem__)
    add(store, entry(record=None))
    add(store, entry(replace(BINDING, dtk="25"), date="2026-11-29T08:00:00Z"))
    add(store, entry(subject=SITE, results=rungs(V3=failed("wrong")), record=site_record()))
    assert send(store, sent, running.__getitem__) == 1
    with pytest.raises(LadderError, match="there already"):
        send(store, sent, running.__getitem__)
    (said,) = bring(sent, there, lambda module: replace(BINDING, driver="hydcu 7"))
    assert "not imported: it was seen with another driver" in said
    assert not there.exists()
    (said,) = bring(sent, there, running.__getitem__)
    assert "verified on this device and toolchain, on another machine of this very binding, and imported" in said
    (kept,) = read_store(there)
    assert status_of(BUILT_IN, [kept], BINDING).state is State.VERIFIED
    (said,) = bring(sent, there, running.__getitem__)
    assert "evidence of this machine's own" in said
    with pytest.raises(LadderError, match="holds no evidence"):
        bring(tmp_path / "none.json", there, running.__getitem__)


def step(name: str, result: Result) -> Step:
    return Step(name, name, "kernel", "all else", result, 0.1, DATE, ())


Verdict = Callable[[str, str, Path], Result]


@pytest.fixture
def ascent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Verdict], tuple[Ascent, list[tuple[str, str]]]]:
    """An ascent whose rungs end as a function of (capability, rung, folder of runs) says."""
    monkeypatch.setattr(climbs, "native_ops", dict)

    def made(verdict: Verdict) -> tuple[Ascent, list[tuple[str, str]]]:
        ran: list[tuple[str, str]] = []

        def climbed(stage: Stage, folder: Path, runs: Path, load: Load, only: Any, resume: bool) -> Climb:
            ran.append((stage.subject.id, runs.name))
            steps = tuple(step(name, verdict(stage.subject.id, name, runs)) for name in only)
            return Climb("verify", stage.subject.id, stage.binding, DATE, steps)

        monkeypatch.setattr(climbs, "climbed", climbed)
        stage = Stage(BINDING, subject_for(UP, "GEMV", 0), "cuda", None, None, None)
        return Ascent(stage, tmp_path, None, Load()), ran

    return made


def fine(ident: str, name: str, runs: Path) -> Result:
    return passed({"seen": 1})


def ident(item: Item, choice: Choice) -> str:
    return subject_for(item, choice.kernel, choice.value).id


UP3, UP9, DOWN9 = ident(UP, THREE), ident(UP, NINE), ident(DOWN, NINE)
BOTH = (found(UP, 100.0, (THREE, 50.0, ""), (NINE, 60.0, "")), found(DOWN, 100.0, (NINE, 50.0, "")))
AFTER: Mapping[str, tuple[Verdict, set[str], list[str]]] = {
    "all is well": (fine, set(), ["together", "together"]),
    "a wrong one leaves its place to the next": (
        lambda i, n, r: failed("wrong") if (i, n) == (UP3, "V2") else fine(i, n, r), {UP3}, ["together", "together"],
    ),
    "who fails V3 goes, and the others run again": (
        lambda i, n, r: failed("wrong") if (i, n) == (DOWN9, "V3") else fine(i, n, r), {DOWN9}, ["together", "together", "together-2"],
    ),
    "a joint failure of nobody's is nobody's": (
        lambda i, n, r: failed("the run ended") if n == "V4" and r.name == "together" else fine(i, n, r), set(),
        ["together", "together", UP3, DOWN9],
    ),
    "alone, it is somebody's": (
        lambda i, n, r: failed("another token") if n == "V6" and r.name in ("together", UP3) else fine(i, n, r), {UP3},
        ["together", "together", UP3, DOWN9],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AFTER)
def test_one_that_fails_is_taken_out_by_name_and_the_others_go_on(case: str, ascent: Any) -> None:
    verdict, out, runs = AFTER[case]
    made, ran = ascent(verdict)
    for one in BOTH:
        assert made.alone(one)
    made.together()
    assert {sentence.split(" ")[0] for sentence in made.taken_out} == out
    joint = [name for _, name in ran if name not in (made.folder.name,)]
    assert joint == runs
    assert len(made.said) == 2


def test_what_the_build_may_open_for_the_same_call_is_off_while_another_kernel_is_verified(tmp_path: Path) -> None:
    stage = Stage(BINDING, subject_for(UP, "GEMV", 9), "cuda", None, None, None)
    both = replace(stage, together=(stage.subject, subject_for(DOWN, "GEMV", 9)))
    told = environment(both, tmp_path, True, tmp_path)["VLLM_DCU_CAPABILITIES"]
    assert told == f"{UP9}=force,{DOWN9}=force,{BUILT_IN}=off"
    own = replace(stage, subject=subject_for(UP, "LLMM1", 4))
    assert environment(own, tmp_path, True, tmp_path)["VLLM_DCU_CAPABILITIES"] == f"{BUILT_IN}=force"


def test_a_record_of_a_whole_simulation_names_it() -> None:
    subject = subject_for(UP, "GEMV", 9)
    binding = replace(SIMULATED, extension="")
    seen = Climb("verify", subject.id, binding, DATE, tuple(step(n, passed({"seen": 1})) for n in ("V0", "V2")))
    assert make_record(seen, subject) is None
    made = make_record(seen, subject, whole=True)
    assert made is not None
    assert made.simulated == SIMULATED.simulated
    assert not any(e.on_hardware for e in made.evidence)
    assert made.kernel == GEMV.name
