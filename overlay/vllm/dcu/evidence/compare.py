# SPDX-License-Identifier: Apache-2.0
"""One output of a GEMM against float64: the one comparison of V2, V3 and the benchmark.

The tolerance is stated once, in `vllm.dcu.evidence.numerics` (derived in docs/llmm1-numerics.md and docs/gemv.md). It is norm-wise for zero-centred data: an
element of a sum that cancels has no relative error worth the name. Each single output has a bound as well, which holds for any data.
"""

from dataclasses import dataclass

import torch
from vllm.dcu.evidence.numerics import LLMM1, SMALLEST_LOST, Sums, ceiling, element_factor

__all__ = ["Check", "check", "float64"]

_ROWS_AT_ONCE = 4096


def float64(weight: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(x @ weight.T, |x| @ |weight|.T), each (N, M) float64 on the CPU: independent of the device and of its libraries."""
    columns = x.detach().cpu().double().reshape(-1, weight.shape[1]).T
    exact, size = [], []
    for rows in weight.detach().split(_ROWS_AT_ONCE):
        block = rows.cpu().double()
        exact.append((block @ columns).T)
        size.append((block.abs_() @ columns.abs()).T)
    return torch.cat(exact, 1), torch.cat(size, 1)


@dataclass(frozen=True)
class Check:
    """What one output was: its norm-wise relative error over the finite elements, and why it is refused (empty: it is right)."""

    error: float
    fault: str


def check(out: torch.Tensor, exact: torch.Tensor, size: torch.Tensor, dtype: str, k: int, zero_centred: bool, sums: Sums = LLMM1) -> Check:
    """Compare one output with float64.

    Args:
        out: what the kernel returned.
        exact, size: as `float64` gives them.
        sums: how the kernel adds up.
        zero_centred: whether the norm-wise tolerance applies; the bound of each element always does.
    """
    if out.shape != exact.shape:
        return Check(float("nan"), f"the result has shape {tuple(out.shape)}, not {tuple(exact.shape)}")
    if out.dtype is not getattr(torch, dtype):
        return Check(float("nan"), f"the result is {out.dtype}, not {dtype}")
    got = out.detach().cpu().double()
    finite = exact.isfinite()
    if fault := _special(got, exact, finite):
        return Check(float("nan"), fault)
    got, exact, size = got[finite], exact[finite], size[finite]
    if not got.numel():
        return Check(0.0, "")
    difference = (got - exact).abs()
    norm = float(exact.norm())
    error = float(difference.norm()) / norm if norm else float(difference.norm())
    # Near zero each of the K products and sums loses at most that much.
    allowed = size * element_factor(dtype, sums) + 2 * k * SMALLEST_LOST[dtype]
    worst = int((difference - allowed).argmax())
    if difference[worst] > allowed[worst]:
        return Check(
            error, f"output {worst} is off by {float(difference[worst]):.3g}, more than {float(allowed[worst]):.3g}; norm-wise {error:.3g}"
        )
    limit = ceiling(dtype, exact.numel(), sums)
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
