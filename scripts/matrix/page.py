"""The matrix as Markdown, JSON and a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from vllm.dcu.verify import chart

from scripts.common import errors
from scripts.drift.contracts.model import BLOCK, INFO, REVIEW
from scripts.matrix.rows import Matrix, Row

__all__ = ["from_json", "to_json", "to_markdown", "to_svg"]


def to_json(matrix: Matrix) -> str:
    """Everything, stable."""
    return json.dumps(asdict(matrix), indent=1, sort_keys=True) + "\n"


def from_json(text: str) -> Matrix:
    """The matrix that `to_json` wrote."""
    data = json.loads(text)
    return Matrix(**{**data, "rows": tuple(Row(**row) for row in data["rows"])})


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
    """Bars by release: upstream's BLOCKs, what the series leaves of them, and the REVIEWs left.

    Raises:
        errors.MissingInput: matplotlib is missing.
    """
    if said := chart.missing():
        raise errors.MissingInput(said, "the matrix has a picture", "use the tools' own environment, or install requirements/tools.txt")
    found = [
        chart.Bar(row.version, name, counts[kind])
        for row in matrix.rows
        for name, counts, kind in (
            ("BLOCK, upstream as it is", row.upstream, BLOCK),
            ("BLOCK, with the series", row.carried, BLOCK),
            ("REVIEW, with the series", row.carried, REVIEW),
        )
    ]
    return chart.as_svg(chart.bars("The release matrix", "findings", found))
