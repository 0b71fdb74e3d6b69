# SPDX-License-Identifier: Apache-2.0
"""The winners on `verify`'s own ladder: each alone to V2S, then one model run for all of them, then V7 all on against all off.

One that fails is taken out by name. Where a joint run fails and nothing says whose fault it is, each climbs alone, as `verify` would have it.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vllm.dcu.dispatch.context import native_ops
from vllm.dcu.evidence.binding import file_hash, module_file
from vllm.dcu.evidence.ladder import Climb, LadderError, Outcome
from vllm.dcu.evidence.site import State, status_of
from vllm.dcu.evidence.store import RUNG_IDS, read_store
from vllm.dcu.records.kernels import KERNELS
from vllm.dcu.tune.found import Found
from vllm.dcu.tune.plan import Item
from vllm.dcu.verify.rungs.endtoend import Load
from vllm.dcu.verify.rungs.stage import Stage, Subject
from vllm.dcu.verify.verb import climbed, keep, new_subject

__all__ = ["Ascent", "subject_for", "turned"]

ALONE = ("V0", "V1", "V2", "V2S")
TOGETHER = tuple(name for name in RUNG_IDS if name not in ALONE)
_OWN = ("V3",)
"""Rungs of the joint run that say whose fault a failure is."""


def subject_for(item: Item, kernel: str, value: int) -> Subject:
    """The capability of a choice for an item."""
    return new_subject(KERNELS[kernel], item.dtype, item.n, item.m, item.k, value)


def turned(stage: Stage, subject: Subject) -> Stage:
    """`stage` about another capability, its kernel's own extension included."""
    if subject.kernel is stage.subject.kernel:
        return replace(stage, subject=subject)
    op = native_ops().get(subject.kernel.op)
    marks = (subject.kernel.op,) if stage.device == "cpu" else (subject.kernel.mark,)
    extension, binding = stage.extension, stage.binding
    if not binding.simulated:
        extension = module_file(subject.kernel.extension)
        binding = replace(binding, extension=file_hash(extension))
    return replace(stage, subject=subject, native=op.call if op else None, extension=extension, binding=binding, marks=marks)


@dataclass
class Ascent:
    """The climbs of one `tune`.

    Attributes:
        stage: this process, about any capability of GEMV.
        folder: where climbs and runs are kept.
        store: the evidence; None where a simulation keeps none.
        said: an item's label -> what became of its winner.
        taken_out: what failed, one sentence each.
        lost: whether evidence could not be kept.
        end_to_end: what V7 says of all of them.
    """

    stage: Stage
    folder: Path
    store: Path | None
    load: Load

    def __post_init__(self) -> None:
        self.said: dict[str, str] = {}
        self.taken_out: list[str] = []
        self.lost = False
        self.end_to_end = ""
        self.waiting: list[tuple[Item, Stage]] = []

    def state(self, subject: Subject) -> State:
        """How a capability stands in the store for this very binding."""
        entries = read_store(self.store) if self.store else ()
        return status_of(subject.id, entries, turned(self.stage, subject).binding).state

    def verified(self, found: Found) -> bool:
        """Whether a choice that wins is verified already on this very binding: then it is not climbed again."""
        for contender in found.winners:
            subject = subject_for(found.item, contender.choice.kernel, contender.choice.value)
            state = self.state(subject)
            if state is State.VERIFIED:
                self.said[found.item.label] = f"{subject.id}: verified before"
            if state is not State.FAILED:
                return state is State.VERIFIED
        return False

    def alone(self, found: Found) -> bool:
        """Climb the winner of `found` to V2S, or the next one where it fails. Whether one got there, or is verified already."""
        for contender in found.winners:
            subject = subject_for(found.item, contender.choice.kernel, contender.choice.value)
            stage = turned(self.stage, subject)
            if self.state(subject) is State.FAILED:
                self._out(found.item, subject, "it failed before on this site; `verify` it again where that was mended")
                continue
            steps = self._climb(stage, self.folder, ALONE)
            self._keep(stage, steps)
            broken = _broken(steps)
            if broken is None:
                self.waiting.append((found.item, stage))
                self.said[found.item.label] = f"{subject.id} waits for a model run"
                return True
            self._out(found.item, subject, broken)
        return False

    def together(self) -> None:
        """One model run for all that got through alone; whoever fails by itself is taken out and the others run again."""
        number = 0
        while self.waiting:
            number += 1
            runs = self.folder / (f"together-{number}" if number > 1 else "together")
            every = tuple(stage.subject for _, stage in self.waiting)
            marks = tuple(dict.fromkeys(mark for _, stage in self.waiting for mark in stage.marks))
            seen = [(item, replace(s, together=every, marks=marks)) for item, s in self.waiting]
            results = [(item, stage, self._climb(stage, runs, TOGETHER)) for item, stage in seen]
            own = [(item, stage, r) for item, stage, r in results if _broken(r, _OWN)]
            if own:
                for item, stage, result in own:
                    self._keep(stage, result)
                    self._out(item, stage.subject, _broken(result, _OWN) or "")
                gone = {stage.subject.id for _, stage, _ in own}
                self.waiting = [(item, stage) for item, stage in self.waiting if stage.subject.id not in gone]
                self._again()
                continue
            if len(every) > 1 and any(_broken(result) for _, _, result in results):
                self._again()
                results = [
                    (item, stage, self._climb(stage, self.folder / "alone" / stage.subject.id, TOGETHER)) for item, stage in self.waiting
                ]
            for item, stage, result in results:
                self._finish(item, stage, result)
            self.waiting = []

    def _finish(self, item: Item, stage: Stage, result: Climb) -> None:
        self._keep(stage, result)
        if broken := _broken(result):
            self._out(item, stage.subject, broken)
            return
        left = [step.id for step in result.steps if step.result.outcome is Outcome.NOT_RUN]
        state = self.state(stage.subject).value if self.store else "not kept"
        self.said[item.label] = f"{stage.subject.id}: {state}" + (f" (not run: {', '.join(left)})" if left else "")
        last = result.step("V7")
        if last is not None and (last.result.why or last.result.figures) and not self.end_to_end:
            gain, ran = last.result.figures.get("TPOT gain"), last.result.outcome is not Outcome.NOT_RUN
            self.end_to_end = f"{last.result.outcome.value}: {last.result.why}" + (
                f" (a token {gain:.3f} times as fast)" if isinstance(gain, float) and ran else ""
            )

    def _again(self) -> None:
        """What the joint run said of anybody is not carried over."""
        for _, stage in self.waiting:
            for name in TOGETHER:
                (self._home(stage) / "rungs" / f"{name}.json").unlink(missing_ok=True)
                shutil.rmtree(self._home(stage) / "raw" / name, ignore_errors=True)

    def _home(self, stage: Stage) -> Path:
        return self.folder / "climbs" / stage.subject.id

    def _climb(self, stage: Stage, runs: Path, only: Sequence[str]) -> Climb:
        try:
            return climbed(stage, self._home(stage), runs, self.load, only, True)
        except LadderError as error:
            raise LadderError(f"{error} (--folder)") from None

    def _keep(self, stage: Stage, result: Climb) -> None:
        _, lost = keep(stage, self._home(stage), result, self.store)
        self.lost = self.lost or lost

    def _out(self, item: Item, subject: Subject, why: str) -> None:
        self.said[item.label] = f"{subject.id} is taken out: {why}"
        self.taken_out.append(f"{subject.id} is taken out: {why}")


def _broken(result: Climb, only: Sequence[str] = ()) -> str | None:
    """The first rung that failed, in one sentence; None where none did."""
    failed = [s for s in result.steps if s.result.outcome is Outcome.FAILED and (not only or s.id in only)]
    return f"{failed[0].id} failed: {failed[0].result.why}" if failed else None
