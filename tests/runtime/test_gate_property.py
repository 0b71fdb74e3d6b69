"""On gfx936 the native operator is called if and only if an oracle written from the method's rule says so; everything else is F.linear, bit for bit."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.dcu import gate
from vllm.dcu.ask.explain import explain
from vllm.dcu.dispatch.rules import Call
from vllm.dcu.env import Mode, Switches
from vllm.dcu.records.catalog import MISSION

from tests.runtime.dcu import SMALL, K, M, Native, context, tallied
from tests.runtime.gate_table import outcome, same

ID = MISSION.id
FLOATS = [torch.bfloat16, torch.float16, torch.float32]
DTYPES = [*FLOATS, torch.float64, torch.int8, torch.float8_e4m3fn]


def row_major(tensor: torch.Tensor) -> bool:
    """Dense in order, by strides alone; a dimension of one element may have any stride."""
    expected = 1
    for size, stride in reversed(list(zip(tensor.shape, tensor.stride(), strict=True))):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def r3(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, m: int, k: int) -> bool:
    """BF16, one activation row, exactly M x K, no bias, layout fit for the kernel (dense, at 16-byte boundaries)."""
    return (
        x.dtype == weight.dtype == torch.bfloat16
        and tuple(weight.shape) == (m, k)
        and x.dim() > 0
        and x.shape[-1] == k
        and math.prod(x.shape[:-1]) == 1
        and bias is None
        and row_major(x)
        and row_major(weight)
        and (x.is_meta or (x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0))
    )


@st.composite
def laid_out(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, anyhow: bool) -> torch.Tensor:
    """A tensor of `shape` with random values: dense, or in one of the layouts that reach a Linear."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    how = draw(st.sampled_from(["dense", "padded", "stepped", "transposed", "offset", "expanded"])) if anyhow else "dense"
    step = {"stepped": 2}.get(how, 1)
    pad = draw(st.sampled_from([1, 8, 64])) if how == "padded" else 0
    base = torch.randn(max(1, rows) * (columns * step + pad) + 64, generator=seed).to(dtype)
    if how == "transposed" and rows:
        return base.as_strided((rows, columns), (1, rows)).reshape(-1, columns).unflatten(0, shape[:-1]) if shape[:-1] else base[:columns]
    if how == "expanded" and rows * columns:
        return base[:1].expand(rows * columns if len(shape) == 1 else shape)
    offset = draw(st.sampled_from([1, 4, 8, 16])) if how == "offset" else 0
    wide = base[offset : offset + rows * (columns * step + pad)].view(*shape[:-1], columns * step + pad)
    return wide[..., : columns * step : step]


@st.composite
def calls(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The record's call with up to two things drawn anew: near misses say more than strangers."""
    anew = draw(st.sets(st.sampled_from(["lead", "m", "k", "x_k", "dtype", "x_dtype", "bias", "x layout", "weight layout"]), max_size=2))

    def pick(name: str, right: Any, *others: Any) -> Any:
        return draw(st.sampled_from([right, *others])) if name in anew else right

    lead = pick("lead", draw(st.sampled_from([(), (1,), (1, 1)])), (2,), (0,), (3,), (2, 1), (1, 0), (1, 1, 1), (5,))
    m = pick("m", M, M - 1, M + 2, M // 2, K, 1, 0)
    k = pick("k", K, K // 2, K + 8, M)
    x_k = pick("x_k", k, K // 2)
    dtype = pick("dtype", torch.bfloat16, *DTYPES)
    x_dtype = pick("x_dtype", dtype, *FLOATS)
    bias = pick("bias", None, torch.zeros(m), torch.ones(m))
    x = draw(laid_out((*lead, x_k), x_dtype, "x layout" in anew))
    weight = draw(laid_out((m, k), dtype, "weight layout" in anew))
    return x, weight, None if bias is None else bias.to(dtype)


def test_the_native_operator_is_called_if_and_only_if_r3_holds() -> None:
    taken: list[bool] = []

    @given(calls())
    @settings(max_examples=3000, deadline=None, derandomize=True)
    def holds(call: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]) -> None:
        taken.append(agrees_with_r3(*call))

    holds()
    assert len(taken) >= 1500
    assert len(taken) / 20 < sum(taken) < len(taken) * 2 / 3, "the cases have to hold enough hits and enough misses to mean something"


def agrees_with_r3(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Hold one call against the oracle and against F.linear. Returns whether it was a hit."""
    native = Native(mark=1000.0)
    built = gate.build(context(native), (SMALL,))
    generic = outcome(torch.nn.functional.linear, x, weight, bias)
    result = outcome(built.gemm, x, weight, bias)
    assert (native.calls != []) == r3(x, weight, bias, M, K)
    counted = tallied(built.tally.snapshot())
    assert sum(counted.values()) == 1
    assert ("hit" in counted) == (native.calls != [])
    if native.calls:
        assert native.calls == [((M, K), (1, K), (4,))]
        assert isinstance(generic, torch.Tensor)
        assert isinstance(result, torch.Tensor)
        assert result.shape == generic.shape
        return True
    assert same(result, generic)
    return False


@given(
    lead=st.sampled_from([(), (1,), (1, 1), (2,), (0,), (7,), (4, 1)]),
    m=st.sampled_from([34816, 34816, 34815, 34818, 17408, 5120, 16384, 14336, 96, 248320, 8]),
    k=st.sampled_from([5120, 5120, 5120, 2560, 17408, 6144, 8192, 5128]),
    dtype=st.sampled_from([torch.bfloat16, torch.bfloat16, *DTYPES]),
    bias=st.booleans(),
    arch=st.sampled_from(["gfx936", "gfx936", "gfx936", "gfx928", "gfx90a", "gfx942", "gfx906", "gfx9360"]),
    skinny=st.sampled_from([True, True, True, False]),
    invariant=st.sampled_from([False, False, False, True]),
    mode=st.sampled_from([Mode.AUTO, Mode.AUTO, Mode.FORCE, Mode.OFF]),
)
@settings(max_examples=3000, deadline=None, derandomize=True)
def test_the_built_in_records_open_exactly_one_call_and_explain_says_the_same(
    lead: tuple[int, ...], m: int, k: int, dtype: torch.dtype, bias: bool, arch: str, skinny: bool, invariant: bool, mode: Mode
) -> None:
    """On meta tensors, so that the real shapes cost nothing."""
    x = torch.empty(*lead, k, dtype=dtype, device="meta")
    weight = torch.empty(m, k, dtype=dtype, device="meta")
    b = torch.empty(m, dtype=dtype, device="meta") if bias else None
    native = Native()
    switches = Switches(skinny, invariant, {ID: mode})
    there = context(native, "meta", arch=arch, switches=switches)
    built = gate.build(there)
    generic = outcome(torch.nn.functional.linear, x, weight, b)
    with mock.patch.object(torch.Tensor, "data_ptr", return_value=4096):  # a meta tensor's is null, which no kernel is given
        result = outcome(built.gemm, x, weight, b)
    opened = arch == "gfx936" and skinny and not invariant and mode is not Mode.OFF
    assert (native.calls != []) == (opened and r3(x, weight, b, 34816, 5120))
    assert same(result, generic)

    n = math.prod(lead)
    told = explain(Call(str(dtype).removeprefix("torch."), n, m, k, bias), there)
    (counted,) = built.tally.snapshot()
    assert (told.taken == ID) == (native.calls != [])
    assert counted.key.reason == (None if told.taken else told.reasons[0].value)
