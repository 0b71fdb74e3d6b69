# SPDX-License-Identifier: Apache-2.0
"""Bar charts as SVG and PNG, drawn by matplotlib, which vLLM's `bench` extra brings; without it there are tables and no pictures.

The bytes of an SVG depend on its data and on matplotlib's version, and on nothing else.
"""

import importlib.util
import io
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.dcu.evidence.ladder import Climb, Measure

__all__ = ["Bar", "as_svg", "bars", "missing", "write_chart", "write_plots"]

_COLOURS = ("#1f6f8b", "#c8553d", "#7f8c8d")
_FIXED: Any = {"svg.hashsalt": "vllm.dcu", "svg.fonttype": "none", "font.size": 9}


@dataclass(frozen=True)
class Bar:
    """One bar: its row, the series that colours it, its value, and the range of what was measured (None: a count)."""

    row: str
    series: str
    value: float
    range: tuple[float, float] | None = None


def missing() -> str:
    """Why no picture can be drawn here, one sentence; empty where one can."""
    return "" if importlib.util.find_spec("matplotlib") else "No pictures: matplotlib is not installed here; the tables have every figure."


def bars(title: str, axis: str, found: Sequence[Bar], marks: Sequence[tuple[str, float]] = ()) -> Any:
    """A matplotlib Figure: horizontal bars from zero, row by row, each with its value, and `marks` (name, value) as lines across.

    Raises:
        ImportError: matplotlib is missing.
    """
    import matplotlib
    from matplotlib.figure import Figure

    rows, series = (list(dict.fromkeys(names)) for names in ([bar.row for bar in found], [bar.series for bar in found]))
    most = max(Counter(bar.row for bar in found).values())
    thick = 0.84 / most
    # The place of a bar: its row, and beside the bars of that row that stand before it.
    before = [sum(other.row == bar.row for other in found[:i]) for i, bar in enumerate(found)]
    places = [rows.index(bar.row) - 0.42 + (place + 0.5) * thick for bar, place in zip(found, before, strict=True)]
    with matplotlib.rc_context(_FIXED):
        figure = Figure(figsize=(9, 1.5 + 0.19 * (most + 0.4) * len(rows)), layout="constrained")
        figure.suptitle(textwrap.fill(title, 90))
        axes = figure.add_subplot(xlabel=axis)
        for name, colour in zip(series, _COLOURS, strict=False):
            mine = [
                (place, bar, bar.range or (bar.value, bar.value)) for place, bar in zip(places, found, strict=True) if bar.series == name
            ]
            axes.barh([place for place, _, _ in mine], [bar.value for _, bar, _ in mine], thick, label=name, color=colour)
            ends = [max(bar.value, high) for _, bar, (_, high) in mine]
            axes.hlines([p for p, _, _ in mine], [low for _, _, (low, _) in mine], ends, color="#222222")
            for end, (place, bar, _) in zip(ends, mine, strict=True):
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # a mark behind a number does not strike it out
                axes.annotate(f"{bar.value:.4g}", (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8, bbox=box)
        for (name, value), style in zip(marks, ("--", ":", "-."), strict=False):
            axes.axvline(value, linestyle=style, color="#222222", label=f"{name}: {value:.0f}", zorder=0)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.margins(x=0.08)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return figure


def as_svg(figure: Any) -> str:
    """The figure as one line of SVG."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(_FIXED):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"\s*\n\s*", " ", buffer.getvalue()).strip() + "\n"


def write_chart(figure: Any, folder: Path, name: str) -> tuple[str, str]:
    """Write `name`.svg and `name`.png into `folder`. Returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.svg").write_text(as_svg(figure), encoding="utf-8")
    figure.savefig(folder / f"{name}.png", dpi=150)
    return f"{name}.svg", f"{name}.png"


def write_plots(climb: Climb, folder: Path) -> tuple[str, ...]:
    """Write a chart of each rung's times into `folder`. Returns the files that the report should show: none without matplotlib."""
    shown: list[str] = []
    for step in () if missing() else climb.steps:
        times = {n: f for n, f in step.result.figures.items() if isinstance(f, Measure) and f.better == "lower" and f.unit in ("us", "ms")}
        if times:
            label = f"{climb.binding.label}: " if climb.binding.simulated else ""
            unit = next(iter(times.values())).unit
            found = [
                Bar(name, "F.linear" if "off" in name or "linear" in name else "the kernel", f.median, (f.low, f.high))
                for name, f in times.items()
                if f.unit == unit
            ]
            shown.append(write_chart(bars(f"{label}{step.id} {step.title}", unit, found), folder, f"{step.id.lower()}-times")[1])
    return tuple(shown)
