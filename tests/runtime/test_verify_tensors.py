"""V3's capture and verdict; and a whole simulated climb whose evidence shuts the gate in that simulation and opens nothing elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.dcu import gate
from vllm.dcu.dispatch.context import Context, NativeOp
from vllm.dcu.dispatch.reasons import Reason
from vllm.dcu.dispatch.signatures import Seen, read_signatures, recorded
from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Outcome, Result, Trial, climb
from vllm.dcu.evidence.site import Site, judge
from vllm.dcu.evidence.store import add, entry_of, read_store
from vllm.dcu.records.catalog import CATALOG, MISSION, records_by_id
from vllm.dcu.records.kernels import LLMM1
from vllm.dcu.records.record import Record, Toolchain
from vllm.dcu.verify.climb import rungs_of
from vllm.dcu.verify.rungs import model
from vllm.dcu.verify.rungs.children import ModelRun
from vllm.dcu.verify.rungs.endtoend import Load
from vllm.dcu.verify.rungs.stage import ModelPlan, Stage, subject_of

BUILT_IN = MISSION.id
BINDING = Binding("", "gfx936", Toolchain("2.10.0", "6.2.0", "0.18.1"), "", "", "", "", "", simulated="a test on the CPU")
M, K = 64, 512


def small_record() -> Record:
    """The built-in record with a shape that takes no time."""
    built_in = records_by_id()[BUILT_IN]
    return replace(built_in, contract=replace(built_in.contract, m=M, k=K))


def linear(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight)


def the_gate(native: Callable[..., Any], site: Site | None = None) -> gate.ActiveGate:
    context = Context(
        arch="gfx936",
        device_type="cpu",
        toolchain=BINDING.toolchain,
        ops={LLMM1.op: NativeOp(LLMM1.schema, native)},
        code_objects=frozenset({"gfx936"}),
        simulated=BINDING.simulated,
        site=Site() if site is None else site,
    )
    return gate.build(context, (small_record(),))


def run_calls(folder: Path, native: Callable[..., Any] = linear) -> tuple[Seen, ...]:
    """A small model's calls: prefill, decode (twice the same), another weight, a decode with a bias."""
    active = the_gate(native)
    gemm = recorded(active.gemm, lambda: gate._hits(active), {"VLLM_DCU_SIGNATURES": str(folder)})
    weight, other = torch.randn(M, K).bfloat16(), torch.randn(32, K).bfloat16()
    one = torch.randn(1, K).bfloat16()
    for x in (torch.randn(7, K).bfloat16(), one, one):
        gemm(x, weight, None)
    gemm(one, other, None)
    gemm(one, weight, torch.zeros(M).bfloat16())
    return read_signatures(folder)


def verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: tuple[Seen, ...] | None = None, native: Callable[..., Any] = linear
) -> Result:
    """V3 on what a run left in its folder."""
    home = tmp_path / "runs" / "eager"
    run_calls(home / "signatures", native)
    if seen is not None:
        for file in (home / "signatures").iterdir():
            file.unlink()
        lines = [json.dumps({**vars(s), "call": vars(s.call)}) for s in seen]
        (home / "signatures" / "signatures-1.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(model, "model_run", lambda stage, folder, mode: (ModelRun((1,), 1, 1, 1, 1.0), home))
    stage = Stage(BINDING, subject_of(small_record()), "cpu", native, None, None, plan=ModelPlan("/model"))
    return model.real_tensors(stage, Trial(BINDING, tmp_path / "raw", lambda line: None), tmp_path, small_record())


def test_without_the_variable_nothing_is_wrapped() -> None:
    assert recorded(linear, lambda: 0, {}) is linear


def test_each_distinct_signature_is_captured_once_with_what_happened(tmp_path: Path) -> None:
    seen = run_calls(tmp_path)
    assert [(s.call.n, s.call.m, s.call.bias, s.took) for s in seen] == [
        (7, M, False, False),
        (1, M, False, True),
        (1, 32, False, False),
        (1, M, True, False),
    ]
    assert [s.error is not None for s in seen] == [False, True, False, False]


def test_v3_passes_on_a_right_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = verdict(tmp_path, monkeypatch)
    assert result.outcome is Outcome.PASSED, result.why
    assert (result.figures["signatures"], result.figures["on this weight"], result.figures["taken"]) == (4, 3, 1)


def half_of_k(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    return linear(weight[:, : K // 2], x[:, : K // 2], rows)


def test_v3_refuses_wrong_numbers_on_the_models_own_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = verdict(tmp_path, monkeypatch, native=half_of_k)
    assert result.outcome is Outcome.FAILED
    assert "on the model's own tensors" in result.why


@pytest.fixture
def captured(tmp_path: Path) -> tuple[Seen, ...]:
    return run_calls(tmp_path / "captured")


@pytest.mark.parametrize(
    ("index", "change", "words"),
    [
        (0, {"took": True}, "N=7 64 x 512 bfloat16 was taken, and the record has against it: rows"),
        (3, {"took": True}, "the record has against it: bias"),
        (1, {"took": False}, "was not taken, and the record has against it: nothing"),
        (2, {"took": True}, "none of this record's: N=1 32 x 512"),
        (1, {"error": None}, "its numbers were not checked"),
    ],
)
def test_v3_refuses_a_gate_that_takes_what_it_should_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captured: tuple[Seen, ...], index: int, change: dict[str, Any], words: str
) -> None:
    seen = list(captured)
    seen[index] = replace(seen[index], **change)
    result = verdict(tmp_path, monkeypatch, tuple(seen))
    assert result.outcome is Outcome.FAILED
    assert words in result.why


def test_v3_of_a_model_without_that_weight_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captured: tuple[Seen, ...]
) -> None:
    result = verdict(tmp_path, monkeypatch, tuple(s for s in captured if s.call.m != M))
    assert result.outcome is Outcome.NOT_RUN
    assert "makes no call of 64 x 512" in result.why


def test_v3_of_a_run_without_a_single_taken_call_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captured: tuple[Seen, ...]) -> None:
    result = verdict(tmp_path, monkeypatch, tuple(s for s in captured if not s.took))
    assert result.outcome is Outcome.FAILED


def climb_and_keep(tmp_path: Path, native: Callable[..., Any]) -> Path:
    """Climb with `native` standing in, keep the evidence, return its file."""
    record = small_record()
    stage = Stage(BINDING, subject_of(record), "cpu", native, None, None)
    found = climb(
        rungs_of(stage, tmp_path / "climb", Load()),
        tool="verify",
        subject=record.id,
        binding=BINDING,
        folder=tmp_path / "climb",
        only=["V2"],
    )
    add(tmp_path / "evidence.json", entry_of(found, None))
    return tmp_path / "evidence.json"


def test_a_refused_kernel_shuts_the_gate_of_that_simulation(tmp_path: Path) -> None:
    """What the issue asks of the 32-wide device: V2 refuses, and the gate then stays shut."""
    store = climb_and_keep(tmp_path, half_of_k)
    calls: list[int] = []

    def native(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
        calls.append(1)
        return linear(weight, x, rows)

    weight, x = torch.randn(M, K).bfloat16(), torch.randn(1, K).bfloat16()
    open_gate = the_gate(native)
    open_gate.gemm(x, weight, None)
    assert calls == [1], "the control: without the evidence the gate is open"
    shut = the_gate(native, judge(read_store(store), BINDING))
    assert shut.standing[BUILT_IN] == (Reason.SITE_FAILED,)
    assert torch.equal(shut.gemm(x, weight, None), torch.nn.functional.linear(x, weight))
    assert calls == [1]


def test_the_evidence_of_a_simulation_changes_nothing_on_hardware(tmp_path: Path) -> None:
    for native in (linear, half_of_k):
        store = climb_and_keep(tmp_path / native.__name__, native)
        assert judge(read_store(store), replace(BINDING, simulated="")) == Site()
    assert all(record.id for record in CATALOG)
