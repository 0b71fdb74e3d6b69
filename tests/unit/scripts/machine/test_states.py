"""The first hour on a DTK machine, whatever state it is in: each state is named with its fixing line, and the line works."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.checks import bench, verify
from scripts.common import errors
from scripts.common.paths import ROOT
from scripts.machine import doctor_device, facts
from scripts.machine.diagnosis import Finding
from tests.machine import Box, box


@pytest.fixture
def dtk_box(tmp_path: Path) -> Box:
    return box(tmp_path)


def findings(b: Box) -> list[Finding]:
    """What doctor says of the machine as it is now, problems only."""
    facts._look.cache_clear()
    machine = facts.look(b.environ)
    return [f for f in (check(machine) for check in doctor_device.CHECKS) if not f.ok]


def target(b: Box) -> str:
    facts._look.cache_clear()
    return facts.resolve("auto", facts.look(b.environ))


def test_with_env_sh_not_sourced_the_machine_is_fit_and_auto_is_rocm(dtk_box: Box) -> None:
    assert subprocess.run([dtk_box.python, "-c", "import torch"], capture_output=True, check=False).returncode == 1
    assert findings(dtk_box) == []
    assert target(dtk_box) == "rocm"
    assert facts.look(dtk_box.environ).python.hip == "6.3.26093"


def _no_dtk(b: Box) -> None:
    b.prefix.rename(b.root / "elsewhere")


def _nothing_but(*kept: str) -> Callable[[Box], None]:
    """A machine on which only these signs are left."""

    def plant(b: Box) -> None:
        if "dtk" not in kept:
            _no_dtk(b)
        if "kfd" not in kept:
            b.environ["VLLM_DCU_TEST_KFD_ROOT"] = str(b.root / "none")
        if "mkfd" not in kept:
            (b.root / "dev" / "mkfd").unlink()
        if "torch" not in kept:
            b.environ["PYTHON"] = sys.executable

    return plant


@pytest.mark.parametrize("sign", ["dtk", "kfd", "mkfd", "torch"])
def test_any_one_sign_of_a_dcu_is_enough_for_auto_never_to_be_cpu(dtk_box: Box, sign: str) -> None:
    _nothing_but(sign)(dtk_box)
    assert target(dtk_box) == "rocm"
    assert any(f.blocks for f in findings(dtk_box)), "and the build is refused, with a line"


@pytest.mark.parametrize("extra", [{}, {"ROCM_PATH": "rocm"}])
def test_a_machine_with_nothing_special_makes_the_cpu_wheel_as_before(dtk_box: Box, extra: dict[str, str]) -> None:
    """An AMD ROCm is nothing special either."""
    _nothing_but()(dtk_box)
    (dtk_box.root / "rocm").mkdir()
    dtk_box.environ |= {name: str(dtk_box.root / value) for name, value in extra.items()}
    assert target(dtk_box) == "cpu"


def test_make_build_and_make_doctor_answer_for_rocm_and_never_for_cpu(dtk_box: Box) -> None:
    """As a person types it: no variable of the DTK's set; what is wrong here is the compiler, so that nothing is built."""
    (dtk_box.prefix / "lib/llvm/bin/clang++").unlink()
    for verb in ("doctor", "build"):
        done = subprocess.run(
            ["make", "-s", verb, f"PYTHON={sys.executable}"], cwd=ROOT, env={**dtk_box.environ, "PYTHON": str(dtk_box.python)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == 2, said  # make's own, for a recipe that failed
        assert "no clang++ in" in said
        assert "TARGET=rocm" in said
        assert "cpu here" not in said


def test_verify_and_bench_look_under_the_dtk_and_do_not_fall_back_to_a_cpu(
    dtk_box: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in dtk_box.environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.MissingInput, match="has no vllm"):
        bench.main(["--only", "kernel"])
    (dtk_box.site / "vllm" / "dcu").mkdir(parents=True)
    (dtk_box.site / "vllm" / "__init__.py").touch()
    (dtk_box.site / "vllm" / "dcu" / "__main__.py").write_text("import torch, sys\nprint('ran with HIP', torch.version.hip)\n")
    facts._look.cache_clear()
    python, env = verify.interpreter()
    assert python == dtk_box.python
    done = subprocess.run([python, "-m", "vllm.dcu"], env=dict(env), capture_output=True, text=True, check=True)
    assert done.stdout == "ran with HIP 6.3.26093\n"
    monkeypatch.setenv("PYTHON", sys.executable)
    with pytest.raises(errors.CannotBuild, match="torch"):
        verify.interpreter()
