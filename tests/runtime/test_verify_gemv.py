"""V2 with our own kernel, N = 1 and 2: its source on the host at wave 64 passes, and each planted fault is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Outcome, Result, Trial
from vllm.dcu.records.kernels import GEMV
from vllm.dcu.records.record import Toolchain
from vllm.dcu.verify.rungs import numbers
from vllm.dcu.verify.rungs.stage import Stage
from vllm.dcu.verify.verb import main, new_subject

from scripts.rehearsal.wave import build, host_gemv

BINDING = Binding("", "cpu", Toolchain("2.10.0", "", "0.18.1"), "", "", "", "", "", simulated="GEMV on the host")


def on_host(files: Mapping[str, str] | None = None) -> Callable[..., Any]:
    raw = host_gemv.load(64, files)

    def native(weight: torch.Tensor, x: torch.Tensor, variant: int) -> torch.Tensor:
        out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)
        code = int(x.dtype is torch.bfloat16)
        raw(weight.data_ptr(), x.data_ptr(), out.data_ptr(), weight.shape[0], weight.shape[1], x.shape[0], code, variant)
        return out

    return native


def v2(tmp_path: Path, native: Callable[..., Any], n: int, variant: int, dtype: str = "bfloat16", m: int = 93, k: int = 2568) -> Result:
    stage = Stage(BINDING, new_subject(GEMV, dtype, n, m, k, variant), "cpu", native, None, None)
    return numbers.right_numbers(stage, Trial(BINDING, tmp_path / "raw", lambda line: None))


@pytest.mark.parametrize(("n", "variant", "dtype"), [(1, 0, "bfloat16"), (2, 12, "float16")])
def test_the_source_at_wave_64_passes(tmp_path: Path, n: int, variant: int, dtype: str) -> None:
    result = v2(tmp_path, on_host(), n, variant, dtype)
    assert result.outcome is Outcome.PASSED, result.why
    assert result.figures["planted faults refused"] == 4
    assert f"{64} x {34816} zero-centred" in (tmp_path / "raw" / "cases.csv").read_text()


PLANTS = {
    "a wrong shuffle": ("+ shuffle_xor(give, M)", "+ shuffle_xor(give, M == 16 ? 8 : M)"),
    "a swapped row": ("const int n = lane / R, r = lane % R;", "const int n = lane / R, r = lane % R ^ (R > 1);"),
    "a lost tail of K": ("if (at < shape.vectors) add", "if (at < 0) add"),
    "a lost last row": ("if (group < shape.groups && row < shape.rows)", "if (group < shape.groups && row < shape.rows - 1)"),
}


@pytest.mark.parametrize("fault", PLANTS)
def test_a_planted_fault_is_refused(tmp_path: Path, fault: str) -> None:
    old, new = PLANTS[fault]
    files = build.gemv_text()
    assert files["dcu/gemv_kernel.h"].count(old) == 1
    result = v2(tmp_path, on_host({**files, "dcu/gemv_kernel.h": files["dcu/gemv_kernel.h"].replace(old, new)}), 2, 12)
    assert result.outcome is Outcome.FAILED, f"{fault} went unseen"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--shape 96,5120 --kernel GEMV", "needs --variant"),
        ("--shape 96,5120 --kernel GEMV --variant 77", "variant is one of"),
        ("--shape 96,5120 --kernel GEMV --variant 3 --rows 4", "variant 3 takes 1 to 3 activation rows, not 4"),
        ("--shape 96,5120 --variant 3", "--variant is GEMV's"),
        ("--shape 96,5120 --rows 2", "LLMM1 takes one activation row, not 2"),
    ],
)
def test_what_cannot_be_verified_is_said_in_one_sentence(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
