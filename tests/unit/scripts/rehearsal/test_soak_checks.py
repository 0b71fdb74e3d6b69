"""What a soak must be found wrong for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from scripts.rehearsal.soak import wrong
from scripts.rehearsal.soak_clients import LINE, Soaked, page_problem

GOOD = Soaked(
    answers=Counter({"completed: whole": 9, "cancelled: after the first event": 3, "malformed: no JSON": 2, "failed visibly: ConnectionError": 1}),
    done_to_it=Counter({"folder swapped": 1, "files cut": 1, "engine killed": 1, "worker killed": 1}),
    memory=[(part, 1 << 30) for part in (1, 2, 3) for _ in range(80)],
    hits=5, kernel_runs=5, counted=9, gemms=10, exit_code=0, seconds=1800.0,
)  # fmt: skip


def test_a_good_soak_has_nothing_wrong() -> None:
    assert wrong(GOOD) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lost": ["completed: ConnectionError"]}, "lost"),
        ({"bad_scrapes": ["x{"]}, "/metrics"),
        ({"hits": 4, "kernel_runs": 6}, "the kernel ran 6 times"),
        ({"hits": 6}, "the kernel ran 5 times"),
        ({"hits": 0, "kernel_runs": 0}, "0 hits"),
        ({"counted": 8}, "10 GEMMs"),
        ({"exit_code": -15}, "exit code"),
        ({"done_to_it": Counter({"folder swapped": 1, "files cut": 1, "worker killed": 1, "engine killed": 0})}, "engine killed"),
        ({"done_to_it": Counter({"folder swapped": 1, "files cut": 1, "engine killed": 1}), "gemms": 9}, "worker killed"),
        ({"answers": Counter({"completed: whole": 1, "cancelled: x": 1, "malformed: x": 1})}, "no request was failed visibly"),
        ({"answers": Counter({"completed: whole": 1})}, "no request was cancelled"),
        ({"memory": [(part, (1 + (part == 2 and at > 60)) << 30) for part in (1, 2, 3) for at in range(80)]}, "memory grew"),
        ({"memory": [(1, 1 << 30)] * 240}, "memory grew"),
        ({"memory": [(1, 1 << 30)] * 239}, "only 239 samples"),
    ],
)
def test_each_fault_is_found(change: dict[str, Any], word: str) -> None:
    found = wrong(replace(GOOD, **change))
    assert any(word in sentence for sentence in found), found


@pytest.mark.parametrize("line", ['a_total{x="y\\"",z="1"} 3.0', "a 1e-05", "# HELP a b", "", "a NaN", 'a{le="+Inf"} 2.0'])
def test_a_line_of_metrics_is_one(line: str) -> None:
    assert LINE.fullmatch(line)


@pytest.mark.parametrize("line", ["Traceback", 'a{x="y} 3', "a b"])
def test_what_is_no_line_of_metrics_is_not(line: str) -> None:
    assert not LINE.fullmatch(line)


PAGE = 'vllm_dcu_dispatch_hits_total{a="b c"} 3.0\nother_total 9.0\n'


@pytest.mark.parametrize(
    ("status", "page", "word"),
    [
        (200, PAGE, ""),
        (200, PAGE.replace("9.0", "1.0"), ""),
        (200, PAGE.replace("3.0", "2.0"), "was 3, is 2"),
        (200, "other_total 9.0\n", "was 3, is gone"),
        (200, PAGE + "Traceback\n", "Traceback"),
        (500, PAGE, "status 500"),
    ],
)
def test_a_counter_of_ours_neither_vanishes_nor_falls(status: int, page: str, word: str) -> None:
    _, before = page_problem(200, PAGE, {})
    problem, _ = page_problem(status, page, before)
    assert word in problem
    assert bool(problem) == bool(word)


def test_a_short_soak_claims_nothing_of_the_memory() -> None:
    assert wrong(replace(GOOD, memory=[(1, 1 << 30), (1, 9 << 30)], seconds=60.0)) == []
