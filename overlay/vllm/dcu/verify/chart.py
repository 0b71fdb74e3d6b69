# SPDX-License-Identifier: Apache-2.0
"""Two small charts, bars with their range and a roofline, as SVG (always) and PNG (where Pillow is installed).  Standard library only.

A chart is a list of lines, boxes and texts in pixels; two short writers draw it. A plotting library would be a dependency of the served
product for two pictures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log10
from pathlib import Path
from xml.sax.saxutils import escape

__all__ = ["Bar", "Chart", "Point", "bars", "roofline", "write_chart"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 420, 230, 30, 50, 60
_INK, _SOFT, _KERNEL, _GENERIC = "#222222", "#bbbbbb", "#1f6f8b", "#c8553d"


@dataclass
class Chart:
    """Shapes in pixels: lines (x1, y1, x2, y2, colour), boxes (x, y, w, h, colour), texts (x, y, text, anchor)."""

    title: str
    lines: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    boxes: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    texts: list[tuple[float, float, str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Bar:
    """One bar: its label, median and range; `ours` colours it."""

    label: str
    median: float
    low: float
    high: float
    ours: bool


@dataclass(frozen=True)
class Point:
    """One shape: its label (empty: none is drawn), MB moved, GB/s, and whose it is."""

    label: str
    megabytes: float
    rate: float
    ours: bool


def bars(title: str, unit: str, values: Sequence[Bar]) -> Chart:
    """Horizontal bars from zero, each with a line over its range."""
    chart = Chart(title)
    top = max((v.high for v in values), default=1.0) or 1.0
    step = (_HEIGHT - _TOP - _BOTTOM) / max(len(values), 1)
    scale = (_WIDTH - _LEFT - _RIGHT - 90) / top
    for i, value in enumerate(values):
        y = _TOP + i * step + step * 0.15
        thick = step * 0.7
        chart.boxes.append((_LEFT, y, value.median * scale, thick, _KERNEL if value.ours else _GENERIC))
        middle = y + thick / 2
        chart.lines.append((_LEFT + value.low * scale, middle, _LEFT + value.high * scale, middle, _INK))
        chart.texts.append((_LEFT - 8, middle + 4, value.label, "end"))
        chart.texts.append((_LEFT + value.high * scale + 8, middle + 4, f"{value.median:.4g} {unit}", "start"))
    chart.lines.append((_LEFT, _TOP, _LEFT, _HEIGHT - _BOTTOM, _INK))
    return chart


def roofline(title: str, roofs: Sequence[tuple[str, float]], points: Sequence[Point]) -> Chart:
    """GB/s over the MB that a product moves (logarithmic), under the measured bandwidths `roofs` (name, GB/s).

    A matrix times one vector has 1 FLOP per byte whatever its shape: the usual axis would put every point in one place.
    """
    chart = Chart(title)
    low = min((p.megabytes for p in points), default=1.0) / 2
    high = max((p.megabytes for p in points), default=1.0) * 2
    top = 1.15 * max([rate for _, rate in roofs] + [p.rate for p in points])
    left, bottom, right = _LEFT / 2, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT

    def at(x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - log10(low)) / (log10(high) - log10(low))
        return left + across * (right - left), bottom - y / top * (bottom - _TOP)

    chart.lines += [(left, bottom, right, bottom, _INK), (left, bottom, left, _TOP, _INK)]
    for power in range(-3, 7):
        if low <= 10.0**power <= high:
            x, _ = at(10.0**power, 0)
            chart.lines.append((x, bottom, x, bottom + 5, _INK))
            chart.texts.append((x, bottom + 20, f"{10.0**power:g}", "middle"))
    for part in range(1, 5):
        _, y = at(low, top * part / 5)
        chart.lines.append((left - 5, y, left, y, _INK))
        chart.texts.append((left - 8, y + 4, f"{top * part / 5:.0f}", "end"))
    for name, rate in roofs:
        _, y = at(low, rate)
        chart.lines.append((left, y, right, y, _SOFT))
        chart.texts.append((left + 8, y - 5, f"{name}: {rate:.0f} GB/s", "start"))
    chart.texts += [((left + right) / 2, _HEIGHT - 14, "MB moved by one product", "middle"), (left, _TOP - 6, "GB/s", "end")]
    for i, point in enumerate(sorted(points, key=lambda p: p.megabytes)):
        x, y = at(point.megabytes, point.rate)
        chart.boxes.append((x - 4, y - 4, 8, 8, _KERNEL if point.ours else _GENERIC))
        if point.label:
            chart.texts.append((x, y + (24 if i % 4 < 2 else 40), point.label, "middle"))
    chart.boxes += [(right - 170, bottom - 44, 8, 8, _KERNEL), (right - 170, bottom - 24, 8, 8, _GENERIC)]
    chart.texts += [(right - 156, bottom - 36, "the kernel", "start"), (right - 156, bottom - 16, "F.linear", "start")]
    return chart


def write_chart(chart: Chart, folder: Path, name: str) -> tuple[str, ...]:
    """Write `name`.svg and, where Pillow is installed, `name`.png. Returns the names of the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.svg").write_text(_svg(chart), encoding="utf-8")
    return (f"{name}.svg", f"{name}.png") if _png(chart, folder / f"{name}.png") else (f"{name}.svg",)


def _svg(chart: Chart) -> str:
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="13">']
    lines += [
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="20" y="26" font-size="16">{escape(chart.title)}</text>',
    ]
    lines += [f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0.5):.1f}" height="{h:.1f}" fill="{c}"/>' for x, y, w, h, c in chart.boxes]
    lines += [f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="{e}" stroke-width="2"/>' for a, b, c, d, e in chart.lines]
    lines += [f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{a}" fill="{_INK}">{escape(t)}</text>' for x, y, t, a in chart.texts]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _png(chart: Chart, path: Path) -> bool:
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        return False
    scale = 2
    image = Image.new("RGB", (_WIDTH * scale, _HEIGHT * scale), "white")
    draw = ImageDraw.Draw(image)
    for x, y, w, h, colour in chart.boxes:
        draw.rectangle((x * scale, y * scale, (x + max(w, 0.5)) * scale, (y + h) * scale), fill=colour)
    for a, b, c, d, colour in chart.lines:
        draw.line((a * scale, b * scale, c * scale, d * scale), fill=colour, width=2 * scale)
    anchors = {"start": "ls", "end": "rs", "middle": "ms"}
    for x, y, text, anchor in [*chart.texts, (20.0, 26.0, chart.title, "start")]:
        draw.text((x * scale, y * scale), text, fill=_INK, anchor=anchors[anchor], font_size=13 * scale)
    image.save(path)
    return True
