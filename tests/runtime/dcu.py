"""What the gate's tests share: a simulated context, a native operator that can be watched, records small enough to compute with."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

# What torch and vLLM warn about when they are imported is theirs; what is warned about in a test is ours, and an error.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import vllm.model_executor.layers.utils as layers  # registers the operator

from vllm.dcu.dispatch.context import Context, NativeOp
from vllm.dcu.dispatch.countfiles import Count
from vllm.dcu.records.catalog import MISSION, semantics_of
from vllm.dcu.records.kernels import GEMV, LLMM1
from vllm.dcu.records.record import Contract, Record, Toolchain, Verdict

# Shapes here are tiny or counted, never timed: one thread is faster than waking a pool that other processes share.
torch.set_num_threads(1)

__all__ = ["FIRST", "SMALL", "K", "M", "Native", "context", "gemv_record", "layers", "registered", "tallied"]

FIRST = MISSION
M, K = 64, 128
SMALL = replace(FIRST, id="small", contract=replace(FIRST.contract, m=M, k=K))
"""The first record's conditions, on a shape that a CPU computes at once."""


def gemv_record(n: int, variant: int = 0, verdict: Verdict = Verdict.OPEN) -> Record:
    """A record of our own kernel on that shape, for `n` rows."""
    contract = Contract("bfloat16", n, M, K, args={"variant": variant})
    return replace(SMALL, id=f"n{n}-v{variant}", kernel=GEMV.name, semantics=semantics_of(GEMV), contract=contract, verdict=verdict)


@dataclass
class Native:
    """Stands for the native operator: notes each call and returns what the kernel would, plus `mark`, so that it can be told apart."""

    mark: float = 0.0
    calls: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)

    def __call__(self, weight: torch.Tensor, x: torch.Tensor, *args: int) -> torch.Tensor:
        self.calls.append((tuple(weight.shape), tuple(x.shape), args))
        return torch.nn.functional.linear(x, weight) + self.mark


def context(native: Any, device_type: str = "cpu", **changes: Any) -> Context:
    """A simulated gfx936 in which everything is in place, with `changes`."""
    there = Context(
        arch="gfx936",
        device_type=device_type,
        toolchain=Toolchain("2.10.0", "6.2.0", "0.18.1"),
        ops={kernel.op: NativeOp(kernel.schema, native) for kernel in (LLMM1, GEMV)},
        code_objects=frozenset({"gfx936"}),
        own_code_objects=frozenset({"gfx936"}),
        simulated="runtime test: no device, a stand-in operator",
    )
    return replace(there, **changes)


def tallied(counts: list[Count]) -> dict[str, int]:
    """Counts by `hit` or by reason."""
    totals: dict[str, int] = {}
    for count in counts:
        name = count.key.reason or "hit"
        totals[name] = totals.get(name, 0) + count.value
    return totals


@contextlib.contextmanager
def registered(gemm: Any, device: str = "CPU") -> Iterator[None]:
    """Put `gemm` in the place of `vllm::rocm_unquantized_gemm`'s implementation for one dispatch key.

    As long as the library object lives: what a simulation does, because the operator was registered for the real device.
    """
    library = torch.library.Library("vllm", "IMPL")
    with warnings.catch_warnings():
        # That this replaces a registration is the point.
        warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
        library.impl("rocm_unquantized_gemm", gemm, device, allow_override=True)
    try:
        yield
    finally:
        library._destroy()
