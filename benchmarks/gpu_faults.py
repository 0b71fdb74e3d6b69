"""Failing system calls under a capture: the gate's results are the same bits, on any CUDA device, with a stand-in for the native operator.

    python -m benchmarks.gpu_faults

Each fault in a process of its own: from before a CUDA graph is captured to the end of the process one system call fails. Every shape is
new to the gate inside the capture, so that file, folder, lock and memory of the counters are first asked for there.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.common.injected import inject

CALLS = ("openat", "mkdir", "pwrite64", "write", "ftruncate", "flock", "newfstatat", "rename", "unlink", "shmget", "shmat", "shmctl")
ERRORS = ("ENOSPC", "EIO")


def captured(call: str, error: str, folder: str) -> int:
    """Capture three calls of the gate while `call` fails with `error`, replay, compare. Returns the exit code."""
    import torch

    from benchmarks.gpu_rehearsal import stub_vllm

    stub_vllm()
    from vllm.dcu import gate
    from vllm.dcu.dispatch.context import Context, NativeOp
    from vllm.dcu.records.catalog import MISSION
    from vllm.dcu.records.kernels import LLMM1
    from vllm.dcu.records.record import Toolchain

    def native(weight: Any, x: Any, *args: int) -> Any:
        return torch.nn.functional.linear(x, weight) * 2

    os.environ["VLLM_DCU_STATS_DIR"] = folder
    operators = {LLMM1.op: NativeOp(LLMM1.schema, native)}
    context = Context("gfx936", "cuda", Toolchain("2.10.0", "6.2.0", "0.18.1"), operators, frozenset({"gfx936"}), simulated="a capture")
    made = gate.build(context, (replace(MISSION, id="small", contract=replace(MISSION.contract, m=64, k=128)),))
    shapes = ((64, 128, 1), (64, 128, 2), (32, 64, 1))
    inputs = [(torch.randn(n, k, device="cuda").bfloat16(), torch.randn(m, k, device="cuda").bfloat16()) for m, k, n in shapes]
    due = [native(w, x) if x.shape == (1, 128) else torch.nn.functional.linear(x, w) for x, w in inputs]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    inject(call, getattr(errno, error))
    with torch.cuda.graph(graph):
        got = [made.gemm(x, w) for x, w in inputs]
    graph.replay()
    torch.cuda.synchronize()
    same = all(torch.equal(a, b) for a, b in zip(due, got, strict=True))
    counted = sum(count.value for count in made.tally.snapshot())
    made.tally.finish()
    print(call, error, "the same bits" if same else "OTHER BITS", f"{counted} of {len(got)} counted", flush=True)
    return 0 if same and counted == len(got) else 1


def main() -> int:
    """Every fault. Exit 0: none changed a bit or a count; 1: one did."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as pool:

        def one(fault: tuple[str, str]) -> int:
            stats = Path(folder, *fault)
            return subprocess.run([sys.executable, "-m", "benchmarks.gpu_faults", *fault, str(stats)], check=False).returncode

        return int(any(pool.map(one, [(call, error) for call in CALLS for error in ERRORS])))


if __name__ == "__main__":
    code = captured(*sys.argv[1:]) if len(sys.argv) == 4 else main()
    sys.stdout.flush()
    os._exit(code)  # what fails now fails for the interpreter's own end, too
