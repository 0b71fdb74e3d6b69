"""`profile`'s figures against costs that are known, on a CUDA GPU (or, for trying the script, a CPU): a rehearsal, and no evidence about gfx936.

    python3 benchmarks/gpu_profile.py --out DIR

Planted into small steps, eager and replayed from a graph: a slow Linear, a slow operator, a fallback, a gap of the host, an operator on the CPU, and a copy
of known bytes. Each must be named first with its milliseconds within a tenth. Prints JSON and writes it to DIR. Exit 0: each was; 1: one was not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.gpu_rehearsal import stub_vllm  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
SIZE = 8192 if CUDA else 512
SLOW = (SIZE, SIZE // 2)
STEPS = 8
PLANTED_MS = 4.0 if CUDA else 60.0
_kept: list[Any] = []


@dataclass(frozen=True)
class Check:
    """What was planted and what was found, in milliseconds (of the copy: GB/s)."""

    name: str
    planted: float
    found: float
    first: str
    good: bool


def pause() -> Callable[[], object]:
    """Keep the device busy for PLANTED_MS or so."""
    if not CUDA:
        return lambda: time.sleep(PLANTED_MS / 1e3)
    cycles = 1_000_000
    for _ in range(500):
        torch.cuda._sleep(cycles)  # the clock rises first
    return partial(torch.cuda._sleep, int(cycles * PLANTED_MS / milliseconds(partial(torch.cuda._sleep, cycles))))


def milliseconds(function: Callable[[], object]) -> float:
    """The median of five runs: on the device by its events, on a CPU by the clock."""
    found = []
    for _ in range(5):
        if CUDA:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            function()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end))
        else:
            at = time.perf_counter()
            function()
            found.append((time.perf_counter() - at) * 1e3)
    return statistics.median(found)


def operators(wait: Callable[[], object]) -> None:
    """`vllm::rocm_unquantized_gemm`, slow for one shape, and `planted::slow`."""

    def gemm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if tuple(weight.shape) == SLOW:
            wait()
        return torch.nn.functional.linear(x, weight, bias)

    def slow(x: torch.Tensor) -> torch.Tensor:
        wait()
        return x + 1

    for name, schema, function in (
        ("vllm", "rocm_unquantized_gemm(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor", gemm),
        ("planted", "slow(Tensor x) -> Tensor", slow),
    ):
        library = torch.library.Library(name, "FRAGMENT")
        library.define(schema)
        library.impl(schema.partition("(")[0], function, DEVICE.upper())
        _kept.append(library)


class Model:
    """Four Linears and a normalisation each; what is planted stands between the second and the third."""

    def __init__(self) -> None:
        self.weights = [torch.randn(SIZE, SIZE, device=DEVICE, dtype=torch.bfloat16) / SIZE for _ in range(4)]
        self.slow = torch.randn(*SLOW, device=DEVICE, dtype=torch.bfloat16) / SIZE
        self.x = torch.randn(1, SIZE, device=DEVICE, dtype=torch.bfloat16)

    def body(self, planted: str) -> torch.Tensor:
        """What a graph can hold."""
        x = self.x
        for i, weight in enumerate(self.weights):
            if i == 2 and planted == "linear":
                x = torch.cat([torch.ops.vllm.rocm_unquantized_gemm(x[:, : SLOW[1]], self.slow)[:, : SIZE // 2], x[:, SIZE // 2 :]], dim=1)
            if i == 2 and planted == "operator":
                x = torch.ops.planted.slow(x)
            x = torch.nn.functional.rms_norm(torch.ops.vllm.rocm_unquantized_gemm(x, weight), (SIZE,))
        return x.sum()

    def step(self, planted: str, graph: bool) -> Callable[[], object]:
        """One step that waits for its result: eager, or a replay with what is planted on the host around it."""
        out = self.body(planted)
        replay: Callable[[], object] = lambda: None  # noqa: E731
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                out = self.body(planted)
            replay = captured.replay

        def step() -> float:
            with torch.profiler.record_function("forward"):
                if graph:
                    replay()
                    found = out
                else:
                    found = self.body(planted)
            value = float(found.item())
            with torch.profiler.record_function("between"):
                begin = time.perf_counter()
                if planted == "gap":
                    time.sleep(PLANTED_MS / 1e3)
                if planted == "cpu":
                    HOST.sort()
                ON_HOST.append((time.perf_counter() - begin) * 1e3)
            return value

        return step


HOST = torch.rand(1 << 20)
ON_HOST: list[float] = []
"""Milliseconds of what was planted on the host, step by step."""
WANTED = {"linear": ("linear-below-floor", f"{SLOW[0]} x {SLOW[1]}"), "operator": ("operator-below-floor", "planted::slow")}
WANTED |= {"gap": ("host-gap", "'between'"), "cpu": ("operator-on-the-cpu", "aten::sort"), "fallback": ("capability-shut", "some-record")}


def found_in(folder: Path, model: Model, planted: str, graph: bool, names: Any, read: float) -> tuple[Any, Any, Any]:
    """(suggestions, suggestions where a record is open for the slow Linear, the eager names) of steps with something planted in them."""
    from vllm.dcu.evidence.ladder import measure
    from vllm.dcu.profile.account import account
    from vllm.dcu.profile.pieces import names_of
    from vllm.dcu.profile.report import Linear
    from vllm.dcu.profile.stepping import profiled, timed
    from vllm.dcu.profile.suggest import Facts, suggestions
    from vllm.dcu.profile.trace import Shape, read_trace

    step = model.step(planted, graph)
    for _ in range(3):
        step()
    path = folder / f"{planted}-{'graph' if graph else 'eager'}.json.gz"
    profiled(step, 2, path, shapes=True)
    plain = timed(step, STEPS)
    profiled(step, STEPS, path, shapes=not graph)
    trace = read_trace(path)
    shape = Shape("bfloat16", 1, *SLOW)
    both = []
    for choices in ({}, {shape: Linear("bfloat16", 1, *SLOW, "", "some-record", ())}):
        table = account(trace, choices, names)
        total, lasted = sum(line.us for line in table.lines), statistics.fmean(table.profiled)
        assert abs(total - lasted) < 1e-6 * lasted, f"the lines are {total} us and the step is {lasted}"
        facts = Facts(
            table.lines, measure(plain).median, lasted - measure(plain).median, read, 0.0, eager=not graph, captured=graph,
            model="M", arguments=(), compare="again",
        )  # fmt: skip
        both.append(suggestions(facts))
    return both[0], both[1], names_of(trace)


def copy_check(folder: Path) -> Check:
    """The GB/s of a copy, by the trace and the bytes that it says, against the same copy by the device's own events."""
    from vllm.dcu.profile.account import account
    from vllm.dcu.profile.stepping import profiled
    from vllm.dcu.profile.trace import read_trace

    source = torch.ones(1 << (28 if CUDA else 23), device=DEVICE)
    target = torch.empty_like(source)

    def step() -> None:
        torch.add(source, 1.0, out=target)
        target[-1].item()

    step()
    wanted = 2 * source.nbytes / milliseconds(lambda: torch.add(source, 1.0, out=target)) / 1e6
    profiled(step, STEPS, folder / "copy.json.gz", shapes=True)
    line = max(account(read_trace(folder / "copy.json.gz"), {}).lines, key=lambda line: line.us)
    assert line.bytes == 2 * source.nbytes, f"the trace says {line.bytes} bytes"
    return Check("copy of known bytes, GB/s", wanted, line.gbs, line.operator, abs(line.gbs / wanted - 1) <= 0.1)


def checks(folder: Path) -> list[Check]:
    """Every check that this device can have."""
    from vllm.dcu.verify.rungs.timing import read_bandwidth

    torch.set_num_threads(1)  # a pool that other processes disturb varies more than a tenth
    wait = pause()
    operators(wait)
    model, read = Model(), read_bandwidth(DEVICE, 5).median
    found = [copy_check(folder)]
    for planted in ("linear", "operator", "gap", "cpu"):
        if planted == "cpu" and not CUDA:
            continue  # there all is on the CPU
        names = None
        for graph in (False, True) if CUDA else (False,):
            mode, ms = "graph" if graph else "eager", milliseconds(wait)  # beside what it is compared with: a clock may drift
            plain, recorded, eager_names = found_in(folder, model, planted, graph, names, read)
            if planted in ("gap", "cpu"):
                ms = statistics.median(ON_HOST[-STEPS:])
            found.append(_check(planted, mode, ms, plain))
            if planted == "linear":
                found.append(_check("fallback", mode, ms, recorded))
            names = eager_names
    return found


def _check(planted: str, mode: str, cost: float, suggested: Any) -> Check:
    if not suggested:
        return Check(f"{planted}, {mode}", cost, 0.0, "nothing was suggested", good=False)
    first, (kind, words) = suggested[0], WANTED[planted]
    good = first.kind.value == kind and words in first.subject and abs(first.ms / cost - 1) <= 0.1
    return Check(f"{planted}, {mode}", cost, first.ms, f"[{first.kind.value}] {first.subject}", good)


def main() -> int:
    """Run every check and print what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="where the JSON goes as well")
    args = parser.parse_args()
    stub_vllm()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = checks(Path(folder))
    name = torch.cuda.get_device_properties(0).name if CUDA else "a CPU"
    data = {
        "device": name, "torch": torch.__version__, "seconds": round(time.monotonic() - begun, 1), "good": all(c.good for c in found),
        "checks": [asdict(check) for check in found],
    }  # fmt: skip
    text = json.dumps(data, indent=1)
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "gpu-profile.json").write_text(text + "\n", encoding="utf-8")
    return 0 if data["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
