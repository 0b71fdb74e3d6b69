"""Kernels of the GEMM that are wrong in just one way, for V2 to refuse: on the CPU in the tests, on a CUDA GPU by `benchmarks/gpu_v2.py`.

Each is called as a native kernel is, `weight[M, K]`, `x[N, K]`, one argument of its own, and gives `out[N, M]` of x's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["ONE_WAY", "WRONG", "Planted", "exact", "last_row", "linear", "only", "unwritten"]

Tensor = Any
Planted = Callable[[Tensor], Tensor]


def linear(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    """Right, as torch computes it."""
    return torch.nn.functional.linear(x, weight)


def exact(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    """Right to the last bit, denormal inputs kept (the CPU's own bfloat16 product flushes them)."""
    return (x.double() @ weight.double().T).to(x.dtype)


def _without_nan(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    return linear(weight, x, rows).nan_to_num()


def _without_inf(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    out = linear(weight, x, rows)
    return torch.where(out.isinf(), torch.full_like(out, 3e38), out)


def _flushes_everything_small(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    out = linear(weight, x, rows)
    return torch.where(out.abs() < 1e-1, torch.zeros_like(out), out)


def _in_float32(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    return torch.nn.functional.linear(x.float(), weight.float())


def _one_dimensional(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    return linear(weight, x, rows)[0]


def _spreads_a_nan(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    out = linear(weight, x, rows)
    return torch.full_like(out, float("nan")) if out.isnan().any() else out


def _wrong_only_at_the_edge(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    whole = weight.shape[1] // 64 * 64
    return linear(weight[:, :whole], x[:, :whole], rows) if whole else linear(weight, x, rows)


def _a_bit_too_large(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    return linear(weight, x, rows) * 1.01


def last_row(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    """The last output is its neighbour's."""
    out = linear(weight, x, rows).clone()
    out[:, -1] = out[:, -2]
    return out


def unwritten(weight: Tensor, x: Tensor, rows: int) -> Tensor:
    """The last block of outputs is never written."""
    out = torch.empty(1, weight.shape[0], dtype=x.dtype, device=x.device)
    out[:, :-rows] = linear(weight, x, rows)[:, :-rows]
    return out


WRONG: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "NaN becomes a number": _without_nan,
    "Inf becomes a number": _without_inf,
    "small outputs become zero": _flushes_everything_small,
    "float32 out": _in_float32,
    "one dimension is lost": _one_dimensional,
    "a NaN spreads": _spreads_a_nan,
    "the rest of K above 64s is left out": _wrong_only_at_the_edge,
    "one in a hundred too large": _a_bit_too_large,
}


def only(data: str, planted: Planted) -> Callable[[Tensor, Tensor, int], Tensor]:
    """A right kernel that is wrong for one kind of data alone, told by its weight or its inputs."""

    def kind(weight: Tensor, x: Tensor) -> str:
        if not (weight.isfinite().all() and x.isfinite().all()):
            return "inf" if weight.isinf().any() or x.isinf().any() else "nan"
        if weight.abs().max() < 2.0**-120:
            return "denormal"
        return "positive" if (weight >= 0).all() else "zero-centred"

    def kernel(weight: Tensor, x: Tensor, rows: int) -> Tensor:
        out = exact(weight, x, rows)
        return planted(out) if kind(weight, x) == data else out

    return kernel


def _scaled(factor: float) -> Planted:
    return lambda out: torch.where(out.isfinite(), out * factor, out)


def _one_element(out: Tensor) -> Tensor:
    out = out.clone()
    at = int(out.nan_to_num(0, 0, 0).abs().argmax())
    out.view(-1)[at] = -out.view(-1)[at]
    return out


def _half_zero(out: Tensor) -> Tensor:
    out = out.clone()
    out[:, ::2] = 0
    return out


# (kind of data, what is planted there, the case that refuses it, the limit that does)
ONE_WAY: tuple[tuple[str, Planted, str, str], ...] = (
    ("denormal", _scaled(1.02), "2048 denormal", "norm-wise relative error"),
    ("denormal", _half_zero, "2048 denormal", "output"),
    ("positive", _scaled(1.008), "2048 positive", "norm-wise relative error"),
    ("positive", _one_element, "2048 positive", "output"),
    ("zero-centred", _one_element, "zero-centred", "output"),
    ("zero-centred", _scaled(1.01), "zero-centred", "norm-wise relative error"),
    ("inf", _scaled(1.01), "inf-weight", "norm-wise relative error"),
    ("inf", _one_element, "inf-weight", "output"),
    ("nan", _scaled(1.01), "nan-weight", "norm-wise relative error"),
    ("nan", _one_element, "nan-weight", "output"),
)
