# SPDX-License-Identifier: Apache-2.0
"""The ladder of `verify`: V0 to V7, and what a climb leaves for the evidence store.  Imports no torch until a rung runs."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from vllm.dcu.arch import WAVEFRONT_SIZE
from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Climb, Figure, Measure, Outcome, Result, Rung, Trial, not_run
from vllm.dcu.evidence.store import RUNG_IDS, Entry, add
from vllm.dcu.records.catalog import EXTENSIONS, records_by_id, semantics_of
from vllm.dcu.records.record import Evidence, Record, Target, Verdict
from vllm.dcu.verify.rungs import build, endtoend, model
from vllm.dcu.verify.rungs.children import CANDIDATE
from vllm.dcu.verify.rungs.endtoend import Load
from vllm.dcu.verify.rungs.stage import Stage, Subject

__all__ = ["make_record", "rungs_of"]


def rungs_of(stage: Stage, folder: Path, load: Load) -> tuple[Rung, ...]:
    """The rungs on `stage`; `folder` is the climb's."""

    def numbers(trial: Trial) -> Result:
        from vllm.dcu.verify.rungs.numbers import right_numbers

        return right_numbers(stage, trial)

    def speed(trial: Trial) -> Result:
        from vllm.dcu.verify.rungs.numbers import right_speed

        return right_speed(stage, trial)

    def tensors(trial: Trial) -> Result:
        record = records_by_id().get(stage.subject.id) or _candidate_record(stage)
        if why := model.missing(stage):
            return not_run(why)
        assert record is not None, "a simulation without a record of the catalogue was refused before"
        return model.real_tensors(stage, trial, folder, record)

    def with_candidate(rung: Callable[[Stage, Trial, Path], Result]) -> Callable[[Trial], Result]:
        return lambda trial: rung(stage, trial, folder)

    def prepared(run: Callable[[Trial], Result]) -> Callable[[Trial], Result]:
        def prepare(trial: Trial) -> Result:
            if not model.missing(stage):
                _write_candidate(stage, folder)
            return run(trial)

        return prepare

    def rung(ident: str, title: str, border: str, run: Callable[[Trial], Result], *needs: str) -> Rung:
        return Rung(ident, title, RUNG_IDS[ident], f"any other device, toolchain, build or shape; {border}", run, needs)

    return (
        rung("V0", "the build that runs", "that anything of it works", lambda t: build.build_that_runs(stage, t)),
        rung("V1", "the code object", "that the code is right", lambda t: build.code_object(stage, t)),
        rung("V2", "the kernel against float64", "that a model calls it, or what it gains", numbers),
        rung("V2S", "the kernel's time against F.linear", "any gain of a served model", speed, "V2"),
        rung("V3", "the model's own tensors", "other models, prompts and arguments", prepared(tensors), "V2"),
        rung("V4", "the hit, by counter and profiler", "other modes than eager", prepared(with_candidate(model.dispatch_hit)), "V2"),
        rung("V5", "the server, on and off", "long runs, many clients, accuracy of the model", prepared(with_candidate(model.service)), "V2"),
        rung("V6", "compiled and captured", "accuracy beyond the tokens of one short request",
             prepared(with_candidate(model.compile_and_graph)), "V2"),
        rung("V7", "end to end, on against off", "other loads than the one that was driven",
             prepared(lambda trial: endtoend.end_to_end(stage, trial, folder, load)), "V2", "V5"),
    )  # fmt: skip


def _write_candidate(stage: Stage, folder: Path) -> None:
    """The evidence that this climb's children see: the capability, with a pass that says what it is for. It is forced there."""
    path = folder / CANDIDATE
    if path.is_file():
        return
    now = _today() + time.strftime("T%H:%M:%SZ", time.gmtime())
    here = Result(Outcome.PASSED, "for the children of a climb only", {"climb": folder.name})
    for subject in stage.every:
        one = replace(stage, subject=subject)
        add(path, Entry(subject.id, stage.binding, {"V0": here}, {"V0": now}, _candidate_record(one)))


def _candidate_record(stage: Stage) -> Record | None:
    if stage.subject.id in records_by_id() or (stage.binding.simulated and not stage.whole):
        return None
    claim = "its own climb is under way"
    return _record(stage.subject, stage.binding, Verdict.OPEN, (_evidence(stage.binding, "kernel", claim),), claim, "when the climb ends")


def make_record(climb: Climb, subject: Subject, whole: bool = False) -> Record | None:
    """The site's record that a climb is good for: positive, negative, or none (the catalogue has the shape, V2 did not run, or it was a simulation).

    `whole`: a whole device was simulated, and the record is for that simulation alone. A positive record states what was seen; it opens nothing before every rung up to V6 passed (`vllm.dcu.evidence.site`).
    """
    if subject.id in records_by_id():
        return None
    entries = tuple(
        _evidence(climb.binding, step.proves, f"{step.id} {step.title}: {step.result.why or _digest(step.result.figures)}")
        for step in climb.steps
        if step.proves and step.result.outcome is not Outcome.NOT_RUN
    )
    if climb.binding.simulated and not whole:
        return None
    broken = [step for step in climb.steps if step.result.outcome is Outcome.FAILED and step.proves]
    if broken:
        why = f"{broken[0].id} failed: {broken[0].result.why}"
        return _record(subject, climb.binding, Verdict.CLOSED, entries, why, "when the kernel, the device or the toolchain changes")
    ran = climb.step("V2")
    if ran is None or ran.result.outcome is not Outcome.PASSED:
        return None
    return _record(subject, climb.binding, Verdict.OPEN, entries, "verified on this site", "when anything of its binding changes")


def _digest(figures: Mapping[str, Figure]) -> str:
    shown = [f"{name} {f.median if isinstance(f, Measure) else f}" for name, f in figures.items()]
    return ", ".join(shown)[:300]


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _evidence(binding: Binding, rung: str, claim: str) -> Evidence:
    tools = binding.toolchain
    versions = f"PyTorch {tools.torch}, HIP {tools.hip or 'none'}, vLLM {tools.vllm or 'none'}"
    return Evidence(rung, claim, "verify", binding.device or binding.label, versions, _today(), on_hardware=not binding.simulated)


def _record(subject: Subject, binding: Binding, verdict: Verdict, evidence: tuple[Evidence, ...], why: str, revisit: str) -> Record:
    toolchain = replace(binding.toolchain, **{name: _release(getattr(binding.toolchain, name)) for name in ("torch", "hip", "vllm")})
    target = Target(binding.arch, WAVEFRONT_SIZE, toolchain, EXTENSIONS[subject.kernel.name])
    return Record(
        subject.id, subject.kernel.name, verdict, target, subject.contract,
        semantics_of(subject.kernel) if verdict is Verdict.OPEN else None, evidence, "F.linear", why, revisit, binding.simulated,
    )  # fmt: skip


def _release(version: str) -> str:
    """The release of a version (`2.10.0` of `2.10.0+das`); `0` where there is none, which a simulation may have."""
    release = ""
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        release = f"{release}.{part}" if release else part
    return release or "0"
