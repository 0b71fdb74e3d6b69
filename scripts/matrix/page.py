"""The matrix as Markdown, JSON and a plot (SVG, drawn here: no package is needed for bars)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from scripts.drift.contracts.model import BLOCK, INFO, REVIEW
from scripts.matrix.rows import Matrix, Row

__all__ = ["to_json", "to_markdown", "to_svg"]


def to_json(matrix: Matrix) -> str:
    """Everything, stable."""
    return json.dumps(asdict(matrix), indent=1, sort_keys=True) + "\n"


def to_markdown(matrix: Matrix) -> str:
    """The committed page."""
    rows = matrix.rows
    first, last = rows[0].version, rows[-1].version
    lines = [
        "# The release matrix",
        "",
        f"Written by `make matrix`; the pinned release is {matrix.pinned}. {len(rows)} releases, {first} to {last}, "
        "post-releases left out. No device and no compiler took part: patches are carried by git, predicates are evaluated "
        "by running upstream's own platform code for `gfx936` with torch and amdsmi replaced, the native build is what CMake "
        "configures for `gfx936` without a compiler.",
        "",
        f"**{matrix.open_blocks} unresolved BLOCK** with the series applied; conflicts on the way: {matrix.stopped or 'none'}.",
        "",
        "![BLOCK and REVIEW findings by release](matrix.svg)",
        "",
        "| release | patches carried | upstream as it is: BLOCK / REVIEW / INFO | with the series: BLOCK / REVIEW | native code for gfx936 | dispatch |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        mark = " (pin)" if row.version == matrix.pinned else ""
        up, left = row.upstream, row.carried
        lines.append(
            f"| {row.version}{mark} | {row.patches()} | {up[BLOCK]} / {up[REVIEW]} / {up[INFO]} | {_bold(left[BLOCK])} / {left[REVIEW]} "
            f"| {row.routing} | {row.dispatch or 'not run'} |"
        )
    lines += ["", "## What upstream opens or breaks for gfx936, and what becomes of it", ""]
    lines += ["| from | finding (upstream as it is) | with the series |", "|---|---|---|"]
    for key, sentence, version, fate in _fates(rows):
        lines.append(f"| {version} | {_cell(sentence)} (`{key.split(':')[0]}`) | {fate} |")
    lines += ["", "## What a reader decides (REVIEW, with the series), by the release that brought it", ""]
    for version, sentences in _reviews(rows):
        lines += [f"### {version}", "", *(f"- {_cell(s)}" for s in sentences), ""]
    if matrix.missing:
        lines += ["## Not run", "", *(f"- {what}: {why}" for what, why in sorted(matrix.missing.items())), ""]
    return "\n".join(lines).rstrip() + "\n"


def _fates(rows: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """(key, sentence, first release, fate) of every upstream BLOCK."""
    seen: dict[str, tuple[str, str]] = {}
    open_in: dict[str, list[str]] = {}
    for row in rows:
        for key, sentence in row.blocks.items():
            seen.setdefault(key, (sentence, row.version))
        for key, sentence in row.open_blocks.items():
            seen.setdefault(key, (sentence, row.version))
            open_in.setdefault(key, []).append(row.version)
    fates = []
    for key, (sentence, version) in seen.items():
        left = open_in.get(key)
        fates.append((key, sentence, version, f"**open** in {', '.join(left)}" if left else "closed"))
    return fates


def _reviews(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """REVIEW sentences, each at the first release that has it in this very form; a text that changed again is new again."""
    seen: set[tuple[str, str]] = set()
    found = []
    for row in rows:
        marked = {key: (key, row.marks.get(key, sentence)) for key, sentence in row.reviews.items()}
        fresh = [row.reviews[key] for key, mark in marked.items() if mark not in seen]
        seen.update(marked.values())
        if fresh:
            found.append((row.version, fresh))
    return found


def _bold(count: int) -> str:
    return f"**{count}**" if count else "0"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<").replace("_ON_", "\\_ON_")


def to_svg(matrix: Matrix) -> str:
    """Bars by release: upstream's BLOCKs, what the series leaves of them, and the REVIEWs left."""
    rows, step, height, left = matrix.rows, 34, 180, 40
    top = max([1, *(r.upstream[BLOCK] for r in rows), *(r.carried[REVIEW] for r in rows)])
    width = left + step * len(rows) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 90}" font-family="sans-serif" font-size="10">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    legend = (("#c0392b", "BLOCK, upstream as it is"), ("#000000", "BLOCK, with the series"), ("#7f8c8d", "REVIEW, with the series"))
    for i, (color, text) in enumerate(legend):
        parts.append(
            f'<rect x="{left + i * 170}" y="4" width="9" height="9" fill="{color}"/><text x="{left + 13 + i * 170}" y="12">{text}</text>'
        )
    for value in range(0, top + 1, max(1, top // 5)):
        y = 25 + height - value * height / top
        parts.append(
            f'<line x1="{left}" y1="{y:.1f}" x2="{width}" y2="{y:.1f}" stroke="#ddd"/><text x="{left - 6}" y="{y + 3:.1f}" text-anchor="end">{value}</text>'
        )
    for i, row in enumerate(rows):
        x = left + i * step
        for j, (value, color) in enumerate(
            ((row.upstream[BLOCK], "#c0392b"), (row.carried[BLOCK], "#000000"), (row.carried[REVIEW], "#7f8c8d"))
        ):
            bar = value * height / top
            parts.append(f'<rect x="{x + 3 + j * 9}" y="{25 + height - bar:.1f}" width="8" height="{bar:.1f}" fill="{color}"/>')
        parts.append(f'<text transform="translate({x + 18},{height + 38}) rotate(60)">{row.version}</text>')
    return "\n".join([*parts, "</svg>", ""])
