"""The committed matrix is about today's series and every known release, and leaves nothing open."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.common.paths import ROOT
from scripts.rebase.threeway import CONFLICTS
from scripts.series.patch import read_series
from scripts.upstream.releases import read_pin, version_key

AGAIN = "run `make generate` and commit docs/matrix.*"


@pytest.fixture(scope="module")
def matrix() -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "matrix.json").read_text())  # type: ignore[no-any-return]


def test_it_has_every_known_release_in_order(matrix: dict[str, Any]) -> None:
    pin = read_pin()
    assert matrix["pinned"] == pin.version, AGAIN
    assert [row["version"] for row in matrix["rows"]] == sorted(pin.sdists, key=version_key), AGAIN


def test_it_is_about_the_patches_of_today(matrix: dict[str, Any]) -> None:
    names = set(read_series())
    assert all(set(row["verdicts"]) <= names and row["verdicts"] for row in matrix["rows"]), AGAIN
    assert set(next(r for r in matrix["rows"] if r["version"] == matrix["pinned"])["verdicts"]) == names, AGAIN


def test_nothing_is_open_nothing_conflicts_and_the_dispatch_passed_everywhere(matrix: dict[str, Any]) -> None:
    assert matrix["stopped"] == ""
    for row in matrix["rows"]:
        assert row["open_blocks"] == {}, row["version"]
        assert CONFLICTS not in row["verdicts"].values(), row["version"]
        assert row["routing"] == "only LLMM1", row["version"]
        assert row["dispatch"].startswith("passed ("), row["version"]


def test_the_page_is_the_one_of_these_data(matrix: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "matrix.md").read_text()
    for row in matrix["rows"]:
        brought = [row["upstream"][level] for level in ("BLOCK", "NOT EVALUATED", "REVIEW", "INFO")]
        assert f"| {' / '.join(map(str, brought))} | {len(row['closed'])} |" in page
    assert "**0 unresolved BLOCK**" in page
