"""Traces made by hand, as torch's profiler writes them: what happened in them is known to the microsecond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.dcu.profile.trace import STEP

__all__ = ["BF16", "Built", "step_of"]

BF16 = "c10::BFloat16"
Node = tuple[Any, ...]


class Built:
    """Events of a trace. Host nodes are `(name, us, children, {dims, types, launch})`; a launch is `(kernel, us)`, run after all before it."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 1000.0
        self.device = 0.0
        self.correlation = 0

    def event(self, category: str, name: str, begin: float, us: float, tid: int = 1, **args: Any) -> None:
        """One complete event."""
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": begin, "dur": us, "args": args})

    def step(self, nodes: Sequence[Node], repeat: int = 1) -> Built:
        """`repeat` equal steps; each waits for the device at its end."""
        for _ in range(repeat):
            begin = self.now
            for node in nodes:
                self.node(*node)
            self.now = max(self.now, self.device)
            self.event("user_annotation", STEP, begin, self.now - begin)
        return self

    def node(self, name: str, us: float = 0.0, children: Sequence[Node] = (), more: Mapping[str, Any] | None = None) -> None:
        """`us` of its own, then its children. `""` is Python alone; `[name]` a scope; `graph` a replay of all its launches."""
        more = more or {}
        begin, at = self.now, len(self.events)
        self.now += us
        for launch in more.get("launch", ()):
            self.launch(*launch, graph="graph" in more)
        if "wait" in more:
            self.event("cuda_runtime", "cudaStreamSynchronize", self.now, max(0.0, self.device - self.now))
            self.now = max(self.now, self.device)
        for child in children:
            self.node(*child)
        if name:
            args = {"Input Dims": more.get("dims", []), "Input type": more.get("types", [])}
            self.event(*(("user_annotation", name[1:-1]) if name[0] == "[" else ("cpu_op", name)), begin, self.now - begin, **args)
            # The profiler writes what begins first first.
            self.events.insert(at, self.events.pop())

    def launch(self, kernel: str, us: float, graph: bool = False) -> None:
        """A kernel of `us` on the device, after what it runs already; of a graph, all under one call."""
        if not graph or not self.events or self.events[-1]["cat"] != "kernel":
            self.correlation += 1
            self.event("cuda_runtime", "cudaGraphLaunch" if graph else "cudaLaunchKernel", self.now, 1.0, correlation=self.correlation)
            self.now += 1.0
        begin = max(self.now, self.device)
        self.event("kernel", kernel, begin, us, tid=99, correlation=self.correlation)
        self.device = begin + us


def linear(m: int, k: int, n: int = 1, us: float = 0.0, launch: Sequence[tuple[str, float]] = (), inner: str = "") -> Node:
    """A bf16 Linear's operator, with the operator that computes it inside where one is named."""
    more = {"dims": [[n, k], [m, k], []], "types": [BF16, BF16, ""]}
    if inner:
        return ("vllm::rocm_unquantized_gemm", 2.0, [(inner, us, (), {"launch": launch})], more)
    return ("vllm::rocm_unquantized_gemm", us, (), {**more, "launch": launch})


def step_of(*planted: Node, device: bool) -> list[Node]:
    """A small decode step of 2 ms or so with what is planted in its middle: on a device, or on the host alone."""

    def op(name: str, us: float, dims: Sequence[Sequence[int]] = ((1, 5120),)) -> Node:
        types = [BF16] * len(dims)
        return (name, 3.0, (), {"dims": dims, "types": types, "launch": [(f"k_{name}", us)]}) if device else (
            name, us, (), {"dims": dims, "types": types})  # fmt: skip

    gemm = (linear(5120, 5120, launch=[("Cijk_gemm", 60.0)], us=3.0)) if device else linear(5120, 5120, us=60.0)
    forward = [op("_C::rms_norm", 8.0), gemm, op("vllm::unified_attention_with_output", 20.0), *planted, op("_C::rms_norm", 8.0), gemm]
    return [
        ("[gpu_model_runner: preprocess]", 4.0),
        ("[gpu_model_runner: forward]", 2.0, forward),
        ("[gpu_model_runner: sample]", 2.0, [op("aten::argmax", 10.0), *([("", 1.0, (), {"wait": True})] if device else [])]),
    ]
