"""Hostile files, a fixed number each time: refused in a short line or read as exactly what they say; and every planted hole is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.dcu.records import strict, typed

from tests.fuzz import run
from tests.fuzz.run import fuzz

CASES = 20_000
Plant = Callable[[pytest.MonkeyPatch], None]


def test_no_mutated_file_of_any_kind_is_believed_for_what_it_does_not_say() -> None:
    seen = fuzz(CASES, seed=15)
    assert seen.faults == []
    assert all(seen.read[name] and seen.refused[name] for name in seen.read), "both ways are tried for every kind"


def test_a_long_run_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_PART", 40)
    notes = tmp_path / "notes"
    whole = run.in_parts(100, 1, notes)
    assert sum(whole.read.values()) + sum(whole.refused.values()) == 100
    lines = notes.read_text().splitlines(keepends=True)
    notes.write_text(lines[0] + lines[1][:20])  # stopped while it noted the second
    again: list[tuple[int, int]] = []
    monkeypatch.setattr(run, "fuzz", lambda cases, seed: again.append((cases, seed)) or fuzz(cases, seed))
    assert run.in_parts(100, 1, notes) == whole
    assert again == [(40, 1_000_001), (20, 1_000_002)]


def no_second_look_at_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(strict, "_object", dict)


def no_look_at_values(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(strict, "checked", lambda value, *_, **__: value)


def nan_is_a_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(strict, "_constant", float)
    patch.setattr(strict, "math", SimpleNamespace(isfinite=lambda value: True))


def unknown_fields_are_passed_over(patch: pytest.MonkeyPatch) -> None:
    real = typed._load_dataclass

    def lenient(kind: Any, value: Any, field: str) -> Any:
        return real(kind, {k: v for k, v in value.items() if k in typed._fields(kind)} if isinstance(value, dict) else value, field)

    patch.setattr(typed, "_load_dataclass", lenient)


def types_are_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(typed, "_load_scalar", lambda kind, value, field: kind(value))


def long_words_reach_the_terminal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(strict, "plain", lambda text, most=0: text)


@pytest.mark.parametrize(
    "plant",
    [
        no_second_look_at_keys,
        no_look_at_values,
        nan_is_a_number,
        unknown_fields_are_passed_over,
        types_are_changed,
        long_words_reach_the_terminal,
    ],
)
def test_a_planted_hole_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    for cache in (typed._loader, typed._fields):
        cache.cache_clear()
    try:
        plant(monkeypatch)
        assert fuzz(CASES, seed=15, most_faults=1).faults
    finally:
        monkeypatch.undo()
        for cache in (typed._loader, typed._fields):
            cache.cache_clear()
