# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report: one for each rung that measured times.  Standard library only."""

from pathlib import Path

from vllm.dcu.evidence.ladder import Climb, Measure
from vllm.dcu.verify.chart import Bar, bars, write_chart

__all__ = ["write_plots"]


def write_plots(climb: Climb, folder: Path) -> tuple[str, ...]:
    """Write a chart of each rung's times into `folder`. Returns the names of the files that the report should show."""
    shown: list[str] = []
    for step in climb.steps:
        times = {
            name: f for name, f in step.result.figures.items() if isinstance(f, Measure) and f.better == "lower" and f.unit in ("us", "ms")
        }
        if not times:
            continue
        label = f"{climb.binding.label}: " if climb.binding.simulated else ""
        unit = next(iter(times.values())).unit
        values = [
            Bar(name, f.median, f.low, f.high, "off" not in name and "linear" not in name) for name, f in times.items() if f.unit == unit
        ]
        written = write_chart(bars(f"{label}{step.id} {step.title}", unit, values), folder, f"{step.id.lower()}-times")
        shown.append(written[-1])
    return tuple(shown)
