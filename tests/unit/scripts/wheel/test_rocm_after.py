"""After the build: a wheel that fails its checks is not left to be installed; one that passes comes with its lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.common import errors
from scripts.wheel import device, finish
from scripts.wheel.install import CONSTRAINTS
from scripts.wheel.pack import DEFAULT_EPOCH, Entry, write_wheel
from tests.unit.scripts.wheel.test_rocm_build import plan

__all__ = ["plan"]  # a fixture

MANIFEST = Entry("vllm/dcu/manifest.json", b'{"toolchain": {"dcu_kernels": "left out: the compiler refused it: no such register"}}')


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "dist" / "vllm-0.18.1+gfx936.1-cp310-cp310-linux_x86_64.whl"
    path.parent.mkdir()
    write_wheel(path, "vllm-1.dist-info", [MANIFEST], DEFAULT_EPOCH)
    return path


def given(monkeypatch: pytest.MonkeyPatch, found: device.Plan, failing: str = "") -> list[str]:
    """Let the checks be seen, and one of them fail."""
    asked: list[str] = []

    def check(name: str) -> str:
        asked.append(name)
        if name == failing:
            raise errors.CheckFailed(f"{name} failed", "planted", "nothing")
        return ""

    monkeypatch.setattr(device, "plan", lambda: found)
    monkeypatch.setattr(finish, "audit", lambda wheel, p: check("audit"))
    monkeypatch.setattr(finish, "imports", lambda wheel, p: check("import"))
    return asked


@pytest.mark.parametrize("failing", ["audit", "import"])
def test_a_wheel_that_fails_is_set_aside_where_pip_does_not_take_it(
    plan: device.Plan, wheel: Path, failing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, plan, failing)
    with pytest.raises(errors.CheckFailed, match=f"{failing} failed"):
        finish.check_and_say(wheel)
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name + ".refused"]
    assert "install" not in capsys.readouterr().out


def test_a_wheel_that_passes_comes_with_constraints_and_the_exact_lines(
    plan: device.Plan, wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = given(monkeypatch, replace(plan, python=replace(plan.python, distributions={"torch": "2.10.0+das", "numpy": "1.26.4"})))
    entry = Entry("vllm-1.dist-info/METADATA", b"Name: vllm\nRequires-Dist: numpy>=2\n")
    write_wheel(wheel, "vllm-1.dist-info", [MANIFEST, entry], DEFAULT_EPOCH)
    finish.check_and_say(wheel)
    said = capsys.readouterr().out
    assert "_dcu_C left out: the compiler refused it: no such register" in said
    assert asked == ["audit", "import"]
    assert f"/py/python3.10 -m pip install --no-deps {wheel}" in said
    assert "numpy 1.26.4 is held, vLLM asks for >=2" in said
    assert "torch==2.10.0+das" in (wheel.parent / CONSTRAINTS).read_text()
    assert (wheel.parent / finish.NAME).read_text() == wheel.name + "\n"


def test_a_stand_in_passes_without_a_line_to_install_it(
    plan: device.Plan, wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, replace(plan, stand_in="gfx906"))
    finish.check_and_say(wheel)
    said = capsys.readouterr().out
    assert "stand-in arch gfx906: this wheel is for inspection" in said
    assert "pip install" not in said
    assert not (wheel.parent / CONSTRAINTS).exists()
