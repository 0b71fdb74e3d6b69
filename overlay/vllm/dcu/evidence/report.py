# SPDX-License-Identifier: Apache-2.0
"""The report of a climb: JSON for tools, Markdown for a ticket, and what got worse since an earlier one.  Standard library only.

`report.json` is `{"format": 2, "tool", "subject", "binding", "started", "steps": [...]}`; a step holds `id`, `title`, `proves`, `border`,
`result` (`outcome`, `why`, `figures`), `seconds`, `date`, `raw`, `resumed`. A measured figure is `{"measure": true, "median", "low", "high", "runs", "unit", "better"}`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vllm.dcu.evidence.ladder import Climb, Figure, Measure, Outcome, write_whole
from vllm.dcu.records.strict import StrictError, parse_json, read_bytes
from vllm.dcu.records.typed import dump, load, take

__all__ = ["Regression", "ReportError", "as_json", "as_markdown", "compare", "load_report", "shown", "write_report"]

FORMAT = 2
_MOST_BYTES = 4 << 20
_MARK = {Outcome.PASSED: "passed", Outcome.FAILED: "**FAILED**", Outcome.NOT_RUN: "not run"}


class ReportError(ValueError):
    """A file is not a report of this format. The message says what is wrong and what to do."""


def as_json(climb: Climb) -> dict[str, Any]:
    """The climb as plain data that `load_report` reads back."""
    return {"format": FORMAT, **dump(climb)}


def load_report(path: Path) -> Climb:
    """Read `report.json`.

    Raises:
        ReportError: it is missing, damaged, or of another format.
    """
    try:
        data = parse_json(read_bytes(path, _MOST_BYTES))
        take(Literal[2], data, "format")
        found: Climb = load(Climb, data)
    except FileNotFoundError:
        raise ReportError(f"{path} is not there: give the report.json of an earlier climb") from None
    except StrictError as error:
        raise ReportError(f"{error.within(path)}: give the report.json of an earlier climb of one build") from None
    return found


def shown(figure: Figure) -> str:
    """A figure for people."""
    if isinstance(figure, Measure):
        return f"{figure.median:.4g} {figure.unit} (median of {figure.runs}, {figure.low:.4g} to {figure.high:.4g})"
    if isinstance(figure, bool):
        return "yes" if figure else "no"
    return f"{figure:.4g}" if isinstance(figure, float) else str(figure)


def as_markdown(climb: Climb, notes: Sequence[str] = (), plots: Sequence[str] = ()) -> str:
    """The report for people.

    Args:
        notes: sentences for its head: what the climb opened or did not, and why.
        plots: file names of pictures beside the report.
    """
    binding = climb.binding
    lines = [f"# {climb.tool}: {climb.subject}", ""]
    if binding.simulated:
        lines += [
            f"**Not a DCU: {binding.simulated}. Nothing in this report is evidence about hardware, and it opens no capability there.**",
            "",
        ]
    lines += [f"{note}  " for note in notes] + ([""] if notes else [])
    lines += ["| rung | verdict | seconds | why |", "|---|---|---|---|"]
    for step in climb.steps:
        again = " (resumed)" if step.resumed else ""
        lines.append(
            f"| {step.id} {_cell(step.title)} | {_MARK[step.result.outcome]}{again} | {step.seconds:.1f} | {_cell(step.result.why)} |"
        )
    lines += ["", "| bound to | |", "|---|---|"]
    flat = dump(binding)
    flat |= flat.pop("toolchain")
    lines += [f"| {name} | {_cell(value) or 'unknown'} |" for name, value in flat.items() if value or name != "simulated"]
    for step in climb.steps:
        lines += ["", f"## {step.id} {step.title}", "", f"Verdict: {_MARK[step.result.outcome]}, {step.date}."]
        lines += [step.result.why] if step.result.why else []
        if step.result.figures:
            lines += ["", "| figure | |", "|---|---|"]
            lines += [f"| {_cell(name)} | {_cell(shown(figure))} |" for name, figure in step.result.figures.items()]
        lines += ["", f"Does not prove: {step.border}"]
        lines += [f"Raw output: {', '.join(f'`{name}`' for name in step.raw)}."] if step.raw else []
    lines += [""] + [f"![{name}]({name})" for name in plots]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def write_report(climb: Climb, folder: Path, notes: Sequence[str] = (), plots: Sequence[str] = ()) -> Path:
    """Write `report.json` and `report.md` into `folder`. Returns the path of the Markdown.

    Raises:
        OSError: the folder cannot be written.
    """
    write_whole(folder / "report.json", json.dumps(as_json(climb), indent=1) + "\n")
    path = folder / "report.md"
    write_whole(path, as_markdown(climb, notes, plots))
    return path


@dataclass(frozen=True)
class Regression:
    """One thing that got worse: the rung, and a sentence."""

    rung: str
    what: str


def compare(before: Climb, now: Climb) -> tuple[Regression, ...]:
    """What is worse in `now` than in `before`: rungs that passed and do not any more, and losses beyond the measured noise.

    A loss counts where the two ranges do not even touch: then neither run's own spread explains it.
    """
    found: list[Regression] = []
    for old in before.steps:
        if old.result.outcome is not Outcome.PASSED:
            continue
        new = now.step(old.id)
        if new is None:
            found.append(Regression(old.id, "passed before and is not part of this climb"))
            continue
        if new.result.outcome is not Outcome.PASSED:
            found.append(Regression(old.id, f"passed before, now {new.result.outcome.value}: {new.result.why}"))
        found += _losses(old.id, old.result.figures, new.result.figures)
    return tuple(found)


def _losses(rung: str, before: Mapping[str, Figure], now: Mapping[str, Figure]) -> list[Regression]:
    found: list[Regression] = []
    for name, old in before.items():
        new = now.get(name)
        if not isinstance(old, Measure):
            continue
        if not isinstance(new, Measure):
            found.append(Regression(rung, f"{name} was measured before and is not now"))
        elif (new.unit, new.better) != (old.unit, old.better):
            found.append(Regression(rung, f"{name} was in {old.unit}, now in {new.unit}: they cannot be compared"))
        elif (new.low > old.high) if old.better == "lower" else (new.high < old.low):
            found.append(Regression(rung, f"{name}: {shown(old)} before, {shown(new)} now, beyond the noise of both"))
    return found
