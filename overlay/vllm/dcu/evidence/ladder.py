# SPDX-License-Identifier: Apache-2.0
"""The evidence ladder: rungs, what each of them showed, and the engine that climbs them.  Standard library only.

`verify` and the rehearsal climb with this engine. They differ in their rungs, in where those run, and in what a result may
open: that is for `evidence.py`, which asks the binding. A rung proves itself only, and says in `border` what it does not prove.

A folder holds one climb: `rungs/<id>.json` is written whole after each rung, so that a killed climb is resumed where it was, and
`raw/<id>/` keeps whatever a rung looked at. A folder of another device or toolchain is never resumed.
"""

import json
import math
import os
import re
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from vllm.dcu.evidence.binding import Binding
from vllm.dcu.records.record import RUNGS
from vllm.dcu.records.strict import StrictError, plain
from vllm.dcu.records.typed import Between, Words, dump, read_json

__all__ = [
    "Climb",
    "Figure",
    "LadderError",
    "Measure",
    "Outcome",
    "Result",
    "Rung",
    "Step",
    "Trial",
    "climb",
    "failed",
    "measure",
    "not_run",
    "passed",
    "write_whole",
]

_ID = re.compile(r"[A-Z][A-Z0-9]*")
_KEPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_BYTES = 4 << 20

Date = Annotated[str, Words(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "a date such as 2026-11-30T08:00:00Z")]
"""When something ran, UTC."""


class LadderError(ValueError):
    """The climb cannot begin. The message says why and what to do."""


class Outcome(Enum):
    """What a rung showed. There is no fourth: what did not run is never green, and an exception is a failure."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Measure:
    """A measured figure: the median of `runs` values, which lay between `low` and `high`.

    `better` is `lower` or `higher`; a comparison with a baseline uses the spread as the noise.
    """

    median: float
    low: float
    high: float
    runs: int
    unit: str
    better: str

    measure: Literal[True] = True  # what tells it from an object of another kind in a file

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.low, self.median, self.high))):
            raise ValueError("a measure is finite")
        if self.better not in ("lower", "higher"):
            raise ValueError(f"better is {self.better!r}, neither 'lower' nor 'higher'")
        if not self.low <= self.median <= self.high or self.runs < 1:
            raise ValueError("a measure is the median of at least one value, between the lowest and the highest")


def measure(values: Sequence[float], unit: str = "us", better: str = "lower") -> Measure:
    """Median and range; the lowest and highest tenth of ten or more values are left out, as one interrupt is no spread."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    kept = ordered[cut : len(ordered) - cut]
    return Measure(statistics.median(kept), kept[0], kept[-1], len(ordered), unit, better)


Figure = bool | int | float | str | Measure


@dataclass(frozen=True)
class Result:
    """What one rung showed. `why` is one sentence; a rung that failed or did not run has one.

    A kernel's own words and numbers end here: a text becomes one printable line, and a figure that is not finite its name.
    """

    outcome: Outcome
    why: str = ""
    figures: Mapping[str, Figure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.outcome is not Outcome.PASSED and not self.why.strip():
            raise ValueError(f"a rung that is {self.outcome.value!r} says why")
        object.__setattr__(self, "why", plain(self.why, 1000))
        object.__setattr__(self, "figures", {plain(name): _tame(value) for name, value in self.figures.items()})


def _tame(value: Figure) -> Figure:
    if isinstance(value, str):
        return plain(value, 1000)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def passed(figures: Mapping[str, Figure], why: str = "") -> Result:
    """It ran and showed what it should. Figures are required: a pass without one showed nothing.

    Raises:
        ValueError: there is no figure.
    """
    if not figures:
        raise ValueError("a rung that passed has at least one figure")
    return Result(Outcome.PASSED, why, dict(figures))


def failed(why: str, figures: Mapping[str, Figure] | None = None) -> Result:
    """It ran and showed a fault."""
    return Result(Outcome.FAILED, why, dict(figures or {}))


def not_run(why: str, figures: Mapping[str, Figure] | None = None) -> Result:
    """It could not run here. `why` goes on after the words `not run: `."""
    return Result(Outcome.NOT_RUN, why, dict(figures or {}))


@dataclass(frozen=True)
class Trial:
    """What a rung gets: where it runs, a folder for its raw output, and a line of progress for a person."""

    binding: Binding
    raw: Path
    say: Callable[[str], None]

    def keep(self, name: str, data: bytes | str) -> Path:
        """Keep raw output under `name`, which is a plain file name. Returns its path."""
        if not _KEPT.fullmatch(name):
            raise ValueError(f"{name!r} is not a plain file name")
        self.raw.mkdir(parents=True, exist_ok=True)
        path = self.raw / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path


@dataclass(frozen=True)
class Rung:
    """One rung.

    Attributes:
        id: stable for ever (`V2`): tickets, baselines and the evidence store carry it.
        title: what it does, for people.
        proves: the record's rung that it is evidence for (`record.RUNGS`), or empty where it is about the build.
        border: what it does not prove, one sentence.
        run: does it. An exception is a failure whose traceback is kept.
        needs: rungs whose failure makes this one pointless.
    """

    id: str
    title: str
    proves: str
    border: str
    run: Callable[[Trial], Result]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """A rung that was climbed: its words, its result, how long it took, and its raw output (paths in the climb's folder)."""

    id: str
    title: str
    proves: str
    border: str
    result: Result
    seconds: Annotated[float, Between(0, 1e9)]
    date: Date
    raw: tuple[str, ...]
    resumed: bool = False


@dataclass(frozen=True)
class Climb:
    """A whole climb. `tool` is who climbed (`verify`, `rehearse`), `subject` what about (a record's id, or a sentence)."""

    tool: str
    subject: str
    binding: Binding
    started: str
    steps: tuple[Step, ...]

    def step(self, ident: str) -> Step | None:
        """The step of one rung, or None where it is not part of this climb."""
        return next((step for step in self.steps if step.id == ident), None)

    @property
    def green(self) -> bool:
        """Whether every rung ran and passed."""
        return bool(self.steps) and all(step.result.outcome is Outcome.PASSED for step in self.steps)


def climb(
    rungs: Sequence[Rung],
    *,
    tool: str,
    subject: str,
    binding: Binding,
    folder: Path,
    only: Sequence[str] = (),
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Climb:
    """Climb `rungs` in order and keep everything in `folder`.

    Args:
        only: ids to climb; the others appear as `not run`. Empty: all.
        resume: take over what `folder` already holds of the same tool, subject and binding, except what did not run.

    Raises:
        LadderError: a rung is badly stated, an id of `only` is unknown, or `folder` holds another climb.
    """
    _check(rungs, only)
    started = _begin(folder, _Head(1, tool, subject, binding, _now()), resume)
    steps: list[Step] = []
    for number, rung in enumerate(rungs, 1):
        step = _resumed(folder, rung) if resume else None
        if step is None:
            step = _climb_one(rung, steps, binding, folder, only, say, f"[{number}/{len(rungs)}]")
            write_whole(folder / "rungs" / f"{rung.id}.json", _json(step))
        steps.append(step)
        why = f": {step.result.why}" if step.result.why else ""
        say(f"[{number}/{len(rungs)}] {rung.id} {step.result.outcome.value}{' (resumed)' if step.resumed else ''}{why}")
    return Climb(tool, subject, binding, started, tuple(steps))


def _check(rungs: Sequence[Rung], only: Sequence[str]) -> None:
    seen: set[str] = set()
    for rung in rungs:
        if not _ID.fullmatch(rung.id) or rung.id in seen:
            raise LadderError(f"{rung.id!r} cannot be the id of a rung, or stands twice")
        if rung.proves and rung.proves not in RUNGS:
            raise LadderError(f"rung {rung.id} proves {rung.proves!r}, which is not one of {', '.join(RUNGS)}")
        if not rung.border.strip() or not rung.title.strip():
            raise LadderError(f"rung {rung.id} has no title, or does not say what it leaves unproved")
        if missing := [need for need in rung.needs if need not in seen]:
            raise LadderError(f"rung {rung.id} needs {', '.join(missing)}, which does not stand before it")
        seen.add(rung.id)
    if unknown := [ident for ident in only if ident not in seen]:
        raise LadderError(f"there is no rung {', '.join(unknown)}: the rungs are {', '.join(r.id for r in rungs)}")


@dataclass(frozen=True)
class _Head:
    """`climb.json`: whose climb a folder holds."""

    format: Literal[1]
    tool: str
    subject: str
    binding: Binding
    started: Date


def _begin(folder: Path, head: _Head, resume: bool) -> str:
    file = folder / "climb.json"
    try:
        found = read_json(_Head, file, _MOST_BYTES)
    except FileNotFoundError:
        write_whole(file, _json(head))
        return head.started
    except StrictError as error:
        raise LadderError(f"{error}: this is no folder of a climb, or a damaged one; name a fresh folder") from None
    if not resume:
        raise LadderError(f"{folder} holds a climb already: name a fresh folder, or go on with --resume")
    if replace(found, started=head.started) != head:
        raise LadderError(
            f"{folder} holds a climb of another subject, device or toolchain: results are not carried over; name a fresh folder"
        )
    return str(found.started)


def _climb_one(
    rung: Rung,
    before: Sequence[Step],
    binding: Binding,
    folder: Path,
    only: Sequence[str],
    say: Callable[[str], None],
    place: str,
) -> Step:
    raw = folder / "raw" / rung.id
    begun, date = time.monotonic(), _now()
    broken = [s.id for s in before if s.id in rung.needs and s.result.outcome is Outcome.FAILED]
    if only and rung.id not in only:
        result = not_run("it was not asked for (--rung)")
    elif broken:
        result = not_run(f"{', '.join(broken)} failed, and this would be shown about something that is known to be wrong")
    else:
        say(f"{place} {rung.id} {rung.title} ...")
        try:
            result = rung.run(Trial(binding, raw, say))
        except Exception as error:
            raw.mkdir(parents=True, exist_ok=True)
            (raw / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            result = failed(f"it raised {type(error).__name__}: {first}")
    kept = tuple(sorted(str(p.relative_to(folder)) for p in raw.rglob("*") if p.is_file())) if raw.is_dir() else ()
    return Step(rung.id, rung.title, rung.proves, rung.border, result, round(time.monotonic() - begun, 3), date, kept)


def _resumed(folder: Path, rung: Rung) -> Step | None:
    """What `folder` holds of `rung`; None where that did not run, or is not whole."""
    try:
        step: Step = read_json(Step, folder / "rungs" / f"{rung.id}.json", _MOST_BYTES)
    except (FileNotFoundError, StrictError):
        return None
    if step.id != rung.id or step.result.outcome is Outcome.NOT_RUN:
        return None
    return replace(step, title=rung.title, proves=rung.proves, border=rung.border, resumed=True)


def write_whole(path: Path, text: str) -> None:
    """Write `text` so that a reader, or a killed writer, leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _json(data: Any) -> str:
    return json.dumps(dump(data), indent=1) + "\n"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
