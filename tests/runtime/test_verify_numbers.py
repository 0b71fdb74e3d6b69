"""V2 and V2S: the kernel's own source on the host is right at wave 64 and refused at wave 32, as is every planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.dcu.evidence import compare
from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Outcome, Result, Trial, measure
from vllm.dcu.records.kernels import LLMM1
from vllm.dcu.records.record import Contract, Toolchain
from vllm.dcu.verify.rungs import cases, numbers, timing
from vllm.dcu.verify.rungs.stage import Stage, Subject

from scripts.common.paths import TREE
from scripts.rehearsal.wave import build, region
from scripts.rehearsal.wave.host_llmm1 import load
from scripts.rehearsal.wrong_kernels import ONE_WAY, WRONG, Planted, exact, last_row, linear, only, unwritten
from tests.support import not_run

BINDING = Binding("", "cpu", Toolchain("2.10.0", "", "0.18.1"), "", "", "", "", "", simulated="LLMM1 on the host")
SUBJECT = Subject("test", LLMM1, Contract("bfloat16", 1, 512, 5120, args={"rows_per_block": 4}))
SHORT = replace(SUBJECT, contract=replace(SUBJECT.contract, k=2048))


def host(wave: int) -> Callable[..., Any]:
    if not TREE.is_dir():
        not_run("build/vllm is not there (make apply)")
    try:
        return load(TREE, wave)
    except build.BuildError as error:
        not_run(str(error).splitlines()[0])
    except region.RegionError as error:
        pytest.fail(str(error))


def v2(tmp_path: Path, native: Callable[..., Any] | None, subject: Subject = SUBJECT, no_device: str = "") -> Result:
    stage = Stage(BINDING, subject, "cpu", native, None, None, no_device=no_device)
    return numbers.right_numbers(stage, Trial(BINDING, tmp_path / "raw", lambda line: None))


def test_the_kernels_source_at_wave_64_passes(tmp_path: Path) -> None:
    result = v2(tmp_path, host(64))
    assert result.outcome is Outcome.PASSED, result.why
    assert result.figures["planted faults refused"] == 4
    assert 2e-3 < float(str(result.figures["relative error"])) < 4.5e-3
    assert (tmp_path / "raw" / "cases.csv").read_text().count("\n") == int(str(result.figures["cases"])) + 1


def test_the_same_source_at_wave_32_is_refused_at_5120(tmp_path: Path) -> None:
    result = v2(tmp_path, host(32))
    assert result.outcome is Outcome.FAILED
    rows = (tmp_path / "raw" / "cases.csv").read_text().splitlines()
    refused = {line.split(",")[0] for line in rows if ",refused," in line}
    assert {"512 x 5120 zero-centred", "256 x 4104 zero-centred", "256 x 8192 zero-centred"} <= refused
    assert "256 x 4096 zero-centred" not in refused, "up to 4096 the narrow wave is right"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_refused(tmp_path: Path, name: str) -> None:
    assert v2(tmp_path, WRONG[name], SHORT).outcome is Outcome.FAILED


@pytest.mark.parametrize(("data", "planted", "refused", "reason"), ONE_WAY)
def test_each_limit_alone_refuses_a_kernel_that_is_wrong_in_just_that_way(
    tmp_path: Path, data: str, planted: Planted, refused: str, reason: str
) -> None:
    result = v2(tmp_path, only(data, planted), SHORT)
    assert result.outcome is Outcome.FAILED
    assert refused in result.why
    assert reason in result.why


def test_a_device_that_flushes_denormal_inputs_is_right_and_said_so(tmp_path: Path) -> None:
    result = v2(tmp_path, only("denormal", torch.zeros_like), SHORT)
    assert result.outcome is Outcome.PASSED, result.why
    assert result.figures["denormal inputs"] == "flushed"
    assert v2(tmp_path, exact, SHORT).figures["denormal inputs"] == "kept"


def test_float16_denormals_are_held_to_the_same_limits(tmp_path: Path) -> None:
    subject = replace(SHORT, contract=replace(SHORT.contract, dtype="float16"))
    assert v2(tmp_path, exact, subject).outcome is Outcome.PASSED

    def doubled(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
        out = exact(weight, x, rows)
        return out * 2 if weight.abs().max() < 2.0**-12 else out

    assert "denormal" in v2(tmp_path, doubled, subject).why


def test_the_outputs_memory_holds_nan_before_the_kernel_writes(tmp_path: Path) -> None:
    found: dict[int, bool] = {}

    def looks_first(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
        out = torch.empty(1, weight.shape[0], dtype=x.dtype)
        found[len(found)] = bool(out[:, 64:].isnan().all())  # malloc keeps its own words at the front
        return out.copy_(exact(weight, x, rows))

    result = v2(tmp_path, looks_first, SHORT)
    assert result.outcome is Outcome.PASSED, result.why
    landed = int(str(result.figures["outputs in poisoned memory"]))
    assert sum(list(found.values())[: int(str(result.figures["cases"]))]) >= landed > 0


def test_outputs_that_never_land_in_poisoned_memory_fail_the_rung_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []
    monkeypatch.setattr(numbers, "_poison", lambda m, like: set())
    monkeypatch.setattr(numbers, "_unseen", lambda landed, device: asked.append((landed, device)) or "planted")
    result = v2(tmp_path, exact, SHORT)
    assert (result.outcome, result.why, asked) == (Outcome.FAILED, "planted", [(0, "cpu")])
    monkeypatch.undo()
    assert "poisoned memory" in numbers._unseen(0, "cuda")
    assert numbers._unseen(1, "cuda") == numbers._unseen(0, "cpu") == ""


def test_one_row_of_the_last_block_alone_is_seen(tmp_path: Path) -> None:
    result = v2(tmp_path, last_row, replace(SHORT, contract=replace(SHORT.contract, m=34816)))
    assert "output 34815 is off" in result.why or "norm-wise" in result.why
    assert result.outcome is Outcome.FAILED


def test_a_right_kernel_of_another_kind_passes(tmp_path: Path) -> None:
    result = v2(tmp_path, linear, SHORT)
    assert result.outcome is Outcome.PASSED, result.why


def test_a_kernel_that_leaves_rows_unwritten_is_refused(tmp_path: Path) -> None:
    assert v2(tmp_path, unwritten, SHORT).outcome is Outcome.FAILED


def test_a_check_that_sees_nothing_fails_the_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the controls: with the check blinded, the planted faults pass, and that is what fails."""
    monkeypatch.setattr(numbers, "check", lambda *args, **kwargs: compare.Check(0.0, ""))
    result = v2(tmp_path, linear, SHORT)
    assert result.outcome is Outcome.FAILED
    assert "did not refuse a planted fault" in result.why


def test_without_a_device_or_an_operator_it_does_not_run(tmp_path: Path) -> None:
    assert v2(tmp_path, linear, no_device="no DCU").outcome is Outcome.NOT_RUN
    assert v2(tmp_path, None).outcome is Outcome.NOT_RUN


def test_a_stand_ins_time_on_a_cpu_is_not_measured(tmp_path: Path) -> None:
    stage = Stage(BINDING, SUBJECT, "cpu", linear, None, None)
    assert numbers.right_speed(stage, Trial(BINDING, tmp_path, lambda line: None)).outcome is Outcome.NOT_RUN


def test_the_data_of_a_case_are_the_same_every_time() -> None:
    case = cases.Case(8, 64, "zero-centred", 3)
    assert all(torch.equal(a, b) for a, b in zip(cases.make(case, "bfloat16", "cpu"), cases.make(case, "bfloat16", "cpu"), strict=True))


def test_the_reference_is_an_exact_sum_for_integers() -> None:
    weight, x = torch.arange(12.0).reshape(3, 4), torch.tensor([[1.0, -2.0, 3.0, -4.0]])
    total, size = compare.float64(weight, x)
    assert total.tolist() == [[-8.0, -16.0, -24.0]]
    assert size.tolist() == [[20.0, 60.0, 100.0]]


def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: list[float], generic: list[float]) -> Result:
    """V2S where the device took these microseconds."""
    speed = timing.Speed(measure(kernel), measure(generic), tuple(zip(kernel, generic, strict=True)), 4)
    monkeypatch.setattr(numbers, "compare_speed", lambda *args, **kwargs: speed)
    stage = Stage(BINDING, SUBJECT, "cuda", linear, None, None)
    return numbers.right_speed(stage, Trial(BINDING, tmp_path / "raw", lambda line: None))


def test_v2s_passes_a_kernel_that_is_faster_beyond_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = timed(tmp_path, monkeypatch, [361, 360, 362], [498, 497, 500])
    assert result.outcome is Outcome.PASSED
    assert float(str(result.figures["ratio"])) == pytest.approx(498 / 361)


@pytest.mark.parametrize(
    ("kernel", "generic"),
    [
        ([68.8, 68.7, 68.9], [50.1, 50.0, 50.2]),  # slower
        ([100.0, 99.0, 101.0], [102.0, 101.5, 102.5]),  # faster by less than the margin
        ([100.0, 90.0, 125.0], [120.0, 110.0, 130.0]),  # faster in the median, and the ranges overlap
        ([100.0, 90.0, 110.0], [120.0, 110.0, 130.0]),  # they touch in one value
    ],
)
def test_v2s_refuses_what_is_no_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: list[float], generic: list[float]) -> None:
    assert timed(tmp_path, monkeypatch, kernel, generic).outcome is Outcome.FAILED


def test_v2s_refuses_a_time_without_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = timing.Speed(measure([1.0] * 3), measure([2.0] * 3), ((1.0, 2.0),) * 3, 4, "the kernel: operation not permitted")
    monkeypatch.setattr(numbers, "compare_speed", lambda *args, **kwargs: speed)
    stage = Stage(BINDING, SUBJECT, "cuda", linear, None, None)
    result = numbers.right_speed(stage, Trial(BINDING, tmp_path / "raw", lambda line: None))
    assert result.outcome is Outcome.FAILED
    assert "not captured into a graph" in result.why
    assert result.figures["timed in graphs"] is False


def test_a_failed_capture_is_said_and_the_function_is_timed_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(graph: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", refuses)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    function, why = timing._captured(len)  # type: ignore[arg-type]
    assert function is len
    assert why == "operation not permitted when stream is capturing"


def test_a_measure_leaves_out_one_interrupt_of_many_values() -> None:
    found = measure([1.0] * 14 + [50.0])
    assert (found.median, found.low, found.high, found.runs) == (1.0, 1.0, 1.0, 15)
    assert measure([1.0, 50.0]).high == 50.0


def test_rounds_are_interleaved_and_weights_rotated() -> None:
    calls: list[int] = []

    def native(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
        calls.append(weight.data_ptr())
        return linear(weight, x, rows)

    speed = timing.compare_speed(native, (4,), "bfloat16", 1024, 8192, "cpu", rounds=2)
    assert speed.copies == 64
    assert len(set(calls)) == speed.copies
    assert len(calls) == speed.copies * 3  # one to warm up, two rounds
