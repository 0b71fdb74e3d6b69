# SPDX-License-Identifier: Apache-2.0
"""What `tune` found, for people and tools: a table, Markdown, JSON, and a picture where matplotlib is installed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.dcu.evidence.ladder import Measure
from vllm.dcu.records.typed import dump
from vllm.dcu.tune.found import Found
from vllm.dcu.tune.plan import LINEAR
from vllm.dcu.verify.chart import Bar, bars, missing, write_chart

__all__ = ["Report", "Row", "as_json", "as_markdown", "as_text", "draw", "rows", "saved"]

FORMAT = 1


@dataclass(frozen=True)
class Report:
    """A run of `tune`.

    Attributes:
        label: the device, for people.
        read: the read rate measured here, GB/s: what the floor is stated of.
        found: what was measured, in the plan's order.
        standing: an item's label -> what became of its winner, one sentence.
        notes: what is worth saying besides, one sentence each.
        end_to_end: what V7 measured of all winners together, or why it did not run.
    """

    label: str
    read: Measure
    found: tuple[Found, ...]
    standing: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    end_to_end: str = ""


@dataclass(frozen=True)
class Row:
    """One weight and N.

    Attributes:
        floor: microseconds that reading the bytes takes at the measured rate.
        linear, mine: microseconds of `F.linear` and of the winner (the same figure where `F.linear` stays).
        rate: GB/s of the winner; `share`: of the floor, 1 where it is as fast as a read.
        error, linear_error: norm-wise, against float64.
        saved: milliseconds of one decode step, all calls of it together.
        why: why `F.linear` stays, or what became of the winner.
    """

    name: str
    m: int
    k: int
    n: int
    dtype: str
    calls: int
    bytes: int
    floor: float
    linear: Measure
    winner: str
    mine: Measure
    rate: float
    share: float
    error: float
    linear_error: float
    saved: float
    why: str


def rows(report: Report) -> tuple[Row, ...]:
    """The table's rows."""
    return tuple(_row(found, report) for found in report.found)


def _row(found: Found, report: Report) -> Row:
    item, best = found.item, found.winners[0] if found.winners else found.linear
    floor, took = item.bytes / report.read.median / 1e3, best.time.median
    return Row(
        item.name, item.m, item.k, item.n, item.dtype, item.calls, item.bytes, floor, found.linear.time, best.choice.name, best.time,
        item.bytes / took / 1e3, floor / took, best.error, found.linear.error, item.calls * (found.linear.time.median - took) / 1e3,
        found.why or report.standing.get(item.label, ""),
    )  # fmt: skip


def saved(found: Sequence[Row]) -> dict[int, float]:
    """N -> predicted milliseconds of a decode step with N rows."""
    return {n: sum(row.saved for row in found if row.n == n) for n in sorted({row.n for row in found})}


_HEAD = (
    "Linear",
    "M x K",
    "N",
    "MB",
    "floor us",
    "F.linear us",
    "winner",
    "us",
    "GB/s",
    "of floor",
    "error",
    "F.linear's",
    "calls",
    "saved ms a step",
)


def _cells(row: Row) -> tuple[str, ...]:
    def us(time: Measure) -> str:
        return f"{time.median:.2f} ({time.low:.2f}-{time.high:.2f})"

    mine = us(row.mine) if row.winner != LINEAR else "stays"
    return (
        row.name, f"{row.m} x {row.k}", str(row.n), f"{row.bytes / 1e6:.1f}", f"{row.floor:.2f}", us(row.linear), row.winner, mine, f"{row.rate:.0f}",
        f"{row.share:.0%}", f"{row.error:.2e}", f"{row.linear_error:.2e}", str(row.calls), f"{row.saved:.3f}",
    )  # fmt: skip


def _ends(report: Report, found: Sequence[Row]) -> list[str]:
    sums = [f"Predicted for a step of N={n}: {ms:.3f} ms less." for n, ms in saved(found).items()]
    said = [f"{row.m} x {row.k}, N={row.n}: {row.why}" for row in found if row.why]
    return [*sums, *([f"End to end: {report.end_to_end}"] if report.end_to_end else []), *said, *report.notes]


def as_text(report: Report) -> str:
    """The table for a terminal."""
    found = rows(report)
    table = [_HEAD, *(_cells(row) for row in found)]
    widths = [max(len(line[i]) for line in table) for i in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join([f"device {report.label}; measured read {report.read.median:.0f} GB/s", "", *lines, "", *_ends(report, found)])


def as_markdown(report: Report, title: str = "tune", pictures: Sequence[str] = ()) -> str:
    """The table for a page."""
    found = rows(report)
    lines = [f"# {title}", "", f"Device: {report.label}. Measured read: {report.read.median:.0f} GB/s.", ""]
    lines += [f"| {' | '.join(_HEAD)} |", "|" + "---|" * len(_HEAD)]
    lines += [f"| {' | '.join(_cells(row))} |" for row in found]
    lines += ["", *(f"- {line}" for line in _ends(report, found))]
    return "\n".join([*lines, *(f"\n![{name}]({name})" for name in pictures)]) + "\n"


def as_json(report: Report) -> dict[str, Any]:
    """All of it as plain data."""
    found = rows(report)
    return {
        "format": FORMAT,
        "device": report.label,
        "read": dump(report.read),
        "rows": [dump(row) for row in found],
        "measured": [dump(one) for one in report.found],
        "saved_ms": {str(n): ms for n, ms in saved(found).items()},
        "end_to_end": report.end_to_end,
        "notes": list(report.notes),
    }


def draw(report: Report, folder: Path, name: str = "tune") -> tuple[str, ...]:
    """Write the picture into `folder`: how near each Linear comes to a plain read of its bytes. Returns the files; none without matplotlib."""
    if missing():
        return ()
    found = []
    for row in rows(report):
        label = f"{row.m} x {row.k}, N={row.n}"
        found.append(Bar(label, LINEAR, row.bytes / row.linear.median / 1e3))
        if row.winner != LINEAR:
            found.append(Bar(label, "the winner", row.rate))
    if not found:
        return ()
    title = f"Longer is faster: GB/s of each Linear against a plain read, {report.label}"
    return write_chart(bars(title, "GB/s", found, [("measured read", report.read.median)]), folder, name)
