"""The committed matrix with another pin: the fresh row is taken, and the page says whose the others are."""

from __future__ import annotations

from dataclasses import replace

from scripts.matrix.page import from_json, to_json, to_markdown
from scripts.matrix.rows import Matrix
from scripts.matrix.verb import _as_pin
from tests.unit.scripts.matrix.test_matrix_page import CLOSED, PIN


def test_what_is_written_is_read_back() -> None:
    matrix = Matrix("0.18.1", (PIN, CLOSED), "a.patch at 0.28.0", {"dispatch": "no torch"})
    assert from_json(to_json(matrix)) == matrix


def test_the_fresh_row_stands_in_and_the_others_are_said_to_be_of_the_old_pin() -> None:
    fresh = replace(CLOSED, dispatch="passed (99)")
    once = _as_pin(Matrix("0.18.1", (PIN, CLOSED)), fresh)
    assert (once.pinned, once.rows) == (fresh.version, (PIN, fresh))
    page = to_markdown(once)
    assert f"| {fresh.version} (pin) |" in page
    assert "are of the series as it was pinned at 0.18.1: `make matrix` makes them anew" in page
    assert list(_as_pin(once, PIN).missing) == ["rows"], "two adoptions leave one sentence"
