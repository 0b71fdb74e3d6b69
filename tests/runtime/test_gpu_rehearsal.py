"""The GPU rehearsal's own checks, tried on the CPU with the host build as the kernel: they hold, and each is seen failing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import not_run

ROOT = Path(__file__).resolve().parents[2]

# In a process of its own: the script puts a stub in the place of vLLM.
DRIVER = """
import sys
from pathlib import Path
import torch
from benchmarks import cuda_llmm1, gpu_rehearsal as script
skinny, out, plant = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
script.M = 64
torch.manual_seed(0)
torch.set_grad_enabled(False)
script.stub_vllm()
digest = cuda_llmm1.build_cpu(skinny, wave=64 if plant == "a device that is right at K=5120" else 32)
run = script.Rehearsal("cpu", 1)
linear = torch.nn.functional.linear
if plant == "a gate that lets N=2 through":
    refusal = run.gate._refusal
    run.gate._refusal = lambda x, w, bias, slot, on: -1 if bias is None and x.numel() == 2 * slot.k else refusal(x, w, bias, slot, on)
    llmm1 = run.op
    first = lambda w, x, rows: torch.cat([llmm1(w, row[None], rows) for row in x])
    ops = run.context.native_ops()
    wrong = {name: run.context.NativeOp(op.schema, first) for name, op in ops.items()}
    run.context.native_ops = lambda: wrong
if plant == "an op that is never called":
    ops = run.context.native_ops()
    wrong = {name: run.context.NativeOp(op.schema, lambda w, x, rows: linear(x, w)) for name, op in ops.items()}
    run.context.native_ops = lambda: wrong
if plant == "a counter that loses hits":
    run.hits = lambda gate: 0
if plant == "a gate outside the operator":
    make = run.register
    run.register = lambda gate, name: type("Op", (), {"default": make(gate, name).default, "__call__": staticmethod(gate.gemm)})()
ONLY = {
    "a device that is right at K=5120": (script.kernel_rung,),
    "a gate outside the operator": (script.compile_rung,),
    "nothing": script.RUNGS,
}
for rung in ONLY.get(plant, (script.dispatch_rung,)):
    try:
        rung(run)
    except Exception as error:
        run.say(script.Rung(rung.__name__, "raised", "failed", note=str(error)[:300]))
script.report(run, {"region sha256": digest}, out)
"""


def rehearse(tmp_path: Path, skinny: Path, plant: str) -> tuple[list[str], dict[str, object]]:
    """The claims that did not come out as they must, and the report."""
    command = [sys.executable, "-c", DRIVER, str(skinny), str(tmp_path), plant]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads((tmp_path / "gpu-rehearsal.json").read_text())
    bad = [r["claim"] for r in report["rungs"] if r["outcome"] != r["wanted"] and not r["outcome"].startswith("not run")]
    assert report["as_expected"] == (not bad)
    return bad, report


@pytest.fixture(scope="module")
def skinny() -> Path:
    from scripts.common.paths import BUILD

    path = BUILD / "vllm" / "csrc" / "rocm" / "skinny_gemms.cu"
    if not path.is_file():
        not_run("build/vllm is not there: run `make apply` first")
    return path


def test_every_rung_comes_out_as_it_must_and_the_report_says_what_did_not_run(tmp_path: Path, skinny: Path) -> None:
    bad, report = rehearse(tmp_path, skinny, "nothing")
    assert bad == []
    assert report["on_hardware"] is False
    page = (tmp_path / "gpu-rehearsal.md").read_text()
    assert "opens nothing" in page
    assert "not run: no CUDA device" in page


@pytest.mark.parametrize(
    ("plant", "seen"),
    [
        ("a device that is right at K=5120", "LLMM1 64x5120 bfloat16 rows_per_block=4 against float64"),
        ("a gate that lets N=2 through", "N=2: no hit, F.linear bit for bit"),
        ("an op that is never called", "x (1, K): one hit, LLMM1's own bits"),
        ("a counter that loses hits", "x (1, K): one hit, LLMM1's own bits"),
        ("a gate outside the operator", "raised"),
    ],
)
def test_a_planted_fault_is_in_the_report(tmp_path: Path, skinny: Path, plant: str, seen: str) -> None:
    bad, _report = rehearse(tmp_path, skinny, plant)
    assert seen in bad
