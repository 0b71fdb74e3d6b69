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
    """One point of a roofline: FLOP per byte, GFLOP/s, and whose it is."""

    label: str
    intensity: float
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


def roofline(title: str, bandwidth: float, points: Sequence[Point]) -> Chart:
    """GFLOP/s over FLOP/byte, both logarithmic, with the line of a measured bandwidth in GB/s."""
    chart = Chart(title)
    xs = [p.intensity for p in points] or [1.0]
    low, high = min(xs) / 4, max(xs) * 4
    floor, ceiling = min([p.rate for p in points] or [1.0]) / 4, high * bandwidth * 1.5

    def at(x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - log10(low)) / (log10(high) - log10(low))
        up = (log10(y) - log10(floor)) / (log10(ceiling) - log10(floor))
        return _LEFT / 2 + across * (_WIDTH - _LEFT / 2 - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    left, bottom = at(low, floor)
    right, top = at(high, ceiling)
    chart.lines += [(left, bottom, right, bottom, _INK), (left, bottom, left, top, _INK)]
    begin = max(low, floor / bandwidth)
    chart.lines.append((*at(begin, begin * bandwidth), *at(high, high * bandwidth), _SOFT))
    chart.texts.append((right, top + 12, f"measured copy: {bandwidth:.0f} GB/s", "end"))
    chart.texts += [
        ((left + right) / 2, _HEIGHT - 18, "FLOP per byte (logarithmic)", "middle"),
        (left, _TOP - 8, "GFLOP/s (logarithmic)", "start"),
    ]
    for point in points:
        x, y = at(point.intensity, max(point.rate, floor))
        chart.boxes.append((x - 4, y - 4, 8, 8, _KERNEL if point.ours else _GENERIC))
        chart.texts.append((x + 8, y + 4, point.label, "start"))
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
