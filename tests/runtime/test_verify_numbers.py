"""V2 and V2S: the kernel's own source on the host is right at wave 64 and refused at wave 32, as is every planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Outcome, Result, Trial
from vllm.dcu.records.kernels import LLMM1
from vllm.dcu.records.record import Contract, Toolchain
from vllm.dcu.verify.rungs import cases, numbers, timing
from vllm.dcu.verify.rungs.stage import Stage, Subject

from scripts.common.paths import TREE
from scripts.rehearsal.wave import build, region
from scripts.rehearsal.wave.host_llmm1 import load
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


def linear(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight)


def test_the_kernels_source_at_wave_64_passes(tmp_path: Path) -> None:
    result = v2(tmp_path, host(64))
    assert result.outcome is Outcome.PASSED, result.why
    assert result.figures["planted faults refused"] == 4
    assert 2e-3 < float(str(result.figures["relative error"])) < 4.5e-3
    assert (tmp_path / "raw" / "cases.csv").read_text().count("\n") == int(str(result.figures["cases"])) + 1


def test_c01_the_same_source_at_wave_32_is_refused_at_5120(tmp_path: Path) -> None:
    result = v2(tmp_path, host(32))
    assert result.outcome is Outcome.FAILED
    rows = (tmp_path / "raw" / "cases.csv").read_text().splitlines()
    refused = {line.split(",")[0] for line in rows if ",refused," in line}
    assert {"512 x 5120 zero-centred", "256 x 4104 zero-centred", "256 x 8192 zero-centred"} <= refused
    assert "256 x 4096 zero-centred" not in refused, "up to 4096 the narrow wave is right"


def without_nan(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    return linear(weight, x, rows).nan_to_num()


def without_inf(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    out = linear(weight, x, rows)
    return torch.where(out.isinf(), torch.full_like(out, 3e38), out)


def flushes_everything_small(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    out = linear(weight, x, rows)
    return torch.where(out.abs() < 1e-1, torch.zeros_like(out), out)


def in_float32(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.nn.functional.linear(x.float(), weight.float())


def one_dimensional(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    return linear(weight, x, rows)[0]


def spreads_a_nan(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    out = linear(weight, x, rows)
    return torch.full_like(out, float("nan")) if out.isnan().any() else out


def wrong_only_at_the_edge(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    return (
        linear(weight[:, : weight.shape[1] // 64 * 64], x[:, : x.shape[1] // 64 * 64], rows)
        if weight.shape[1] > 63
        else linear(weight, x, rows)
    )


def a_bit_too_large(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    return linear(weight, x, rows) * 1.01


@pytest.mark.parametrize(
    "fault",
    [
        without_nan,
        without_inf,
        flushes_everything_small,
        in_float32,
        one_dimensional,
        spreads_a_nan,
        wrong_only_at_the_edge,
        a_bit_too_large,
    ],
)
def test_a_wrong_kernel_is_refused(tmp_path: Path, fault: Callable[..., Any]) -> None:
    assert v2(tmp_path, fault, SHORT).outcome is Outcome.FAILED


def test_a_right_kernel_of_another_kind_passes(tmp_path: Path) -> None:
    result = v2(tmp_path, linear, SHORT)
    assert result.outcome is Outcome.PASSED, result.why


def test_a_kernel_that_leaves_rows_unwritten_is_refused(tmp_path: Path) -> None:
    def unwritten(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
        out = torch.empty(1, weight.shape[0], dtype=x.dtype)
        out[:, :-rows] = linear(weight, x, rows)[:, :-rows]
        return out

    assert v2(tmp_path, unwritten, SHORT).outcome is Outcome.FAILED


def test_a_check_that_sees_nothing_fails_the_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the controls: with the check blinded, the planted faults pass, and that is what fails."""
    monkeypatch.setattr(numbers, "check", lambda *args, **kwargs: cases.Check(0.0, ""))
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
    exact, size = cases.float64(weight, x)
    assert exact.tolist() == [-8.0, -16.0, -24.0]
    assert size.tolist() == [20.0, 60.0, 100.0]


def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: list[float], generic: list[float]) -> Result:
    """V2S where the device took these microseconds."""
    speed = timing.Speed(timing.measure(kernel), timing.measure(generic), tuple(zip(kernel, generic, strict=True)), 4)
    monkeypatch.setattr(numbers, "compare_speed", lambda *args: speed)
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
        ([100.0, 90.0, 125.0], [120.0, 110.0, 130.0]),  # faster in the median, and the ranges touch
    ],
)
def test_v2s_refuses_what_is_no_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: list[float], generic: list[float]) -> None:
    assert timed(tmp_path, monkeypatch, kernel, generic).outcome is Outcome.FAILED


def test_a_measure_leaves_out_one_interrupt_of_many_values() -> None:
    found = timing.measure([1.0] * 14 + [50.0])
    assert (found.median, found.low, found.high, found.runs) == (1.0, 1.0, 1.0, 15)
    assert timing.measure([1.0, 50.0]).high == 50.0


def test_rounds_are_interleaved_and_weights_rotated() -> None:
    calls: list[int] = []

    def native(weight: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
        calls.append(weight.data_ptr())
        return linear(weight, x, rows)

    speed = timing.compare_speed(native, (4,), "bfloat16", 1024, 8192, "cpu", rounds=2)
    assert speed.copies == 64
    assert len(set(calls)) == speed.copies
    assert len(calls) == speed.copies * 3  # one to warm up, two rounds
