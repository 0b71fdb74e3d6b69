"""The matrix page: what it says is what the rows hold, and an open BLOCK or a conflict cannot hide in it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

from scripts.matrix.page import to_json, to_markdown, to_svg
from scripts.matrix.rows import Matrix, Row

CLOSED = Row(
    version="0.27.1",
    tree="t",
    verdicts={"a.patch": "applies", "b.patch": "applies with moved context", "c.patch": "upstreamed"},
    upstream={"BLOCK": 2, "NOT EVALUATED": 1, "REVIEW": 3, "INFO": 4},
    carried={"BLOCK": 0, "NOT EVALUATED": 1, "REVIEW": 1, "INFO": 4},
    blocks={"arch-truth:rocm._ON_CDNA": "rocm._ON_CDNA is new and true", "build-set:new": "1 new source"},
    open_blocks={},
    reviews={"pins:torch": "torch changes"},
    routing="only LLMM1",
    dispatch="passed (7)",
    closed={"arch-truth:rocm._ON_CDNA": "the sealed arch string", "build-set:new": "cmake/dcu.cmake"},
    unanswered={"arch-flow:open:x": "not evaluated: x"},
)
PIN = Row(
    "0.18.1",
    "p",
    {"a.patch": "pinned"},
    {"BLOCK": 0, "NOT EVALUATED": 0, "REVIEW": 0, "INFO": 0},
    {"BLOCK": 0, "NOT EVALUATED": 0, "REVIEW": 0, "INFO": 0},
    {},
    {},
    {},
    "only LLMM1",
    "passed (7)",
)


def test_a_closed_block_is_said_to_be_closed() -> None:
    page = to_markdown(Matrix("0.18.1", (PIN, CLOSED)))
    assert "**0 unresolved BLOCK**" in page
    assert "| 0.27.1 | 3 of 3 (1 moved, 1 upstreamed) | 2 / 1 / 3 / 4 | 2 | 0 / 1 / 1 | only LLMM1 | passed (7) |" in page
    assert "| 0.27.1 | rocm.\\_ON_CDNA is new and true (`arch-truth`) | closed by the sealed arch string |" in page


def test_a_block_that_stays_open_is_counted_and_named_with_its_releases() -> None:
    left = replace(
        CLOSED,
        open_blocks={"arch-truth:rocm._ON_CDNA": "rocm._ON_CDNA is new and true"},
        carried={"BLOCK": 1, "NOT EVALUATED": 0, "REVIEW": 1, "INFO": 0},
    )
    matrix = Matrix("0.18.1", (PIN, left, replace(left, version="0.28.0")))
    page = to_markdown(matrix)
    assert matrix.open_blocks == 2
    assert "**2 unresolved BLOCK**" in page
    assert "**open** in 0.27.1, 0.28.0" in page
    assert "| **1** / 0 / 1 |" in page


def test_a_block_that_only_the_series_brings_is_in_the_page_too() -> None:
    own = replace(
        CLOSED,
        blocks={},
        open_blocks={"build-set:evaluation": "CMake does not evaluate"},
        carried={"BLOCK": 1, "NOT EVALUATED": 0, "REVIEW": 0, "INFO": 0},
    )
    assert "CMake does not evaluate (`build-set`) | **open** in 0.27.1 |" in to_markdown(Matrix("0.18.1", (PIN, own)))


def test_a_stopped_walk_is_on_the_page() -> None:
    assert "conflicts on the way: a.patch at 0.19.0 (vllm/envs.py)" in to_markdown(
        Matrix("0.18.1", (PIN,), "a.patch at 0.19.0 (vllm/envs.py)")
    )


def test_what_did_not_run_is_listed_with_its_reason() -> None:
    page = to_markdown(Matrix("0.18.1", (replace(PIN, dispatch=""),), missing={"dispatch": "no torch here"}))
    assert "| not run |" in page
    assert "- dispatch: no torch here" in page


def test_reviews_and_what_was_not_evaluated_stand_under_the_release_that_brought_them() -> None:
    page = to_markdown(Matrix("0.18.1", (PIN, CLOSED, replace(CLOSED, version="0.28.0", reviews={}, unanswered={}))))
    assert page.count("torch changes") == 1
    assert "### 0.28.0" not in page
    assert "- 0.27.1: not evaluated: x" in page
    assert "1 question(s) not evaluated" in page


def test_the_json_and_the_plot_hold_every_release() -> None:
    matrix = Matrix("0.18.1", (PIN, CLOSED))
    assert [row["version"] for row in json.loads(to_json(matrix))["rows"]] == ["0.18.1", "0.27.1"]
    texts = [e.text for e in ET.fromstring(to_svg(matrix)).iter("{http://www.w3.org/2000/svg}text")]  # our own text, just written
    assert "0.27.1" in texts
