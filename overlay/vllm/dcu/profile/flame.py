# SPDX-License-Identifier: Apache-2.0
"""A flame graph of a step: as collapsed stacks, which every viewer of flame graphs reads, and as one SVG that opens anywhere.

The viewers that are kept well load their own scripts, or are not Python's to install on a machine without a network. So the SVG is drawn
here, of rectangles with titles: it holds no script and names no address.  Standard library only.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from vllm.dcu.evidence.ladder import write_whole
from vllm.dcu.records.strict import plain

__all__ = ["write_flame"]

_WIDTH, _ROW, _CHAR = 1200.0, 17, 6.6
_LEAST = 0.3
"""Pixels: narrower boxes are left out of the picture, not of the stacks."""
_COLOURS = ("#e6a15c", "#e0885a", "#d9a441", "#e3b778", "#d98e73")
_IDLE = "#d5d8dc"

Stacks = Mapping[tuple[str, ...], float]


def write_flame(stacks: Stacks, title: str, folder: Path, name: str) -> None:
    """Write `flame-NAME.svg` and `flame-NAME.txt` (collapsed stacks, nanoseconds).

    Raises:
        OSError: the folder cannot be written.
    """
    lines = [f"{';'.join(plain(part, 300).replace(';', ',') for part in stack)} {us * 1e3:.0f}" for stack, us in sorted(stacks.items())]
    write_whole(folder / f"flame-{name}.txt", "\n".join(lines) + "\n")
    write_whole(folder / f"flame-{name}.svg", _svg(stacks, title))


def _svg(stacks: Stacks, title: str) -> str:
    total = sum(stacks.values()) or 1.0
    boxes = list(_boxes(stacks, 0, 0.0, "all of the step", _WIDTH / total))
    height = (max(depth for _, depth, _, _ in boxes) + 3) * _ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH:.0f}" height="{height}" font-family="monospace" font-size="11">',
        f'<text x="4" y="13">{escape(plain(title, 160))}</text>',
    ]
    for name, depth, x, us in boxes:
        width = us * _WIDTH / total
        shown = name[: int(width / _CHAR)] if width > 3 * _CHAR else ""
        colour = _IDLE if name.startswith("(nothing runs") else _COLOURS[sum(map(ord, name)) % len(_COLOURS)]
        y = (depth + 1) * _ROW + 4
        parts.append(
            f'<g><title>{escape(name)}: {us:.1f} us, {100 * us / total:.2f}%</title><rect x="{x:.2f}" y="{y}" width="{width:.2f}" '
            f'height="{_ROW - 1}" fill="{colour}" stroke="white" stroke-width="0.5"/><text x="{x + 2:.2f}" y="{y + 12}">{escape(shown)}</text></g>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _boxes(stacks: Stacks, depth: int, x: float, name: str, scale: float) -> Iterator[tuple[str, int, float, float]]:
    """(name, depth, left edge, microseconds) of each box, a caller above what it called."""
    yield name, depth, x, sum(stacks.values())
    below: dict[str, dict[tuple[str, ...], float]] = {}
    for stack, us in stacks.items():
        if stack:
            inner = below.setdefault(plain(stack[0], 300), {})
            inner[stack[1:]] = inner.get(stack[1:], 0.0) + us
    for child, inner in sorted(below.items(), key=lambda item: -sum(item[1].values())):
        us = sum(inner.values())
        if us * scale >= _LEAST:
            yield from _boxes(inner, depth + 1, x, child, scale)
        x += us * scale
