# SPDX-License-Identifier: Apache-2.0
"""The report of a climb: JSON for tools, Markdown for a ticket, and what got worse since an earlier one.  Standard library only.

`report.json` is `{"format": 1, "tool", "subject", "binding", "started", "steps": [...]}`; a step holds `id`, `title`, `proves`, `border`,
`outcome`, `why`, `figures`, `seconds`, `date`, `raw`. A measured figure is `{"measure": true, "median", "low", "high", "runs", "unit", "better"}`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.dcu.evidence.binding import dump_binding, load_binding
from vllm.dcu.evidence.ladder import Climb, Figure, Measure, Outcome, Step, dump_result, load_result, write_whole

__all__ = ["Regression", "ReportError", "as_json", "as_markdown", "compare", "load_report", "shown", "write_report"]

FORMAT = 1
_MARK = {Outcome.PASSED: "passed", Outcome.FAILED: "**FAILED**", Outcome.NOT_RUN: "not run"}


class ReportError(ValueError):
    """A file is not a report of this format. The message says what is wrong and what to do."""


def as_json(climb: Climb) -> dict[str, Any]:
    """The climb as plain data that `load_report` reads back."""
    return {
        "format": FORMAT,
        "tool": climb.tool,
        "subject": climb.subject,
        "binding": dump_binding(climb.binding),
        "started": climb.started,
        "steps": [_dump(step) for step in climb.steps],
    }


def _dump(step: Step) -> dict[str, Any]:
    words = {name: getattr(step, name) for name in ("id", "title", "proves", "border", "seconds", "date", "resumed")}
    return {**words, **dump_result(step.result), "raw": list(step.raw)}


def load_report(path: Path) -> Climb:
    """Read `report.json`.

    Raises:
        ReportError: it is missing, damaged, or of another format.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ReportError(f"{path} has format {data['format']!r}, this build reads {FORMAT}: climb again with one build")
        steps = tuple(
            Step(
                id=str(row["id"]),
                title=str(row["title"]),
                proves=str(row["proves"]),
                border=str(row["border"]),
                result=load_result(row),
                seconds=float(row["seconds"]),
                date=str(row["date"]),
                raw=tuple(row["raw"]),
                resumed=bool(row.get("resumed", False)),
            )
            for row in data["steps"]
        )
        return Climb(data["tool"], data["subject"], load_binding(data["binding"]), data["started"], steps)
    except ReportError:
        raise
    except OSError as error:
        raise ReportError(f"{path} cannot be read ({error.strerror}): give the report.json of an earlier climb") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path} is not a report ({type(error).__name__}: {error}): give the report.json of an earlier climb") from None


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
    flat = {**dump_binding(binding)}
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
