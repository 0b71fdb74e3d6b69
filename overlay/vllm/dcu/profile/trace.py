# SPDX-License-Identifier: Apache-2.0
"""torch's trace of some steps, as what ran when: the host's frames, and the device's kernels with who launched them.  Standard library only."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "COMPILED",
    "STEP",
    "Frame",
    "Kernel",
    "Shape",
    "Trace",
    "TraceError",
    "linear_of",
    "read_trace",
    "segments",
    "size_of",
    "trace_of",
]

STEP = "vllm.dcu profile step"
"""The name of the annotation around each step."""

_CALLS = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime"})
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
COMPILED = "## Call CompiledFxGraph"
"""Inside it runs what torch.compile made; on a CPU, all of it that is in no operator is that code itself."""
_REGIONS = ("Torch-Compiled Region", "CompiledFunction", COMPILED, "TorchDynamo", "AOTDispatcher", "Inductor", "Pregraph bytecode")
"""What torch.compile annotates as if it were an operator."""
_BYTES = {"c10::BFloat16": 2, "c10::Half": 2, "float": 4, "double": 8, "long int": 8, "int": 4, "bool": 1, "signed char": 1}
_DTYPES = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32"}
# Operator -> where its activation and its weight stand; `mm` and `addmm` have the weight transposed.
_LINEARS = {
    "vllm::rocm_unquantized_gemm": (0, 1, False),
    "vllm::dcu_linear": (0, 1, False),
    "aten::linear": (0, 1, False),
    "aten::addmm": (1, 2, True),
    "aten::mm": (0, 1, True),
}


class TraceError(ValueError):
    """A file is no trace of steps. The message says what is missing."""


@dataclass(frozen=True)
class Shape:
    """A Linear's call: `out[n, m] = x[n, k] @ weight[m, k].T`."""

    dtype: str
    n: int
    m: int
    k: int


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """What the stepping thread was in: an operator (`op`), a named part of vLLM (`scope`) or a call of the runtime (`call`). Microseconds."""

    name: str
    kind: str
    begin: float
    end: float
    dims: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """What the device ran, and the frames in which it was launched, outermost first (a graph's kernels: where the graph was)."""

    name: str
    begin: float
    end: float
    chain: tuple[Frame, ...]


@dataclass(frozen=True)
class Trace:
    """Steps as (begin, end), each lasting until the next; the frames of the thread that stepped; the device's kernels (none on a CPU)."""

    steps: tuple[tuple[float, float], ...]
    host: tuple[Frame, ...]
    device: tuple[Kernel, ...]


def read_trace(path: Path) -> Trace:
    """The trace in a file that torch's profiler wrote, gzipped or not.

    Raises:
        TraceError: it cannot be read, or holds no step.
    """
    try:
        data = path.read_bytes()
        events = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise TraceError(f"{path} is no trace of torch's profiler ({error})") from None
    return trace_of(events)


def trace_of(events: Sequence[Mapping[str, Any]]) -> Trace:
    """The trace that `traceEvents` describe.

    Raises:
        TraceError: no step is marked in them.
    """
    spans = [event for event in events if event.get("ph") == "X"]
    marks = sorted((e for e in spans if e["name"] == STEP and e.get("cat") == "user_annotation"), key=lambda e: float(e["ts"]))
    if not marks:
        raise TraceError(f"no step is marked in the trace ({STEP!r})")
    begins = [float(mark["ts"]) for mark in marks]
    steps = tuple(zip(begins, [*begins[1:], begins[-1] + float(marks[-1]["dur"])], strict=True))
    thread = (marks[0]["pid"], marks[0]["tid"])
    host, launches = [], {}
    for event in spans:
        kind = _kind(event)
        if kind and (event["pid"], event["tid"]) == thread and event["name"] != STEP:
            host.append(_frame(event, kind))
            if kind == "call" and "correlation" in event.get("args", {}):
                launches[event["args"]["correlation"]] = host[-1]
    host.sort(key=lambda frame: (frame.begin, -frame.end))
    wanted = {id(frame) for frame in launches.values()}
    chains = {id(stack[-1]): stack for _, _, stack in segments(host) if stack and id(stack[-1]) in wanted}
    device = []
    for event in spans:
        if event.get("cat") in _DEVICE:
            launch = launches.get(event.get("args", {}).get("correlation"))
            begin = float(event["ts"])
            device.append(Kernel(str(event["name"]), begin, begin + float(event["dur"]), chains.get(id(launch), ())[:-1]))
    return Trace(steps, tuple(host), tuple(sorted(device, key=lambda kernel: kernel.begin)))


def _kind(event: Mapping[str, Any]) -> str:
    category = event.get("cat")
    if category == "user_annotation" or (category == "cpu_op" and str(event["name"]).startswith(_REGIONS)):
        return "scope"
    return "op" if category == "cpu_op" else "call" if category in _CALLS else ""


def _frame(event: Mapping[str, Any], kind: str) -> Frame:
    args = event.get("args", {})
    dims = tuple(tuple(d) if all(isinstance(n, int) for n in d) else () for d in args.get("Input Dims", ()))
    types = tuple(map(str, args.get("Input type", ())))
    begin = float(event["ts"])
    return Frame(str(event["name"]), kind, begin, begin + float(event["dur"]), dims, types)


def segments(frames: Sequence[Frame]) -> Iterator[tuple[float, float, tuple[Frame, ...]]]:
    """(begin, end, the frames that time lies in, outermost first) for all time from the first frame on; `frames` sorted, outer before inner."""
    stack: list[Frame] = []
    at = frames[0].begin if frames else 0.0
    for frame in frames:
        while stack and stack[-1].end <= frame.begin:
            if stack[-1].end > at:
                yield at, stack[-1].end, tuple(stack)
                at = stack[-1].end
            stack.pop()
        if frame.begin > at:
            yield at, frame.begin, tuple(stack)
            at = frame.begin
        stack.append(frame)
    while stack:
        if stack[-1].end > at:
            yield at, stack[-1].end, tuple(stack)
            at = stack[-1].end
        stack.pop()


def linear_of(frame: Frame) -> Shape | None:
    """The Linear that an operator is, where its shapes were recorded and it is one."""
    places = _LINEARS.get(frame.name)
    if places is None or len(frame.dims) <= places[1]:
        return None
    x, weight, transposed = frame.dims[places[0]], frame.dims[places[1]], places[2]
    if len(weight) != 2 or not x or len(frame.types) <= places[1]:
        return None
    m, k = weight[::-1] if transposed else weight
    rows = 1
    for size in x[:-1]:
        rows *= size
    return Shape(_DTYPES.get(frame.types[places[1]], frame.types[places[1]]), rows, m, k)


def size_of(frame: Frame) -> int:
    """Bytes of an operator's tensors as far as their shapes were recorded; of a Linear, what it writes as well."""
    total = 0
    for dims, kind in zip(frame.dims, frame.types, strict=False):
        count = _BYTES.get(kind, 0) if dims else 0
        for size in dims:
            count *= size
        total += count
    shape = linear_of(frame)
    return total + (shape.n * shape.m * _BYTES.get(frame.types[0], 0) if shape else 0)
