"""The operator as the framework sees it: one opaque custom op, its fake, torch.compile, opcheck, autograd, the real shape.

`DEVICE` is what the whole file runs on (GFX936_TEST_DEVICE). Graph capture needs a GPU: `benchmarks/gpu_rehearsal.py` has that rung.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from vllm.dcu import gate
from vllm.dcu.env import Mode, Switches
from vllm.dcu.gate import ActiveGate

from tests.runtime.dcu import FIRST, SMALL, K, M, Native, context, layers, registered, tallied
from tests.runtime.gate_table import same

DEVICE = os.environ.get("GFX936_TEST_DEVICE", "cpu")
OP = torch.ops.vllm.rocm_unquantized_gemm


def rand(*shape: int) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device=DEVICE).to(torch.bfloat16)


@pytest.fixture
def native() -> Native:
    return Native()


@pytest.fixture
def small(native: Native) -> Iterator[ActiveGate]:
    """The operator is registered with a gate that has one small open record."""
    built = gate.build(context(native, DEVICE), (SMALL,))
    with registered(built.gemm, DEVICE.upper()):
        yield built


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    """The mission's own weight: 34816 x 5120, 356 MB."""
    return rand(34816, 5120)


@pytest.fixture
def mission(native: Native) -> Iterator[ActiveGate]:
    """The operator is registered with the built-in records, all facts in place."""
    built = gate.build(context(native, DEVICE))
    with registered(built.gemm, DEVICE.upper()):
        yield built


def test_on_this_process_upstreams_function_is_registered() -> None:
    """No DCU here: what the patch registered is upstream's own object."""
    assert gate.active() is None
    assert layers.dcu_gate.wrap(layers.rocm_unquantized_gemm_impl) is layers.rocm_unquantized_gemm_impl


def test_the_exact_shape_is_dispatched_once_for_each_call(mission: ActiveGate, native: Native, weight: torch.Tensor) -> None:
    """One call of the exact shape is one hit, through the function that vLLM's layers call."""
    x = rand(1, 5120)
    for times in (1, 2, 3):
        out = layers.rocm_unquantized_gemm(torch.nn.Module(), x, weight)
        assert native.calls == [((34816, 5120), (1, 5120), (4,))] * times
    assert same(out, torch.nn.functional.linear(x, weight))
    assert tallied(mission.tally.snapshot()) == {"hit": 3}


@pytest.mark.parametrize("rows", [0, 2, 3, 4, 5])
def test_the_exact_weight_with_other_rows_is_generic(mission: ActiveGate, native: Native, weight: torch.Tensor, rows: int) -> None:
    x = rand(rows, 5120)
    assert same(OP(x, weight), torch.nn.functional.linear(x, weight))
    assert native.calls == []


@pytest.mark.parametrize(
    "switches", [Switches(capabilities={FIRST.id: Mode.OFF}), Switches(skinny_gemm=False), Switches(batch_invariant=True)]
)
def test_switched_off_is_bit_identical_to_the_generic_operator(native: Native, weight: torch.Tensor, switches: Switches) -> None:
    """A switch or batch-invariant mode shuts the gate for a caller that uses the operator directly, too."""
    with registered(gate.build(context(native, DEVICE, switches=switches)).gemm, DEVICE.upper()):
        x = rand(1, 5120)
        assert same(OP(x, weight), torch.nn.functional.linear(x, weight))
    assert native.calls == []


@pytest.mark.parametrize("shape", [(1, K), (K,), (2, K), (1, 1, K), (0, K)])
@pytest.mark.parametrize("bias", [False, True])
def test_opcheck(small: ActiveGate, shape: tuple[int, ...], bias: bool) -> None:
    args = (rand(*shape), rand(M, K), rand(M) if bias else None)
    # A hit and a miss are the same operator to the framework: schema, fake and dynamic tracing have to hold for both.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    assert set(torch.library.opcheck(OP, args, test_utils=checks).values()) == {"SUCCESS"}


@pytest.mark.parametrize("shape", [(0, K), (K,), (1, 1, K), (2, 1, K), (1, 0, K), (3, K), (2, 3, 4, K)])
@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_meta_and_fake_calls_have_the_real_shape_and_count_nothing(
    small: ActiveGate, native: Native, shape: tuple[int, ...], kind: str
) -> None:
    """Meta and fake tensors: shape, dtype and device are right, nothing is counted, no device is asked."""
    if kind == "meta":
        x, weight = torch.empty(shape, dtype=torch.bfloat16, device="meta"), torch.empty(M, K, dtype=torch.bfloat16, device="meta")
        out = OP(x, weight)
    else:
        with FakeTensorMode():
            x, weight = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE), torch.empty(M, K, dtype=torch.bfloat16, device=DEVICE)
            out = OP(x, weight)
    assert out.shape == (*shape[:-1], M)
    assert (out.dtype, out.device) == (x.dtype, x.device)
    assert native.calls == []
    assert small.tally.snapshot() == []


def test_a_compiled_model_holds_one_opaque_operator_and_follows_the_run_time_n(small: ActiveGate, native: Native) -> None:
    """Fullgraph, dynamic N; the choice is made at run time, without a recompile for each N."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    weight = rand(M, K)
    compiled = torch.compile(lambda x: OP(x + 0, weight) * 1, fullgraph=True, dynamic=True, backend=backend)
    x8 = rand(8, K)
    torch._dynamo.mark_dynamic(x8, 0)
    compiled(x8)
    for rows, hits in ((3, 0), (1, 1), (2, 1), (1, 2), (64, 2)):
        x = rand(rows, K)
        assert same(compiled(x), OP_reference(x, weight))
        assert len(native.calls) == hits
    targets = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert len([t for t in targets if "rocm_unquantized_gemm" in t]) == 1
    assert not [t for t in targets if "linear" in t or "LLMM1" in t]
    # N = 1 is special to Dynamo itself (0/1 specialisation); no other N may cost a graph.
    assert len(graphs) <= 2


def OP_reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x + 0, weight) * 1


def test_autograd_is_as_without_the_gate(native: Native) -> None:
    """The operator has no gradient upstream, and has none here."""
    outs = []
    for gemm in (layers.rocm_unquantized_gemm_impl, gate.build(context(native, DEVICE), (SMALL,)).gemm):

        def generic(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return torch.nn.functional.linear(x, weight, bias)

        with registered(gemm if gemm is not layers.rocm_unquantized_gemm_impl else generic, DEVICE.upper()):
            x = rand(2, K).requires_grad_()
            outs.append(OP(x, rand(M, K)))
    assert outs[0].requires_grad == outs[1].requires_grad
    assert type(outs[0].grad_fn) is type(outs[1].grad_fn)


def test_nothing_is_looked_up_once_the_gate_is_made(small: ActiveGate, native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the device query, the environment and every import made to raise, the first call still works."""

    def broken(*args: object, **kwargs: object) -> object:
        raise AssertionError("looked up in a call")

    x, weight, other = rand(1, K), rand(M, K), rand(8, K)
    with monkeypatch.context() as patch:
        patch.setattr(layers, "num_compute_units", broken)
        patch.setattr(os, "getenv", broken)
        patch.setattr(type(os.environ), "__getitem__", broken)
        patch.setattr("builtins.__import__", broken)
        small.gemm(x, weight)
        small.gemm(x, other)
    assert len(native.calls) == 1
