"""The matrix as Markdown, JSON and a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from vllm.dcu.verify import chart

from scripts.common import errors
from scripts.common.outside import load, parse_json
from scripts.drift.contracts.model import BLOCK, INFO, OPEN, REVIEW
from scripts.matrix.rows import Matrix, Row

__all__ = ["from_json", "to_json", "to_markdown", "to_svg"]


def to_json(matrix: Matrix) -> str:
    """Everything, stable."""
    return json.dumps(asdict(matrix), indent=1, sort_keys=True) + "\n"


def from_json(text: str) -> Matrix:
    """The matrix that `to_json` wrote."""
    found: Matrix = load(Matrix, parse_json(text.encode(), any_text=True))
    return found


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
        "Each release is compared with the one before it: a row says what that release *brought*. A BLOCK that is open with the series "
        "is counted in every release in which it is.",
        "",
        f"**{matrix.open_blocks} unresolved BLOCK** with the series applied, {matrix.unanswered} question(s) not evaluated; conflicts on the "
        f"way: {matrix.stopped or 'none'}.",
        "",
        "![What each release brought, and what is left of it](matrix.svg)",
        "",
        "| release | patches carried | brought, as it is: BLOCK / not evaluated / REVIEW / INFO | closed by the series | with the series: "
        "open BLOCK / not evaluated / REVIEW | native code for gfx936 | dispatch |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        mark = " (pin)" if row.version == matrix.pinned else ""
        up, left = row.upstream, row.carried
        lines.append(
            f"| {row.version}{mark} | {row.patches()} | {up[BLOCK]} / {up[OPEN]} / {up[REVIEW]} / {up[INFO]} | {len(row.closed)} "
            f"| {_bold(left[BLOCK])} / {left[OPEN]} / {left[REVIEW]} | {row.routing} | {row.dispatch or 'not run'} |"
        )
    lines += ["", "## What upstream opens or breaks for gfx936, and what closes it", ""]
    lines += ["| from | finding (upstream as it is) | with the series |", "|---|---|---|"]
    for key, sentence, version, fate in _fates(rows):
        lines.append(f"| {version} | {_cell(sentence)} (`{key.split(':')[0]}`) | {_cell(fate)} |")
    lines += ["", "## What a reader decides (REVIEW, with the series), by the release that brought it", ""]
    for row in rows:
        if row.reviews:
            lines += [f"### {row.version}", "", *(f"- {_cell(s)}" for s in row.reviews.values()), ""]
    if matrix.unanswered:
        lines += ["## Not evaluated", "", "What could not be answered is not known to be harmless. By the release that brought it:", ""]
        lines += [f"- {row.version}: {_cell(s)}" for row in rows for s in row.unanswered.values()] + [""]
    if matrix.missing:
        lines += ["## Not run", "", *(f"- {what}: {why}" for what, why in sorted(matrix.missing.items())), ""]
    return "\n".join(lines).rstrip() + "\n"


def _fates(rows: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """(key, sentence, release, fate) of every BLOCK that upstream brought, and of every one that only the series has."""
    open_in: dict[str, list[str]] = {}
    for row in rows:
        for key in row.open_blocks:
            open_in.setdefault(key, []).append(row.version)
    fates, said = [], set()
    for row in rows:
        for key, sentence in {**row.blocks, **row.open_blocks}.items():
            if key in row.blocks or key not in said:
                said.add(key)
                left = f"**open** in {', '.join(open_in[key])}" if key in row.open_blocks else ""
                fates.append((key, sentence, row.version, left or f"closed by {row.closed.get(key, 'the series')}"))
    return fates


def _bold(count: int) -> str:
    return f"**{count}**" if count else "0"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<").replace("_ON_", "\\_ON_")


def to_svg(matrix: Matrix) -> str:
    """Bars by release: what each brought that the series closes, what is open with it, and what a reader decides.

    Raises:
        errors.MissingInput: matplotlib is missing.
    """
    if said := chart.missing():
        raise errors.MissingInput(said, "the matrix has a picture", "use the tools' own environment, or install requirements/tools.txt")
    found = [
        chart.Bar(row.version, name, value)
        for row in matrix.rows
        for name, value in (
            ("BLOCK that the release brought, closed by the series", len(row.closed)),
            ("BLOCK that is open with the series", row.carried[BLOCK]),
            ("REVIEW that the release brought", row.carried[REVIEW]),
        )
    ]
    return chart.as_svg(chart.bars("The release matrix", "findings", found))
