"""The operator's results are the same bits whatever fails around its counters: every system call, eager and compiled, from the first shape on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.common.injected import CALLS
from tests.support import not_run

ROOT = Path(__file__).parents[2]

# torch is imported once; a fork stands for each fault. In a fork every shape is new, so that the compiled calls come to the counters too.
CODE = """
import errno, logging, os, sys, traceback
from pathlib import Path
from dataclasses import replace
sys.path.insert(0, sys.argv[1])
folder = Path(sys.argv[2])
os.environ["VLLM_DCU_STATS_DIR"] = str(folder)
os.environ["VLLM_DCU_SIGNATURES"] = str(folder / "signatures")
import torch
from scripts.common.injected import CALLS, ERRORS, inject
from tests.runtime.dcu import SMALL, K, M, Native, context, layers, registered
from vllm.dcu import gate as gates
from vllm.dcu.dispatch import aside, counters
from vllm.dcu.dispatch.signatures import recorded
counters._AT_EXIT = aside.PATIENCE = 0.2
torch.manual_seed(0)

def native(weight, x, *args):
    if weight.shape[1] == 256:
        raise RuntimeError("planted: the kernel raises, which is logged")
    return torch.nn.functional.linear(x.float(), weight.float()).to(x.dtype) * 2

records = (SMALL, replace(SMALL, id="raises", contract=replace(SMALL.contract, k=256)))
built = gates.build(context(native), records)
gemm = recorded(built.gemm, hits=lambda: 0)
shapes = [(M, K, 1), (M, K, 2), (32, 64, 1), (7, 5, 3), (M, 256, 1)]
inputs = [(torch.randn(n, k).bfloat16(), torch.randn(m, k).bfloat16()) for m, k, n in shapes]

def run(function):
    return [function(x, w) for x, w in inputs]

with registered(gemm):
    op = torch.ops.vllm.rocm_unquantized_gemm
    compiled = torch.compile(lambda x, w: op(x, w, None) + 0, backend="eager", dynamic=True)
    due = [f(x, w) for x, w in inputs for f in (lambda x, w: op(x, w, None), compiled)]
    for call in sorted(CALLS):
        for error in ERRORS:
            child = os.fork()
            if child:
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                print(call, errno.errorcode[error], status, flush=True)
                continue
            try:
                if not inject(call, error):
                    os._exit(77)
                got = [f(x, w) for x, w in inputs for f in (lambda x, w: op(x, w, None), compiled)]
                assert all(torch.equal(a, b) for a, b in zip(due, got, strict=True)), "other bits"
                total = sum(count.value for count in built.tally.snapshot())
                assert total == len(got), f"{total} counted, {len(got)} called"
                built.tally.finish()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[tuple[str, str], int], str]:
    folder = tmp_path_factory.mktemp("stats")
    done = subprocess.run([sys.executable, "-c", CODE, str(ROOT), str(folder)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = (line.split() for line in done.stdout.splitlines())
    return {(call, error): int(status) for call, error, status in (row for row in rows if len(row) == 3)}, done.stderr


@pytest.mark.parametrize("call", sorted(CALLS))
def test_no_failing_call_changes_a_bit_or_a_count(call: str, ends: tuple[dict[tuple[str, str], int], str]) -> None:
    found = {error: status for (name, error), status in ends[0].items() if name == call}
    assert len(found) == 6
    if set(found.values()) == {77}:
        not_run(f"this machine has no system call {call}")
    assert set(found.values()) == {0}, ends[1][-4000:]
