# SPDX-License-Identifier: Apache-2.0
"""Which choice is fastest for one weight and N, by a successive halving in interleaved rounds.

Every choice runs a few rounds, the faster third goes on, and the last two meet `F.linear` in as many rounds as V2S has. A round is one replay of a
graph over rotated weights (cold L2). A choice wins where it is faster by V2S's own margin and the two ranges do not touch; else `F.linear` stays.
"""

import gc
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from vllm.dcu.evidence.compare import check, float64
from vllm.dcu.tune.found import Contender, Found
from vllm.dcu.tune.plan import Choice, Item, choices
from vllm.dcu.verify.rungs.timing import Timed, measure, rotated, timed

__all__ = ["Clock", "DeviceClock", "PlantedClock", "compete", "on_device"]

_FIRST, _SECOND, _LAST = 3, 5, 15
"""Rounds of each stage."""
_SAMPLE = 2048
"""Rows at both ends of the weight whose outputs are held against float64 here. V2 looks at all of them."""

Ops = Mapping[str, Callable[..., Any]]


class Clock:
    """Runs one choice for one item. `run` returns microseconds of one call."""

    def run(self, choice: Choice) -> float:
        """One round of `choice`."""
        raise NotImplementedError

    def error(self, choice: Choice) -> tuple[float, str]:
        """(norm-wise error against float64 on a sample of the outputs, why the result is refused or "")."""
        raise NotImplementedError

    def uncaptured(self, choice: Choice) -> str:
        """Why `choice` is timed without a graph; empty where it was captured."""
        return ""


class DeviceClock(Clock):
    """On the device: a graph for each choice over the same rotated weights."""

    def __init__(self, item: Item, ops: Ops, device: str, weights: Sequence[torch.Tensor]) -> None:
        self._item, self._ops, self._device, self._weights = item, ops, device, weights
        self._x = torch.randn(item.n, item.k, dtype=torch.float32, device=device).to(getattr(torch, item.dtype))
        self._made: dict[Choice, Timed] = {}

    def _call(self, choice: Choice, weight: torch.Tensor) -> torch.Tensor:
        if not choice.kernel:
            return torch.nn.functional.linear(self._x, weight)
        out: torch.Tensor = self._ops[choice.kernel](weight, self._x, choice.value)
        return out

    def _ready(self, choice: Choice) -> Timed:
        if choice not in self._made:
            self._made[choice] = timed(lambda: [self._call(choice, weight) for weight in self._weights] and None, self._device)
        return self._made[choice]

    def run(self, choice: Choice) -> float:
        return self._ready(choice).run() / len(self._weights)

    def uncaptured(self, choice: Choice) -> str:
        return self._ready(choice).uncaptured

    def error(self, choice: Choice) -> tuple[float, str]:
        weight = self._weights[0]
        out = self._call(choice, weight)
        ends = slice(None) if len(weight) <= 2 * _SAMPLE else [*range(_SAMPLE), *range(len(weight) - _SAMPLE, len(weight))]
        exact, size = float64(weight[ends], self._x)
        found = check(out[:, ends], exact, size, self._item.dtype, self._item.k, zero_centred=False)
        return found.error, found.fault if choice.kernel else ""


class PlantedClock(Clock):
    """Of a simulated device: times that a table says, and no numbers."""

    def __init__(self, item: Item, table: Callable[[str, int, int, int, str], float]) -> None:
        self._item, self._table = item, table

    def run(self, choice: Choice) -> float:
        return self._table(self._item.dtype, self._item.m, self._item.k, self._item.n, choice.name)

    def error(self, choice: Choice) -> tuple[float, str]:
        return 0.0, ""


def compete(item: Item, clock: Clock, within: Sequence[Choice] | None = None) -> Found:
    """Measure every choice of `item` (or `within`, which holds F.linear) on `clock`."""
    begun = time.monotonic()
    every = tuple(within or choices(item))
    rounds: dict[Choice, list[float]] = {choice: [] for choice in every}

    def run(alive: Sequence[Choice], count: int) -> None:
        for _ in range(count):
            for choice in alive:
                rounds[choice].append(clock.run(choice))

    def fastest(alive: Sequence[Choice]) -> list[Choice]:
        return sorted((c for c in alive if c.kernel), key=lambda c: sorted(rounds[c])[len(rounds[c]) // 2])

    run(every, _FIRST)
    first = {choice.name: round(sorted(times)[len(times) // 2], 3) for choice, times in rounds.items()}
    alive = fastest(every)[: max(3, len(every) // 3)]
    run(alive, _SECOND)
    last = [Choice(), *fastest(alive)[:2]]
    for choice in last:
        rounds[choice].clear()
    run(last, _LAST)
    seen = [_contender(choice, rounds[choice], clock) for choice in last]
    by_time = sorted(seen[1:], key=lambda c: c.time.median)
    return Found(item, seen[0], tuple(by_time), first, round(time.monotonic() - begun, 3))


def _contender(choice: Choice, times: Sequence[float], clock: Clock) -> Contender:
    error, fault = clock.error(choice)
    if why := clock.uncaptured(choice):
        fault = fault or f"it was not captured into a graph, and a served model is: {why}"
    return Contender(choice, measure(times), error if error == error else -1.0, fault if choice.kernel else "")


def on_device(items: Sequence[Item], ops: Ops, device: str, each: Callable[[Item, Clock], None]) -> None:
    """Call `each` for every item with its clock; neighbours of one weight share the rotated weights."""
    for (dtype, m, k), same in itertools.groupby(items, lambda item: (item.dtype, item.m, item.k)):
        weights, _ = rotated(dtype, m, k, device, 1)
        for item in same:
            each(item, DeviceClock(item, ops, device, weights))
        del weights
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()
