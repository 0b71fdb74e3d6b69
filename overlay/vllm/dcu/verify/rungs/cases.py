# SPDX-License-Identifier: Apache-2.0
"""V2's cases, and the faults that its check has to see."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.dcu.evidence.numerics import SMALLEST_NORMAL
from vllm.dcu.verify.rungs.stage import Subject

__all__ = ["Case", "cases", "controls", "make"]

_EDGES_K = (8, 16, 256, 504, 512, 520, 1024, 2048, 4088, 4096, 4104, 5120, 8184, 8192)
_LONG_K = (8200, 16392, 17408, 34816)
"""For a kernel that takes them."""


@dataclass(frozen=True)
class Case:
    """One call: the shape and what the data are like.

    `data`: `zero-centred`, `positive`, `denormal`, `nan-weight`, `inf-weight`, `nan-x`, `inf-x`.
    """

    m: int
    k: int
    data: str
    seed: int

    @property
    def name(self) -> str:
        """For reports."""
        return f"{self.m} x {self.k} {self.data}"


def cases(subject: Subject) -> tuple[Case, ...]:
    """The record's own shape with every kind of data, and every edge of K and M with zero-centred data."""
    _, m, k = subject.shape
    rows = subject.block_rows
    own = [Case(m, k, data, seed) for seed, data in enumerate(("zero-centred", "positive", "denormal"))]
    lengths = _EDGES_K + (_LONG_K if subject.kernel.max_k > _EDGES_K[-1] else ())
    special = [Case(min(m, 64 * rows), k, data, 10 + i) for i, data in enumerate(("nan-weight", "inf-weight", "nan-x", "inf-x"))]
    edges = [Case(64 * rows, edge, "zero-centred", 20 + i) for i, edge in enumerate(lengths)]
    small = [Case(count * rows, k, "zero-centred", 40 + count) for count in (1, 2, 3, 255)]
    return tuple(own + special + edges + small)


def make(case: Case, dtype: str, device: str, n: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight[M, K], x[N, K]) of `case` in `dtype` on `device`; the same numbers on every machine."""
    generator = torch.Generator().manual_seed(936 + case.seed)
    kind = getattr(torch, dtype)
    weight = torch.randn(case.m, case.k, generator=generator, dtype=torch.float32)
    x = torch.randn(n, case.k, generator=generator, dtype=torch.float32)
    if case.data == "positive":
        weight, x = weight.abs_(), x.abs_()
    elif case.data == "denormal":
        # Only the weight is denormal: the products are normal numbers, so that the tolerance bites. A device that flushes inputs returns zeros.
        weight *= SMALLEST_NORMAL[dtype] / 8
        x *= 2.0**20 if dtype == "bfloat16" else 2.0**10
    weight, x = weight.to(kind), x.to(kind)
    middle = case.k // 2
    if case.data == "nan-weight":
        weight[case.m // 2, middle] = float("nan")
    elif case.data == "inf-weight":
        weight[case.m // 2, middle] = float("inf")
    elif case.data == "nan-x":
        x[-1, middle] = float("nan")
    elif case.data == "inf-x":
        x[-1, middle] = float("inf")
    return weight.to(device), x.to(device)


Op = Callable[..., Any]


def controls(native: Op, subject: Subject) -> Iterator[tuple[str, Op]]:
    """The kernel with one fault planted in each: the check has to refuse every one of them."""
    _, _, k = subject.shape
    rows = subject.block_rows
    seen = k * 4 // 5

    def truncated(weight: torch.Tensor, x: torch.Tensor, *args: int) -> torch.Tensor:
        # What a 32-wide wave does to K=5120: the last fifth is not added up.
        short = x.clone()
        short[:, seen:] = 0
        return native(weight, short, *args)

    def unwritten(weight: torch.Tensor, x: torch.Tensor, *args: int) -> torch.Tensor:
        out = native(weight, x, *args).clone()
        out[:, -rows:] = float("nan")
        return out

    def swapped(weight: torch.Tensor, x: torch.Tensor, *args: int) -> torch.Tensor:
        out = native(weight, x, *args).clone()
        out[:, :2] = out[:, :2].flip(1)
        return out

    def one_wrong(weight: torch.Tensor, x: torch.Tensor, *args: int) -> torch.Tensor:
        out = native(weight, x, *args).clone()
        out[:, -1] = -out[:, -1]
        return out

    yield "the last fifth of K left out", truncated
    yield "the last block of rows left unwritten", unwritten
    yield "two neighbouring rows swapped", swapped
    yield "one output of another sign", one_wrong
