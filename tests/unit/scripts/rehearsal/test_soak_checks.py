"""What a soak must be found wrong for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from scripts.rehearsal.soak import _LINE, Soaked, wrong

GOOD = Soaked(
    answers=Counter({"completed: whole": 9, "cancelled: after the first event": 3, "malformed: no JSON": 2}),
    done_to_it=Counter({"folder swapped": 1, "files cut": 1, "engine killed": 1}),
    memory=[(half, 1 << 30) for half in (1,) * 120 + (2,) * 120],
    hits=5, kernel_runs=5, counted=9, gemms=9, exit_code=0,
)  # fmt: skip


def test_a_good_soak_has_nothing_wrong() -> None:
    assert wrong(GOOD) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lost": ["completed: ConnectionError"]}, "lost"),
        ({"bad_scrapes": ["x{"]}, "/metrics"),
        ({"hits": 4}, "the kernel ran 5 times"),
        ({"hits": 0, "kernel_runs": 0}, "0 hits"),
        ({"counted": 8}, "9 GEMMs"),
        ({"exit_code": -15}, "exit code"),
        ({"done_to_it": Counter({"folder swapped": 1, "files cut": 1, "engine killed": 0})}, "engine killed"),
        ({"answers": Counter({"completed: whole": 1})}, "no request was cancelled"),
        ({"memory": [(1, 1 << 30)] * 119 + [(1, 2 << 30)] + [(2, 1 << 30)] * 120}, "memory grew"),
        ({"memory": [(1, 1 << 30)] * 240}, "memory grew"),
    ],
)
def test_each_fault_is_found(change: dict[str, Any], word: str) -> None:
    found = wrong(replace(GOOD, **change))
    assert any(word in sentence for sentence in found), found


@pytest.mark.parametrize("line", ['a_total{x="y\\"",z="1"} 3.0', "a 1e-05", "# HELP a b", "", "a NaN", 'a{le="+Inf"} 2.0'])
def test_a_line_of_metrics_is_one(line: str) -> None:
    assert _LINE.fullmatch(line)


@pytest.mark.parametrize("line", ["Traceback", 'a{x="y} 3', "a b"])
def test_what_is_no_line_of_metrics_is_not(line: str) -> None:
    assert not _LINE.fullmatch(line)
