"""What the gate's decision costs in a call, hit and miss, against upstream's own selection in the same process.

    python benchmarks/dispatch.py [--json]

Both are asked for the same tensors with `F.linear` and the native operator replaced by a stand-in that returns at once, so that what is
left is the choice. Rounds are interleaved (A B A B), the median round counts, the time is the thread's own CPU time, and only the ratio is
meant to be carried elsewhere. Exit 0 if every case costs a fifth of upstream's or less, 1 if not.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import tracemalloc
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

__all__ = ["Row", "main", "measure"]

LIMIT = 0.2
"""The gate may cost this share of upstream's selection."""
BESIDE = (16384, 5120)
"""A weight with a record for each N from 1 to 4."""


@dataclass(frozen=True)
class Row:
    """One case: median microseconds of a call of upstream's selection and of the gate, and memory that calls of the gate left behind."""

    case: str
    envs_cached: bool
    upstream_us: float
    gate_us: float
    ratio: float
    kept_bytes: int


_native_device = [False]
"""Whether upstream's function sees a device of its own just now."""
_result: list[Any] = [None]
"""What every stand-in returns just now."""


@contextmanager
def choice_only() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """(upstream's function, the gate), for CPU tensors, with nothing left in them but the choice.

    For a miss upstream's function sees a device that is in none of its arch sets, as gfx936 is, and chooses `F.linear`; for a hit one of its
    own devices, on which it chooses a native kernel for the same tensors: like is held against like. The number of compute units costs
    nothing to ask for here, which favours upstream.
    """
    import torch
    import vllm.model_executor.layers.utils as layers
    from vllm.dcu import gate
    from vllm.dcu.dispatch.context import Context, NativeOp
    from vllm.dcu.records.catalog import CATALOG, MISSION, semantics_of
    from vllm.dcu.records.kernels import GEMV, LLMM1
    from vllm.dcu.records.record import Contract

    rocm = types.ModuleType("vllm.platforms.rocm")
    rocm.on_gfx9 = lambda: _native_device[0]  # type: ignore[attr-defined]
    rocm.on_gfx950 = lambda: False  # type: ignore[attr-defined]
    known = sys.modules.get("vllm.platforms.rocm"), torch.nn.functional.linear, layers.num_compute_units, layers.ops
    layers.ops = types.SimpleNamespace(wvSplitK=lambda weight, x, units, bias: _result[0])
    sys.modules["vllm.platforms.rocm"] = rocm
    torch.nn.functional.linear = lambda x, weight, bias=None: _result[0]  # type: ignore[assignment]
    layers.num_compute_units = lambda device_id=0: 80
    beside = tuple(
        replace(
            MISSION,
            id=f"n{n}",
            kernel=GEMV.name,
            semantics=semantics_of(GEMV),
            contract=Contract("bfloat16", n, *BESIDE, args={"variant": 0}),
        )
        for n in range(1, 5)
    )
    context = Context(
        arch="gfx936",
        device_type="cpu",
        toolchain=CATALOG[0].target.toolchain,
        ops={kernel.op: NativeOp(kernel.schema, lambda weight, x, argument: _result[0]) for kernel in (LLMM1, GEMV)},
        code_objects=frozenset({"gfx936"}),
        own_code_objects=frozenset({"gfx936"}),
        simulated="dispatch benchmark: stand-in operators that compute nothing",
    )
    try:
        yield layers.rocm_unquantized_gemm_impl, gate.build(context, CATALOG + beside).gemm
    finally:
        if known[0] is None:
            del sys.modules["vllm.platforms.rocm"]
        else:
            sys.modules["vllm.platforms.rocm"] = known[0]
        torch.nn.functional.linear, layers.num_compute_units, layers.ops = known[1:]


def cases() -> dict[str, tuple[Any, Any, Any]]:
    """Name -> (x, weight, bias): the hit, and each kind of miss that a model makes. The memory is never touched, so it is never there."""
    import torch

    def tensor(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.bfloat16, device="cpu")

    return {
        "hit: MLP gate/up, N=1": (tensor(1, 5120), tensor(34816, 5120), None),
        "hit: four N side by side, N=1": (tensor(1, 5120), tensor(*BESIDE), None),
        "hit: four N side by side, N=4": (tensor(4, 5120), tensor(*BESIDE), None),
        "miss: four N side by side, N=64": (tensor(64, 5120), tensor(*BESIDE), None),
        "miss: MLP gate/up, N=64": (tensor(64, 5120), tensor(34816, 5120), None),
        "miss: MLP down, N=1": (tensor(1, 17408), tensor(5120, 17408), None),
        "miss: MLP down, N=64": (tensor(64, 17408), tensor(5120, 17408), None),
        "miss: no record, with bias, N=1": (tensor(1, 5120), tensor(7168, 5120), tensor(7168)),
    }


def _round(function: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        function(*args)
    return (time.thread_time() - start) / calls * 1e6


def _kept(function: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Bytes that 1,000 calls leave allocated."""
    tracemalloc.start()
    function(*args)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(1000):
        function(*args)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return max(0, after - before)


def measure(rounds: int, calls: int, envs_cached: bool) -> list[Row]:
    """One row for each case. `envs_cached`: vLLM caches its environment variables once a server is up."""
    import vllm.envs as envs

    rows: list[Row] = []
    if envs_cached:
        envs.enable_envs_cache()
    try:
        with choice_only() as (upstream, gate):
            for name, args in cases().items():
                _native_device[0], _result[0] = name.startswith("hit"), args[0].new_empty(len(args[0]), len(args[1]))
                for function in (upstream, gate):
                    _round(function, args, calls)
                pairs = [(_round(upstream, args, calls), _round(gate, args, calls)) for _ in range(rounds)]
                theirs, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
                ratio = statistics.median(b / a for a, b in pairs)
                rows.append(Row(name, envs_cached, round(theirs, 2), round(ours, 2), round(ratio, 3), _kept(gate, args)))
    finally:
        envs.disable_envs_cache()
    return rows


def main(argv: Sequence[str]) -> int:
    """Command line. Exit 1: a case costs more than a fifth of upstream's selection, or keeps memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows = measure(args.rounds, args.calls, envs_cached=False) + measure(args.rounds, args.calls, envs_cached=True)
    if args.json:
        print(json.dumps({"limit": LIMIT, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(f"{'case':34} {'envs':9} {'upstream us':>11} {'gate us':>8} {'ratio':>6} {'kept bytes':>10}")
        for row in rows:
            cached = "cached" if row.envs_cached else "uncached"
            print(f"{row.case:34} {cached:9} {row.upstream_us:11.2f} {row.gate_us:8.2f} {row.ratio:6.3f} {row.kept_bytes:10}")
    too_dear = [row for row in rows if row.ratio > LIMIT or row.kept_bytes > 1024]
    for row in too_dear:
        print(f"too dear: {row.case}: ratio {row.ratio}, {row.kept_bytes} bytes kept", file=sys.stderr)
    return 1 if too_dear else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
