"""The successive halving, on planted times and on the CPU's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.dcu.tune import measure
from vllm.dcu.tune.measure import DeviceClock, PlantedClock, compete
from vllm.dcu.tune.plan import Choice, Item, choices

ITEM = Item("x", "bfloat16", 64, 128, 2, 1)


def planted(table: dict[str, float]) -> tuple[PlantedClock, list[str]]:
    asked: list[str] = []

    def us(dtype: str, m: int, k: int, n: int, name: str) -> float:
        asked.append(name)
        return table.get(name, 100.0)

    return PlantedClock(ITEM, us), asked


def test_the_fastest_wins_and_the_slow_are_left_early() -> None:
    clock, asked = planted({"GEMV 9": 50.0, "GEMV 2": 60.0, "F.linear": 70.0})
    found = compete(ITEM, clock)
    assert [c.choice.name for c in found.last] == ["GEMV 9", "GEMV 2"]
    assert found.winners[0].time.median == 50.0
    assert asked.count("GEMV 15") == 3
    assert asked.count("GEMV 9") == asked.count("F.linear") + 5 == 3 + 5 + 15
    assert set(found.first) == {c.name for c in choices(ITEM)}


def test_rounds_are_interleaved() -> None:
    clock, asked = planted({"GEMV 9": 50.0})
    compete(ITEM, clock)
    last = asked[-45:]
    assert last == last[:3] * 15


def test_a_device_times_each_choice_and_refuses_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [torch.randn(64, 128).to(torch.bfloat16) for _ in range(2)]

    def native(weight: torch.Tensor, x: torch.Tensor, variant: int) -> Any:
        out = torch.nn.functional.linear(x, weight)
        return -out if variant == 3 else out

    clock = DeviceClock(ITEM, {"GEMV": native}, "cpu", weights)
    assert clock.run(Choice("GEMV", 0)) > 0
    assert clock.error(Choice("GEMV", 0))[1] == ""
    assert 0 < clock.error(Choice())[0] < 5e-3
    assert clock.error(Choice("GEMV", 3))[1]
    monkeypatch.setattr(DeviceClock, "run", lambda self, choice: 10.0 if choice == Choice("GEMV", 3) else 50.0)
    found = compete(ITEM, clock)
    assert not found.winners
    assert "GEMV 3 is wrong" in found.why


def test_neighbours_of_one_weight_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []

    def rotated(dtype: str, m: int, k: int, device: str, n: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        made.append((m, k))
        return [torch.zeros(m, k)], torch.zeros(n, k)

    monkeypatch.setattr(measure, "rotated", rotated)
    seen: list[Item] = []
    items = [Item("x", "bfloat16", m, 64, n, 1) for m in (8, 16) for n in (1, 2)]
    measure.on_device(items, {}, "cpu", lambda item, clock: seen.append(item))
    assert seen == items
    assert made == [(8, 64), (16, 64)]
