"""The table of right answers: one call for each condition of the gate alone, and what must happen.

Written by hand from the rule of the method: BF16, N=1, M=34816, K=5120, no bias and a fitting layout, or `F.linear`. `check` runs the whole table against a module that has the gate's interface, so that the same
table judges the gate and each planted change of it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.runtime.dcu import SMALL, K, M, Native, context, tallied

__all__ = ["TABLE", "Case", "check"]

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """A call and its answer: `hit`, or the reason of the miss. `make` gives x, weight, bias.

    `defined` is false where torch's own result is whatever the memory held.
    """

    name: str
    answer: str
    make: Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]
    defined: bool = True


def x_(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.linspace(-1, 1, max(1, torch.Size(shape).numel()))[: torch.Size(shape).numel()].reshape(shape).to(dtype)


def w_(m: int = M, k: int = K, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.linspace(-1, 1, m * k).sin().reshape(m, k).to(dtype)


def shifted(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """The same values, contiguous, starting `elements` after a 64-byte boundary."""
    store = torch.empty(tensor.numel() + 64, dtype=tensor.dtype)
    start = (-store.data_ptr() % 64) // tensor.element_size() + elements
    view = store[start : start + tensor.numel()].view(tensor.shape)
    return view.copy_(tensor)


TABLE: tuple[Case, ...] = (
    Case("exactly the record's call", "hit", lambda: (x_(1, K), w_(), None)),
    Case("a vector", "hit", lambda: (x_(K), w_(), None)),
    Case("(1, 1, K)", "hit", lambda: (x_(1, 1, K), w_(), None)),
    Case("a row of a split tensor", "hit", lambda: (x_(1, 2 * K).split(K, dim=-1)[1], w_(), None)),
    Case("a view at a 16-byte boundary", "hit", lambda: (shifted(x_(1, K), 8), shifted(w_(), 8), None)),
    Case("a parameter as weight", "hit", lambda: (x_(1, K), torch.nn.Parameter(w_(), requires_grad=False), None)),
    Case("a bias", "bias", lambda: (x_(1, K), w_(), x_(M))),
    Case("a bias of zeros", "bias", lambda: (x_(1, K), w_(), torch.zeros(M, dtype=BF16))),
    Case("two rows", "rows", lambda: (x_(2, K), w_(), None)),
    Case("(2, 1, K)", "rows", lambda: (x_(2, 1, K), w_(), None)),
    Case("no row", "rows", lambda: (x_(0, K), w_(), None)),
    Case("(1, 0, K)", "rows", lambda: (x_(1, 0, K), w_(), None)),
    Case("five rows", "rows", lambda: (x_(5, K), w_(), None)),
    Case("an expanded row", "rows", lambda: (x_(1, K).expand(3, K), w_(), None)),
    Case("an expanded element", "activation-not-contiguous", lambda: (x_(1, 1).expand(1, K), w_(), None)),
    Case("every second element", "activation-not-contiguous", lambda: (x_(1, 2 * K)[:, ::2], w_(), None)),
    Case("a padded weight", "weight-not-contiguous", lambda: (x_(1, K), w_(M, K + 64)[:, :K], None)),
    Case("a transposed weight", "weight-not-contiguous", lambda: (x_(1, K), w_(K, M).t(), None)),
    Case("an activation 2 bytes off", "activation-alignment", lambda: (shifted(x_(1, K), 1), shifted(w_(), 0), None)),
    Case("an activation 8 bytes off", "activation-alignment", lambda: (shifted(x_(1, K), 4), shifted(w_(), 0), None)),
    Case("a weight 2 bytes off", "weight-alignment", lambda: (shifted(x_(1, K), 0), shifted(w_(), 1), None)),
    Case("a weight 8 bytes off", "weight-alignment", lambda: (shifted(x_(1, K), 0), shifted(w_(), 4), None)),
    Case("both off: the activation is named", "activation-alignment", lambda: (shifted(x_(1, K), 1), shifted(w_(), 1), None)),
    Case("float16", "no-record", lambda: (x_(1, K, dtype=torch.float16), w_(dtype=torch.float16), None)),
    Case("float32", "no-record", lambda: (x_(1, K, dtype=torch.float32), w_(dtype=torch.float32), None)),
    Case("half of the rows", "no-record", lambda: (x_(1, K), w_(M // 2), None)),
    Case("half of the columns", "no-record", lambda: (x_(1, K // 2), w_(M, K // 2), None)),
    Case("a row less", "no-record", lambda: (x_(1, K), w_(M - 1), None)),
    Case("the shape turned around", "no-record", lambda: (x_(1, M), w_(K, M), None)),
    Case("a weight of one dimension", "no-record", lambda: (x_(1, K), w_(1, K).view(K), None)),
    Case("no record, two rows", "no-record", lambda: (x_(2, K // 2), w_(M, K // 2), None)),
)

FAILING: tuple[Case, ...] = (
    Case("mixed dtypes", "activation-dtype", lambda: (x_(1, K, dtype=torch.float32), w_(), None)),
    Case("K elements in two rows", "inner-dimension", lambda: (x_(2, K // 2), w_(), None)),
    Case("an activation on another device", "device", lambda: (x_(1, K).to("meta"), w_(), None)),
    Case("a weight on another device", "device", lambda: (x_(1, K), w_().to("meta"), None), defined=False),
    Case("both on another device", "device", lambda: (x_(1, K).to("meta"), w_().to("meta"), None)),
    Case("a sparse activation", "tensor-layout", lambda: (x_(1, K).to_sparse(), w_(), None)),
    Case("a sparse weight", "tensor-layout", lambda: (x_(1, K), w_().to_sparse(), None)),
)
"""Calls whose generic result may itself be an error: the answer is then the same error."""


def outcome(function: Callable[..., torch.Tensor], *args: object) -> torch.Tensor | type[BaseException]:
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def same(a: torch.Tensor | type[BaseException], b: torch.Tensor | type[BaseException]) -> bool:
    """Bit for bit, shape, dtype and device included; or the same kind of error."""
    if isinstance(a, type) or isinstance(b, type):
        return a is b
    alike = a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
    return alike and (a.is_meta or torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def check(module: types.ModuleType, cases: tuple[Case, ...] = TABLE + FAILING) -> None:
    """Hold `module.build` against the table: result, native calls and the reason counted, for each case.

    Raises:
        AssertionError: an answer is wrong.
    """
    for case in cases:
        native = Native(mark=1000.0)
        gate = module.build(context(native), (SMALL,))
        x, weight, bias = case.make()
        generic = outcome(torch.nn.functional.linear, x, weight, bias)
        result = outcome(gate.gemm, x, weight, bias)
        assert tallied(gate.tally.snapshot()) == {case.answer: 1}, f"{case.name}: counted {gate.tally.snapshot()}"
        if case.answer == "hit":
            assert native.calls == [((M, K), (1, K), (4,))], case.name
            assert isinstance(generic, torch.Tensor)
            assert same(result, (torch.nn.functional.linear(x.reshape(1, K), weight) + 1000.0).view(generic.shape)), case.name
        else:
            assert native.calls == [], f"{case.name}: the native operator was called"
            assert same(result, generic) or not case.defined, f"{case.name}: not the generic result"
