# SPDX-License-Identifier: Apache-2.0
"""V2's cases and its check of one output against float64.

The tolerance is stated once, in `vllm.dcu.verify.numerics` (derived in docs/llmm1-numerics.md). It is norm-wise for zero-centred data: an
element of a sum that cancels has no relative error worth the name. Each single output has a bound as well, which holds for any data.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.dcu.verify.numerics import ceiling, element_factor
from vllm.dcu.verify.rungs.stage import Subject

__all__ = ["Case", "Check", "cases", "check", "controls", "float64", "make"]

_ROWS_AT_ONCE = 4096
_SMALLEST = {"bfloat16": 2.0**-126, "float16": 2.0**-14}
_EDGES_K = (8, 16, 256, 504, 512, 520, 1024, 2048, 4088, 4096, 4104, 5120, 8184, 8192)


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
    rows = max(subject.contract.args.get("rows_per_block", 1), 1)
    own = [Case(m, k, data, seed) for seed, data in enumerate(("zero-centred", "positive", "denormal"))]
    special = [Case(min(m, 64 * rows), k, data, 10 + i) for i, data in enumerate(("nan-weight", "inf-weight", "nan-x", "inf-x"))]
    edges = [Case(64 * rows, edge, "zero-centred", 20 + i) for i, edge in enumerate(_EDGES_K)]
    small = [Case(count * rows, k, "zero-centred", 40 + count) for count in (1, 2, 3, 255)]
    return tuple(own + special + edges + small)


def make(case: Case, dtype: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight[M, K], x[1, K]) of `case` in `dtype` on `device`; the same numbers on every machine."""
    generator = torch.Generator().manual_seed(936 + case.seed)
    kind = getattr(torch, dtype)
    weight = torch.randn(case.m, case.k, generator=generator, dtype=torch.float32)
    x = torch.randn(1, case.k, generator=generator, dtype=torch.float32)
    if case.data == "positive":
        weight, x = weight.abs_(), x.abs_()
    elif case.data == "denormal":
        weight *= _SMALLEST[dtype] / 8
    weight, x = weight.to(kind), x.to(kind)
    middle = case.k // 2
    if case.data == "nan-weight":
        weight[case.m // 2, middle] = float("nan")
    elif case.data == "inf-weight":
        weight[case.m // 2, middle] = float("inf")
    elif case.data == "nan-x":
        x[0, middle] = float("nan")
    elif case.data == "inf-x":
        x[0, middle] = float("inf")
    return weight.to(device), x.to(device)


def float64(weight: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(x @ weight.T, |x| @ |weight|.T), each (M,) float64 on the CPU: independent of the device and of its libraries."""
    column = x.detach().cpu().double().reshape(-1)
    exact, size = [], []
    for rows in weight.detach().split(_ROWS_AT_ONCE):
        block = rows.cpu().double()
        exact.append(block @ column)
        size.append(block.abs_() @ column.abs())
    return torch.cat(exact), torch.cat(size)


@dataclass(frozen=True)
class Check:
    """What one output was: its norm-wise relative error over the finite elements, and why it is refused (empty: it is right)."""

    error: float
    fault: str


def check(out: torch.Tensor, exact: torch.Tensor, size: torch.Tensor, dtype: str, k: int, zero_centred: bool) -> Check:
    """Compare one output with float64.

    Args:
        out: what the kernel returned.
        exact, size: as `float64` gives them.
        zero_centred: whether the norm-wise tolerance applies; the bound of each element always does.
    """
    if tuple(out.shape) != (1, exact.numel()):
        return Check(float("nan"), f"the result has shape {tuple(out.shape)}, not (1, {exact.numel()})")
    if out.dtype is not getattr(torch, dtype):
        return Check(float("nan"), f"the result is {out.dtype}, not {dtype}")
    got = out.detach().cpu().double().reshape(-1)
    finite = exact.isfinite()
    if fault := _special(got, exact, finite):
        return Check(float("nan"), fault)
    got, exact, size = got[finite], exact[finite], size[finite]
    if not got.numel():
        return Check(0.0, "")
    difference = (got - exact).abs()
    norm = float(exact.norm())
    error = float(difference.norm()) / norm if norm else float(difference.norm())
    # Below the smallest normal number a device may flush: each of the K products and sums loses at most that much.
    allowed = size * element_factor(dtype) + 2 * k * _SMALLEST[dtype]
    worst = int((difference - allowed).argmax())
    if difference[worst] > allowed[worst]:
        return Check(
            error, f"output {worst} is off by {float(difference[worst]):.3g}, more than {float(allowed[worst]):.3g}; norm-wise {error:.3g}"
        )
    limit = ceiling(dtype, exact.numel())
    if zero_centred and error > limit:
        return Check(error, f"the norm-wise relative error is {error:.3g}, more than {limit:.3g}")
    return Check(error, "")


def _special(got: torch.Tensor, exact: torch.Tensor, finite: torch.Tensor) -> str:
    """NaN and infinities stand exactly where float64 has them, with the same sign."""
    nan, inf = exact.isnan(), exact.isinf()
    if stray := int((~got.isfinite() & finite).sum()):
        return f"{stray} outputs are not finite where float64 is (unwritten, or spread from another row)"
    if lost := int((nan & ~got.isnan()).sum()):
        return f"{lost} NaN of the input do not reach the output"
    if wrong := int((inf & (got != exact)).sum()):
        return f"{wrong} infinities of the input do not reach the output"
    return ""


Op = Callable[..., Any]


def controls(native: Op, subject: Subject) -> Iterator[tuple[str, Op]]:
    """The kernel with one fault planted in each: the check has to refuse every one of them."""
    _, _, k = subject.shape
    rows = subject.contract.args.get("rows_per_block", 1)
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
