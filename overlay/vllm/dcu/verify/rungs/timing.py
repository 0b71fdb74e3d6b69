# SPDX-License-Identifier: Apache-2.0
"""Time on a device: medians and spread of the kernel and of `F.linear`, weights rotated so that none is found in the L2.

A round runs each weight copy once; where the device can capture, the round is one graph, so that what is timed is the device and not
Python. Rounds of the two are interleaved A B A B, so that a clock that drifts drifts for both.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.dcu.evidence.ladder import Measure, measure

__all__ = ["Speed", "Timed", "compare_speed", "copy_bandwidth", "measure", "read_bandwidth", "rotated", "timed"]

_COLD_BYTES = 1 << 30
"""Bytes of weights between two uses of the same one: far more than any L2."""
_ROUNDS = 15
_MOST_COPIES = 256


@dataclass(frozen=True)
class Speed:
    """Microseconds of one call of the kernel and of `F.linear`; `pairs` are the rounds, `copies` how many weights were rotated.

    `uncaptured` says why a side was timed without a graph; empty where both were captured, and on the CPU, which has none.
    """

    kernel: Measure
    linear: Measure
    pairs: tuple[tuple[float, float], ...]
    copies: int
    uncaptured: str = ""


def compare_speed(
    native: Callable[..., Any], args: tuple[int, ...], dtype: str, m: int, k: int, device: str, rounds: int = _ROUNDS, n: int = 1
) -> Speed:
    """Time `native(weight, x, *args)` and `F.linear(x, weight)` on `copies` weights of (m, k), interleaved; x has `n` rows."""
    weights, x = rotated(dtype, m, k, device, n)
    copies = len(weights)

    def kernel() -> None:
        for weight in weights:
            native(weight, x, *args)

    def linear() -> None:
        for weight in weights:
            torch.nn.functional.linear(x, weight)

    sides = [timed(function, device) for function in (kernel, linear)]
    pairs = tuple((sides[0].run() / copies, sides[1].run() / copies) for _ in range(rounds))
    uncaptured = next(
        (f"{name}: {side.uncaptured}" for name, side in zip(("the kernel", "F.linear"), sides, strict=True) if side.uncaptured), ""
    )
    return Speed(measure([a for a, _ in pairs]), measure([b for _, b in pairs]), pairs, copies, uncaptured)


def rotated(dtype: str, m: int, k: int, device: str, n: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Weights (M, K), so many that none is found in the L2 when its turn comes, and x (N, K)."""
    kind = getattr(torch, dtype)
    copies = max(2, min(_MOST_COPIES, -(-_COLD_BYTES // (m * k * kind.itemsize))))
    weights = [torch.randn(m, k, dtype=torch.float32, device=device).to(kind) for _ in range(copies)]
    return weights, torch.randn(n, k, dtype=torch.float32, device=device).to(kind)


def copy_bandwidth(device: str, rounds: int = _ROUNDS) -> Measure:
    """GB/s of a copy by a kernel on the device, read and write counted: the ceiling that a share is stated of."""
    source, target = _buffers(device)
    # An addition and not `copy_`: that would be a copy engine's figure on some devices, which no kernel is bound by.
    turn = timed(lambda: torch.add(source, 1.0, out=target), device)
    return measure([2 * source.nbytes / turn.run() / 1e3 for _ in range(rounds)], "GB/s", "higher")


def read_bandwidth(device: str, rounds: int = _ROUNDS) -> Measure:
    """GB/s of a sum on the device: a product of a matrix and a vector reads, and hardly writes."""
    source, _ = _buffers(device)
    turn = timed(lambda: torch.sum(source), device)
    return measure([source.nbytes / turn.run() / 1e3 for _ in range(rounds)], "GB/s", "higher")


def _buffers(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    count = (1 << 28) if device != "cpu" else (1 << 22)
    source = torch.ones(count, dtype=torch.float32, device=device)
    return source, torch.empty_like(source)


@dataclass(frozen=True)
class Timed:
    """`run` runs a function once and returns its microseconds on the device; `uncaptured` says why it is no replay of a graph."""

    run: Callable[[], float]
    uncaptured: str = ""


def timed(function: Callable[[], object], device: str) -> Timed:
    """`function` made ready to be timed: run once, and captured into a graph where the device has them."""
    function()
    if device == "cpu":
        return Timed(lambda: _on_cpu(function))
    torch.cuda.synchronize()
    replay, uncaptured = _captured(function)

    def run() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    run()
    return Timed(run, uncaptured)


def _captured(function: Callable[[], object]) -> tuple[Callable[[], object], str]:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            function()
    except RuntimeError as error:
        torch.cuda.synchronize()
        return function, (str(error).strip().splitlines() or ["capture failed"])[0]
    return graph.replay, ""


def _on_cpu(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return (time.perf_counter() - begin) * 1e6
