"""The gate's decisions once more against an oracle, with threads and forks calling it at the same time: none wrong, and the counts exact.

`GFX936_ORACLE_CALLS=1000000` makes it the long run of docs/hostile-input.md. Subinterpreters have no gate, because torch is not to be had in
them; that counting by itself is right there is tried by the unit tests.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from pathlib import Path

import pytest
import torch
from vllm.dcu import gate
from vllm.dcu.dispatch.countfiles import read_folder

from tests.runtime.dcu import SMALL, K, M, Native, context
from tests.runtime.gate_table import outcome, same
from tests.runtime.test_gate_property import r3

CALLS = int(os.environ.get("GFX936_ORACLE_CALLS", "20000"))
THREADS, FORKS = 6, 3
MARK = 1000.0


def kernel(weight: torch.Tensor, x: torch.Tensor, *args: int) -> torch.Tensor:
    """The stand-in operator: what the kernel would give, told apart by a mark."""
    return torch.nn.functional.linear(x, weight) + MARK


def cases() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, object, bool]]:
    """Calls of many kinds with what must come of them: (x, weight, bias, result, whether it is a hit)."""
    made = []
    wide = torch.randn(M, K + 8).bfloat16()
    weights = [torch.randn(m, k).bfloat16() for m, k in ((M, K), (M, K), (M + 2, K), (K, M), (M, K // 2))]
    weights += [wide[:, :K], torch.randn(K, M).bfloat16().t(), torch.randn(M, K)]
    for weight in weights:
        k = weight.shape[1]
        base = torch.randn(4 * k + 16).to(weight.dtype)
        inputs = [base[:k].view(1, k), base[:k], base[: 2 * k].view(2, k), base[1 : k + 1].view(1, k), base[: 2 * k : 2].view(1, k)]
        inputs += [base[:k].view(1, 1, k), base[:0].view(0, k), torch.randn(1, k), base[: 3 * k].view(3, 1, k)]
        for x in inputs:
            for bias in (None, torch.zeros(weight.shape[0]).to(weight.dtype)):
                hit = r3(x, weight, bias, M, K)
                generic = outcome(torch.nn.functional.linear, x, weight, bias)
                want = generic + MARK if hit and isinstance(generic, torch.Tensor) else generic
                made.append((x, weight, bias, want, hit))
    return made


def crowd(built: gate.ActiveGate, calls: int, threads: int, seed: int) -> dict[str, int]:
    """`calls` random calls from `threads` threads that begin at one moment: how many were hits, how many calls, how many were wrong."""
    known, begin = cases(), threading.Barrier(threads)
    seen = [{"calls": 0, "hits": 0, "wrong": 0} for _ in range(threads)]

    def work(number: int) -> None:
        rng, mine = random.Random(seed * 1000 + number), seen[number]
        begin.wait()
        for _ in range(calls // threads):
            x, weight, bias, want, hit = known[rng.randrange(len(known))]
            result = outcome(built.gemm, x, weight, bias)
            mine["calls"] += 1
            mine["hits"] += hit
            mine["wrong"] += not same(result, want)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {name: sum(one[name] for one in seen) for name in seen[0]}


@pytest.mark.parametrize("calls", [CALLS])
def test_no_decision_is_wrong_and_every_call_is_counted_once(calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_DCU_STATS_DIR", str(tmp_path / "stats"))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        built = gate.build(context(kernel), (SMALL,))
        children = []
        for number in range(FORKS):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    seen = crowd(built, calls // (FORKS + 1), 2, number + 1)
                    (tmp_path / f"{number}.json").write_text(json.dumps(seen))
                    built.tally.finish()
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        seen = [crowd(built, calls // (FORKS + 1), THREADS, 0)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * FORKS
        built.tally.publish()
    finally:
        sys.setswitchinterval(before)
    seen += [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(FORKS)]
    assert sum(one["wrong"] for one in seen) == 0
    assert sum(one["calls"] for one in seen) > calls * 0.99
    processes, problems = read_folder(tmp_path / "stats")
    counts = [count for process in processes for count in process.counts]
    assert problems == []
    assert len(list((tmp_path / "stats").glob("*.counts"))) == FORKS + 1
    assert sum(count.value for count in counts) == sum(one["calls"] for one in seen)
    assert sum(count.value for count in counts if count.key.kind == "hit") == sum(one["hits"] for one in seen) > 0


def test_the_oracle_finds_a_planted_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that forgets the bias: the control of the test above."""
    real = gate._refusal
    monkeypatch.setattr(gate, "_refusal", lambda x, weight, bias, *rest: real(x, weight, None, *rest))
    assert crowd(gate.build(context(Native(mark=MARK)), (SMALL,)), 600, 2, 7)["wrong"] > 0
