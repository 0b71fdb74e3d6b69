"""The rows of docs/troubleshooting.md, for the tests that provoke them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGE", "Row", "row", "rows", "without_test"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "troubleshooting.md"


@dataclass(frozen=True)
class Row:
    """One row. `symptom` is the literal message."""

    name: str
    symptom: str
    cause: str
    command: str
    fix: str


def rows(text: str | None = None) -> dict[str, Row]:
    """Every row of the page, by name."""
    text = PAGE.read_text(encoding="utf-8") if text is None else text
    found: dict[str, Row] = {}
    for line in text.splitlines():
        if not line.startswith("| `"):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        assert len(cells) == 5, line
        assert all(cells), line
        name, symptom = (re.fullmatch(r"`([^`]+)`", cell) for cell in cells[:2])
        assert name, line
        assert symptom, line
        assert name[1] not in found, line
        found[name[1]] = Row(name[1], symptom[1], *cells[2:])
    return found


def row(name: str) -> Row:
    return rows()[name]


def without_test(names: set[str], sources: list[str]) -> set[str]:
    """Rows that no test function `test_row_<name>` is about."""
    tested = {match for text in sources for match in re.findall(r"^def test_row_(\w+)\(", text, re.M)}
    return names ^ tested
