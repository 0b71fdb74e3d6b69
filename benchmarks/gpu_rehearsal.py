"""Rehearsal on a CUDA GPU: upstream's LLMM1 and this project's dispatch on real device tensors. A rehearsal, not evidence.

    python3 benchmarks/gpu_rehearsal.py --skinny path/to/skinny_gemms.cu --out DIR

What it shows: the kernel's own text computes, the gate chooses, the operator is traced, captured, replayed and found by a
profiler. What it cannot show: anything about gfx936, HIP, 64 lanes, or speed there. The device is 32 lanes wide, so the
numeric rung must refuse K=5120 and must pass K=4096. Exit code 0: every rung came out as it must. 1: one did not.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import logging
import platform
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import cuda_llmm1  # noqa: E402

M, K, K_RIGHT = 34816, 5120, 4096
LABEL = "rehearsal on a 32-wide device: not gfx936, not HIP, opens nothing"


@dataclass
class Rung:
    """One line of the report. `outcome` is what happened, `wanted` what must happen; both passed, refused, failed or not run."""

    rung: str
    claim: str
    outcome: str
    wanted: str = "passed"
    figures: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def good(self) -> bool:
        return self.outcome == self.wanted or self.outcome.startswith("not run")


def stub_vllm() -> None:
    """A package `vllm` that holds the overlay alone: the gate needs upstream's logger and version, and nothing else of it."""
    package = types.ModuleType("vllm")
    package.__path__ = [str(ROOT / "overlay" / "vllm")]
    package.__dict__["__version__"] = "0.18.1"
    logger = types.ModuleType("vllm.logger")
    logger.__dict__["init_logger"] = logging.getLogger
    sys.modules.update({"vllm": package, "vllm.logger": logger})


class Rehearsal:
    """The device, the operator and the rungs so far."""

    def __init__(self, device: str, iterations: int) -> None:
        self.device = device
        self.cuda = device == "cuda"
        self.iterations = iterations
        self.rungs: list[Rung] = []
        self.gate: Any = importlib.import_module("vllm.dcu.gate")
        self.context: Any = importlib.import_module("vllm.dcu.dispatch.context")
        self.catalog: Any = importlib.import_module("vllm.dcu.records.catalog")
        self.numerics: Any = importlib.import_module("vllm.dcu.evidence.numerics")
        self.mission: Any = self.catalog.MISSION
        self.op = torch.ops._rocm_C.LLMM1
        self.library = torch.library.Library("vllm", "FRAGMENT")

    def say(self, rung: Rung) -> None:
        self.rungs.append(rung)
        mark = "ok " if rung.good else "BAD"
        print(f"{mark} {rung.rung:<12} {rung.outcome:<10} {rung.claim} {json.dumps(rung.figures)} {rung.note}", flush=True)

    def check(self, rung: str, claim: str, holds: bool, **figures: Any) -> None:
        self.say(Rung(rung, claim, "passed" if holds else "failed", figures=figures))

    def weight(self, m: int, k: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return (torch.randn(m, k, device=self.device) * 0.02).to(dtype)

    def row(self, k: int, n: int = 1, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(n, k, device=self.device).to(dtype)

    def records(self) -> tuple[Any, ...]:
        """The built-in records and one made up for K=4096, where the kernel is right on this device."""
        contract = replace(self.mission.contract, m=M, k=K_RIGHT)
        return (*self.catalog.CATALOG, replace(self.mission, id=f"rehearsal-m{M}-k{K_RIGHT}", contract=contract))

    def make_gate(self, off: str = "") -> Any:
        context = self.context.assumed_context("gfx936", self.mission)
        if off:
            env = importlib.import_module("vllm.dcu.env")
            context = replace(context, switches=replace(context.switches, capabilities={off: env.Mode.OFF}))
        context = replace(context, device_type=self.device, ops=self.context.native_ops(), simulated=LABEL)
        return self.gate.build(context, self.records())

    def register(self, gate: Any, name: str) -> Any:
        """Register as upstream does it: schema inferred, fake from (*x.shape[:-1], M). Returns the operator."""
        schema = torch.library.infer_schema(gate.gemm, mutates_args=[])
        self.library.define(name + schema)
        self.library.impl(name, gate.gemm, dispatch_key="CUDA" if self.cuda else "CPU")
        torch.library.register_fake(f"vllm::{name}", lambda x, weight, bias=None: x.new_empty((*x.shape[:-1], weight.shape[0])))
        return getattr(torch.ops.vllm, name)

    def hits(self, gate: Any) -> int:
        return sum(c.value for c in gate.tally.snapshot() if c.key.kind == "hit")


def kernel_rung(run: Rehearsal) -> None:
    """LLMM1 against float64: right up to K=4096, refused beyond, every dtype and rows_per_block."""
    for k in (K_RIGHT, K):
        for dtype in (torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            weight, x = run.weight(M, k, dtype), run.row(k, dtype=dtype)
            exact = torch.cat([part.double() @ x[0].double() for part in weight.split(4096)])
            generic = _relative(torch.nn.functional.linear(x, weight)[0], exact)
            limit = run.numerics.ceiling(name, M)
            for rows in (2, 4, 8, 16):
                error = _relative(run.op(weight, x, rows)[0], exact)
                run.say(
                    Rung(
                        "kernel",
                        f"LLMM1 {M}x{k} {name} rows_per_block={rows} against float64",
                        "passed" if error <= limit else "refused",
                        "passed" if k == K_RIGHT else "refused",
                        {"relative_error": _round(error), "ceiling": _round(limit), "F.linear": _round(generic)},
                    )
                )


def _relative(out: torch.Tensor, exact: torch.Tensor) -> float:
    return float((out.double() - exact).norm() / exact.norm())


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def dispatch_rung(run: Rehearsal) -> None:
    """The gate on real tensors: exactly the fit calls hit, all others are F.linear bit for bit."""
    gate, linear = run.make_gate(), torch.nn.functional.linear
    weight, x = run.weight(M, K_RIGHT), run.row(K_RIGHT)
    wide = torch.empty(M, K_RIGHT + 64, device=run.device, dtype=weight.dtype)
    wide[:, :K_RIGHT] = weight
    flat = torch.empty(K_RIGHT + 1, device=run.device, dtype=x.dtype)
    flat[1:] = x[0]
    bias = torch.zeros(M, device=run.device, dtype=x.dtype)
    fits = {"(1, K)": x, "(K,)": x[0], "(1, 1, K)": x[None], "a slice of a split tensor": run.row(2 * K_RIGHT).split(K_RIGHT, 1)[1]}
    for name, row in fits.items():
        before = run.hits(gate)
        out = gate.gemm(row, weight)
        direct = run.op(weight, row.reshape(1, K_RIGHT), 4).reshape(*row.shape[:-1], M)
        good = run.hits(gate) == before + 1 and torch.equal(out, direct)
        run.check("dispatch", f"x {name}: one hit, LLMM1's own bits", good)
    misses: dict[str, tuple[Any, ...]] = {
        "N=0": (run.row(K_RIGHT, 0), weight),
        "N=2": (run.row(K_RIGHT, 2), weight),
        "N=5": (run.row(K_RIGHT, 5), weight),
        "bias of zeros": (x, weight, bias),
        "weight is a view with gaps": (x, wide[:, :K_RIGHT]),
        "x strided": (run.row(2 * K_RIGHT)[:, ::2], weight),
        "x off by two bytes": (flat[1:][None], weight),
        "weight off by one row of 2 bytes": (x, _shifted(weight)),
        "fp16": (x.half(), weight.half()),
        "tensor-parallel half of M": (x, weight[: M // 2]),
        "M=34818": (x, torch.cat([weight, weight[:2]])),
    }
    for name, call in misses.items():
        before = run.hits(gate)
        out = gate.gemm(*call)
        good = run.hits(gate) == before and torch.equal(out, linear(*call))
        run.check("dispatch", f"{name}: no hit, F.linear bit for bit", good)
    closed = run.make_gate(off=f"rehearsal-m{M}-k{K_RIGHT}")
    out = closed.gemm(x, weight)
    run.check("dispatch", "switched off: no hit, F.linear bit for bit", run.hits(closed) == 0 and torch.equal(out, linear(x, weight)))
    mission, shape = run.make_gate(), (run.mission.contract.m, run.mission.contract.k)
    mission.gemm(run.row(shape[1]), run.weight(*shape))
    run.check("dispatch", f"the mission's own record, {shape[0]}x{shape[1]}: one hit", run.hits(mission) == 1)


def _shifted(weight: torch.Tensor) -> torch.Tensor:
    """The same numbers, contiguous, two bytes past an aligned address."""
    store = torch.empty(weight.numel() + 1, device=weight.device, dtype=weight.dtype)
    store[1:] = weight.flatten()
    return store[1:].view(weight.shape)


def compile_rung(run: Rehearsal) -> None:
    """opcheck, then one fullgraph compilation without guards, as vLLM's, whose choice follows the run-time N."""
    gate = run.make_gate()
    op = run.register(gate, "rocm_unquantized_gemm")
    weight = run.weight(M, K_RIGHT)
    for n in (1, 3):
        results = torch.library.opcheck(op.default, (run.row(K_RIGHT, n), weight))
        run.check("graph", f"torch.library.opcheck, N={n}", all(v == "SUCCESS" for v in results.values()), **results)
    graphs: list[list[str]] = []

    def backend(module: torch.fx.GraphModule, _inputs: Any, **_options: Any) -> Callable[..., Any]:
        graphs.append([getattr(node.target, "__name__", str(node.target)) for node in module.graph.nodes if node.op == "call_function"])
        return module.forward

    compiled = torch.compile(
        lambda x, w: torch.nn.functional.silu(op(x, w)),
        fullgraph=True,
        dynamic=True,
        backend=backend,
        options={"guard_filter_fn": lambda guards: [False for _ in guards]},
    )
    hits = []
    for n in (8, 1, 2, 1, 7):
        x = run.row(K_RIGHT, n)
        before = run.hits(gate)
        out = compiled(x, weight)
        hits.append(run.hits(gate) - before)
        direct = run.op(weight, x, 4) if n == 1 else torch.nn.functional.linear(x, weight)
        if not torch.equal(out, torch.nn.functional.silu(direct)):
            hits.append(-n)
    one_op = len(graphs) == 1 and sum("rocm_unquantized_gemm" in name for name in graphs[0]) == 1
    run.check("graph", "fullgraph, N = 8 1 2 1 7: hits 0 1 0 1 0", hits == [0, 1, 0, 1, 0], hits=hits)
    run.check("graph", "one graph for all N, the operator in it once", one_op, graphs=graphs)
    inductor = torch.compile(lambda x, w: torch.nn.functional.silu(op(x, w)) + 1, fullgraph=True)
    x, before = run.row(K_RIGHT), run.hits(gate)
    close = torch.allclose(inductor(x, weight).float(), (torch.nn.functional.silu(run.op(weight, x, 4)) + 1).float(), rtol=0.01, atol=0.01)
    run.check("graph", "inductor, fullgraph, N=1: one hit, same numbers", run.hits(gate) == before + 1 and close)


def capture_rung(run: Rehearsal) -> None:
    """The first call of all inside a capture; replays on new data; the kernel by name in a profile of the replays."""
    if not run.cuda:
        run.say(Rung("graph", "capture, replay and profile", "not run: no CUDA device"))
        return
    from torch.profiler import ProfilerActivity, profile

    replays = 5
    for n, wanted in ((1, replays), (2, 0)):
        gate = run.make_gate()
        weight, x = run.weight(M, K_RIGHT), run.row(K_RIGHT, n)
        torch.nn.functional.linear(run.row(64, n), run.weight(64, 64))  # cuBLAS makes its handle outside of captures
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = gate.gemm(x, weight)
        counted = run.hits(gate)
        same = True
        for _ in range(3):
            x.copy_(run.row(K_RIGHT, n))
            graph.replay()
            # The generic GEMM may take another algorithm inside a capture: the same numbers, not the same bits.
            direct = run.op(weight, x, 4) if n == 1 else torch.nn.functional.linear(x, weight)
            same = same and (torch.equal(out, direct) if n == 1 else torch.allclose(out, direct, rtol=0.02, atol=0.02))
        run.check("graph", f"N={n}: first call inside a capture, replays on new data are right", same)
        steady = run.hits(gate) == counted == (n == 1)
        run.check("graph", f"N={n}: counters count the dispatch at capture, no replay", steady, counted=counted)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            for _ in range(replays):
                graph.replay()
            torch.cuda.synchronize()
        kernels = [event.name for event in trace.events() if "LLGemm1_kernel" in event.name]
        claim = f"N={n}: profiler sees LLGemm1_kernel {wanted} times in {replays} replays"
        run.check("graph", claim, len(kernels) == wanted, seen=len(kernels), name=kernels[0] if kernels else "")


def timing_rung(run: Rehearsal) -> None:
    """Medians over rotating weights, alternating, through the gate and around it. Says nothing about a DCU."""
    if not run.cuda:
        run.say(Rung("end-to-end", "timing", "not run: no CUDA device"))
        return
    gate = run.make_gate()
    for k in (K_RIGHT, K):
        weights, x = [run.weight(M, k) for _ in range(3)], run.row(k)
        calls: dict[str, Callable[[torch.Tensor], Any]] = {
            "F.linear": lambda w, x=x: torch.nn.functional.linear(x, w),
            "LLMM1": lambda w, x=x: run.op(w, x, 4),
            "gate": lambda w, x=x: gate.gemm(x, w),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for i in range(run.iterations + 10):
            for name, call in calls.items():
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda._sleep(200_000)  # the device is kept busy, so that the host's launch time is not measured
                start.record()
                call(weights[i % 3])
                stop.record()
                stop.synchronize()
                if i >= 10:
                    times[name].append(start.elapsed_time(stop) * 1000)
        figures = {f"{name} us": _round(statistics.median(t)) for name, t in times.items()}
        spread = {f"{name} p10-p90": [_round(v) for v in _deciles(t)] for name, t in times.items()}
        ratio = _round(statistics.median(times["F.linear"]) / statistics.median(times["LLMM1"]))
        note = "the numbers are WRONG at this K on 32 lanes: time only" if k == K else ""
        rate = _round(M * k * 2 / statistics.median(times["LLMM1"]) / 1e3)
        claim = f"kernel time {M}x{k} bf16, medians of {run.iterations}, 3 rotating weights"
        run.say(Rung("kernel", claim, "passed", figures={**figures, "ratio": ratio, "GB/s": rate, **spread}, note=note))
    weight, x, closed = run.weight(64, 64), run.row(64), run.make_gate()
    host = {}
    for name, call in {"F.linear": lambda: torch.nn.functional.linear(x, weight), "gate": lambda: closed.gemm(x, weight)}.items():
        rounds = []
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(200):
                call()
            rounds.append((time.perf_counter() - begin) / 200 * 1e6)
        host[f"{name} us/call"] = _round(statistics.median(rounds))
    run.say(Rung("dispatch", "host time of a small call, closed shape", "passed", figures=host))


def _deciles(values: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=10)
    return cuts[0], cuts[-1]


RUNGS = (kernel_rung, dispatch_rung, compile_rung, capture_rung, timing_rung)


def report(run: Rehearsal, facts: dict[str, Any], out: Path) -> None:
    """Write gpu-rehearsal.json and .md."""
    out.mkdir(parents=True, exist_ok=True)
    good = all(r.good for r in run.rungs)
    data = {
        "kind": "rehearsal",
        "border": LABEL,
        "on_hardware": False,
        "as_expected": good,
        **facts,
        "rungs": [asdict(r) for r in run.rungs],
    }
    (out / "gpu-rehearsal.json").write_text(json.dumps(data, indent=1) + "\n")
    lines = ["# Rehearsal on a CUDA GPU", "", f"**{LABEL}.**", "", "| fact | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += ["", "| rung | claim | outcome | as it must | figures |", "|---|---|---|---|---|"]
    for r in run.rungs:
        figures = "; ".join(f"{k} {v}" for k, v in r.figures.items())
        lines.append(f"| {r.rung} | {r.claim} | {r.outcome} | {'yes' if r.good else '**NO**'} | {figures} {r.note} |")
    (out / "gpu-rehearsal.md").write_text("\n".join(lines) + "\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--skinny", type=Path, required=True, help="upstream's csrc/rocm/skinny_gemms.cu")
    parser.add_argument("--out", type=Path, default=Path("rehearsal"), help="where the report goes")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: try this script itself, on the host build")
    parser.add_argument("--iterations", type=int, default=100)
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device here: run this on one, or try the script with --device cpu", file=sys.stderr)
        return 2
    began = time.monotonic()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    stub_vllm()
    cuda = options.device == "cuda"
    print(f"building LLMM1 for {options.device} ...", flush=True)
    digest = cuda_llmm1.build_cuda(options.skinny, options.out.resolve() / "build") if cuda else cuda_llmm1.build_cpu(options.skinny)
    run = Rehearsal(options.device, options.iterations)
    run.say(
        Rung("code-object", "the kernel's own text compiles and registers", "passed", figures={"seconds": round(time.monotonic() - began)})
    )
    for rung in RUNGS:
        try:
            rung(run)
        except Exception as error:  # a rung that raises is a finding; the others still run
            run.say(Rung(rung.__name__, "raised", "failed", note=f"{type(error).__name__}: {error}"[:600]))
        if cuda:
            torch.cuda.empty_cache()
    facts = {
        "device": torch.cuda.get_device_name() if cuda else f"CPU {platform.machine()}",
        "capability": str(torch.cuda.get_device_capability()) if cuda else "none",
        "lanes of a warp": 32,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "nvcc": cuda_llmm1.nvcc_version() if cuda else "not used",
        "python": platform.python_version(),
        "region sha256": digest,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "seconds": round(time.monotonic() - began),
    }
    report(run, facts, options.out)
    bad = [r for r in run.rungs if not r.good]
    print(f"\n{len(run.rungs) - len(bad)} of {len(run.rungs)} as they must be; report in {options.out}; {LABEL}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
