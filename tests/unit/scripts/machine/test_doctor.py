"""doctor says what is missing, why it matters and what to run; its exit code is 0 only if a build can succeed."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.common import programs
from scripts.common.paths import ROOT
from scripts.machine import doctor, doctor_device, interpreter, memory
from scripts.machine.diagnosis import Finding
from scripts.machine.facts import Machine
from scripts.upstream.releases import read_pin
from tests.machine import env_sh, fake_python, fake_toolchain, kfd, program, usable
from tests.unit.scripts.machine.test_states import SWITCHES

SDIST = read_pin().sdist.name
VARIABLES = (
    "UPSTREAM_SDIST", "ROCM_PATH", "DTK_ENV", "HIPCXX", "HIP_PATH", "HIP_CLANG_PATH", "PYTORCH_ROCM_ARCH", "MAX_JOBS",
    "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "VLLM_PLUGINS", "STAND_IN",
)  # fmt: skip


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "_network", lambda target: Finding("network", True, "not asked in this test"))


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that can build for gfx936: DTK, compiler, device, the vendor's torch, cmake and ninja."""
    env_sh(fake_toolchain(tmp_path / "dtk"))
    (usable(tmp_path / "root") / "opt" / "dtk").symlink_to(tmp_path / "dtk")
    monkeypatch.setenv("GFX936_TEST_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("PYTHON", str(fake_python(tmp_path / "py")))
    monkeypatch.setenv("VLLM_DCU_TEST_KFD_ROOT", str(kfd(tmp_path / "kfd", 90306)))
    program(tmp_path / "bin" / "cmake", "#!/bin/sh\necho cmake version 3.31.10\n")
    program(tmp_path / "bin" / "ninja", "#!/bin/sh\necho 1.13.0.git\n")
    monkeypatch.setenv("TOOLS_PYTHON", str(program(tmp_path / "bin" / "python", "#!/bin/sh\n")))
    monkeypatch.setattr(memory, "available_gb", lambda: 64.0)
    monkeypatch.setattr(memory, "processors", lambda: 8)
    monkeypatch.setattr(doctor_device, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(programs, "FOLDER", tmp_path / "none")
    return tmp_path


def result(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = doctor.main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def problem(data: dict[str, Any]) -> dict[str, Any]:
    found: list[dict[str, Any]] = [f for f in data["findings"] if not f["ok"]]
    assert len(found) == 1, found
    assert found[0]["why"]
    assert found[0]["do"]
    return found[0]


def test_a_fit_machine_is_said_to_be_fit(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = result(capsys, "--target", "cpu")
    assert (code, data["can_build"], data["target"]) == (0, True, "cpu")


def test_a_dtk_machine_is_fit_and_auto_picks_rocm(capsys: pytest.CaptureFixture[str], box: Path) -> None:
    code, data = result(capsys)
    assert (code, data["target"], data["can_build"]) == (0, "rocm", True)
    found = {f["name"]: f["found"] for f in data["findings"]}
    assert "ended with 1" in found["dtk"]
    assert found["compiler"] == "HIP clang version 17.0.0 (DTK), makes gfx936"
    assert found["device"] == "gfx936 by KFD, 1 node(s)"
    assert found["torch"] == "2.10.0+das.dtk2604, HIP 6.3.26093"
    assert found["memory"] == "64 GB, 8 processors: 8 job(s) at a time"


def test_rocm_without_a_torch_is_a_problem(capsys: pytest.CaptureFixture[str], box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", str(fake_python(box / "bare", torch="", hip="", torch_file="", distributions={})))
    code, data = result(capsys, "--target", "rocm")
    assert code == 13
    assert (problem(data)["name"], problem(data)["found"]) == ("torch", "no torch in python3.10 (3.10.12)")


# (finding, what is wrong, words of the line to run); what is wrong is undone as the line says
BASE: list[tuple[str, Callable[[Any, Path], object], str]] = [
    ("python", lambda m, t: m.setattr(doctor.sys, "version_info", (3, 9, 1)), "make doctor PYTHON=python3.10"),
    ("git", lambda m, t: m.setenv("PATH", str(t)), "install git 2.38 or newer"),
    ("disk", lambda m, t: m.setattr(doctor.shutil, "disk_usage", lambda p: namedtuple("U", "total used free")(9, 8, 10**9)), "free some space"),
    ("sdist", lambda m, t: m.setenv("UPSTREAM_SDIST", str(t / "gone")), "or unset it"),
    ("sdist", lambda m, t: m.setenv("UPSTREAM_SDIST", str(program(t / SDIST, "other"))), "or unset it"),
    ("sdist", lambda m, t: m.setenv("GFX936_CACHE", str(program(t / "c" / SDIST, "cut").parent)), "rm "),
    ("tools", lambda m, t: m.setenv("TOOLS_PYTHON", str(t / "gone")), "unset TOOLS_PYTHON"),
    ("tools", lambda m, t: (m.delenv("TOOLS_PYTHON", False), m.setattr(doctor.tools, "made", lambda: False),
                            m.setattr(doctor.tools, "ways", lambda: None)), "-venv, or put uv on PATH"),
    ("folders", lambda m, t: m.setattr(doctor.os, "access", lambda p, mode: False), "set GFX936_CACHE"),
    ("network", lambda m, t: m.setattr(doctor, "CHECKS", (*doctor.CHECKS[:-1], no_network)), "make bundle"),
]  # fmt: skip


def no_network(target: str) -> Finding:
    """The real check, where something is missing and pip's index does not answer."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(doctor, "_pinned", lambda target: {"the sdist": False})
        m.setattr(doctor.childenv, "for_pip", dict)
        m.setattr(doctor.subprocess, "run", lambda argv, **options: subprocess.CompletedProcess(argv, 1))
        return NETWORK(target)


NETWORK = doctor._network


@pytest.mark.parametrize(("name", "plant", "line"), BASE)
def test_a_planted_problem_is_the_one_that_is_named(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    plant: Callable[[Any, Path], object],
    line: str,
) -> None:
    monkeypatch.setenv("TOOLS_PYTHON", sys.executable)
    with monkeypatch.context() as m:
        plant(m, tmp_path)
        code, data = result(capsys, "--target", "cpu")
    assert code == 13
    assert problem(data)["name"] == name
    assert line in problem(data)["do"]
    code, data = result(capsys, "--target", "cpu")
    assert (code, [f for f in data["findings"] if not f["ok"]]) == (0, [])


def without_test(checked: set[str]) -> set[str]:
    """Findings that no row of a table plants, and rows that no check finds."""
    return checked ^ {row[0] for row in (*BASE, *SWITCHES)}


def test_every_check_has_a_row_that_plants_its_fault_and_follows_its_line(capsys: pytest.CaptureFixture[str], box: Path) -> None:
    _, data = result(capsys)
    checked = {f["name"] for f in data["findings"]} - {"device"}  # it only reports
    assert without_test(checked) == set()
    assert without_test({*checked, "invented"}) == {"invented"}


def _python(**facts: Any) -> Callable[[pytest.MonkeyPatch, Path], None]:
    return lambda m, t: m.setenv("PYTHON", str(fake_python(t / "other", **facts)))


def _no_env_sh(m: pytest.MonkeyPatch, t: Path) -> None:
    m.setenv("ROCM_PATH", str(t / "nowhere"))


def _compiler(made: str) -> Callable[[pytest.MonkeyPatch, Path], None]:
    def plant(m: pytest.MonkeyPatch, t: Path) -> None:
        shutil.rmtree(t / "dtk" / "lib")
        fake_toolchain(t / "dtk", made)

    return plant


# (finding, what is wrong, words of the finding)
PLANTED: list[tuple[str, Callable[[pytest.MonkeyPatch, Path], None], str]] = [
    ("compiler", _compiler(""), "refuses --offload-arch=gfx936: clang++: error: invalid target ID 'gfx936'"),
    ("compiler", _compiler("gfx906"), "makes gfx906 when asked for gfx936: a stand-in"),
    ("torch", _python(torch="2.10.0+cpu", hip=""), "is built for the CPU, not for HIP"),
    ("torch", _python(torch="2.10.0+rocm7.0", hip="6.4.0", archs=["gfx90a", "gfx942"]), "has code for gfx90a, gfx942, not for gfx936"),
    ("torch", _python(torch="2.10.0+rocm6.3", hip="6.3.1", archs=[]), "is upstream's ROCm build, not for gfx936"),
    ("torch", _python(torch="2.10.0+rocm7.1", hip="7.1.25424"), "is built for HIP 7.1.25424 (wanted: 6.2 or newer, below 7.0)"),
    ("torch", _python(torch="2.9.1+das"), "torch 2.9.1+das (wanted: 2.10 or newer, below 2.11)"),
    ("ninja", lambda m, t: (m.setenv("PATH", str(_only(t, "bash", "env", "git"))), (t / "bin/ninja").unlink()), "no ninja beside"),
    ("memory", lambda m, t: m.setattr(memory, "available_gb", lambda: 1.5), "1.5 GB for 1 job(s)"),
]


def _only(folder: Path, *names: str) -> Path:
    there = folder / "path"
    there.mkdir()
    for name in names:
        (there / name).symlink_to(str(shutil.which(name)))
    return there


@pytest.mark.parametrize(("name", "plant", "words"), PLANTED, ids=[words[:40] for _, _, words in PLANTED])
def test_c43_what_stops_a_device_build_is_named_with_the_line_to_run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    box: Path,
    name: str,
    plant: Callable[[pytest.MonkeyPatch, Path], None],
    words: str,
) -> None:
    plant(monkeypatch, box)
    code, data = result(capsys, "--target", "rocm")
    assert code == 13
    found = problem(data)
    assert found["name"] == name
    assert words in found["found"]


def test_without_any_dtk_doctor_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTK_ENV", str(box / "gone.sh"))
    code, data = result(capsys, "--target", "rocm")
    assert code == 13
    rows = {f["name"]: f for f in data["findings"]}
    assert "gone.sh is not a file" in rows["dtk"]["found"]
    assert rows["dtk"]["do"] == "set DTK_ENV to the DTK's env.sh"


def test_a_build_machine_without_a_device_is_fit_when_the_arch_is_said(
    capsys: pytest.CaptureFixture[str], box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_DCU_TEST_KFD_ROOT", str(box))
    monkeypatch.setenv("PYTORCH_ROCM_ARCH", "gfx936")
    code, data = result(capsys, "--target", "rocm")
    assert code == 0
    assert "fine for a build, not for serving" in next(f["found"] for f in data["findings"] if f["name"] == "device")


def _copy(folder: Path, version: str, text: str = "") -> str:
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text(text)
    return str(folder)


MARK = "PATCHED_vllm_patch_0"


# What a build survives and serving does not: said, and the exit code stays 0.
SERVING: list[tuple[str, Callable[[pytest.MonkeyPatch, Path], None], str]] = [
    ("visible", lambda m, t: (m.setenv("HIP_VISIBLE_DEVICES", "0"), m.setenv("CUDA_VISIBLE_DEVICES", "1")), "HIP_VISIBLE_DEVICES='0'"),
    ("vllm", lambda m, t: _python(path=[_copy(t / "a", "1"), _copy(t / "b", "2")])(m, t), "2 copies; the one that runs is"),
    ("vllm", lambda m, t: _python(path=[_copy(t / "a", "1"), _copy(t / "b", "2", f"\n# {MARK}\n")])(m, t), f"__init__.py (mark {MARK})"),
    ("plugins", _python(plugins=[["hcu", "vllm_hcu:register", "vllm-hcu"]]), "hcu = vllm_hcu:register of vllm-hcu"),
]


@pytest.mark.parametrize(("name", "plant", "words"), SERVING, ids=[row[2][:24] for row in SERVING])
def test_what_will_be_met_when_serving_is_said_and_does_not_stop_the_build(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    box: Path,
    name: str,
    plant: Callable[[pytest.MonkeyPatch, Path], None],
    words: str,
) -> None:
    plant(monkeypatch, box)
    code, data = result(capsys, "--target", "rocm")
    assert (code, data["can_build"]) == (0, True)
    found = problem(data)
    assert (found["name"], found["blocks"]) == (name, False)
    assert words in found["found"]


def test_c34_the_class_that_a_plugin_made_active_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, box: Path
) -> None:
    """A real interpreter, a real entry point, and a vllm whose platform resolves to the plugin's class."""
    site = box / "site"
    for file, text in {
        "vllm/__init__.py": "",
        "vllm/platforms.py": "from vllm_hcu import HcuPlatform\ncurrent_platform = HcuPlatform()\n",
        "vllm_hcu.py": "class HcuPlatform: pass\n",
        "vllm_hcu-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm-hcu\nVersion: 1\n",
        "vllm_hcu-1.dist-info/entry_points.txt": "[vllm.platform_plugins]\nhcu = vllm_hcu:register\n",
    }.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(site))
    machine = Machine({}, None, None, interpreter.facts(sys.executable, {"PYTHONPATH": str(site)}), None)
    machine = Machine({"PYTHONPATH": str(site)}, None, None, machine.python, None)
    finding = next(check(machine) for check in doctor_device.CHECKS if check.__name__ == "_plugins")
    assert not finding.ok
    assert "the active platform is vllm_hcu.HcuPlatform" in finding.found
    assert "is not called ours" in finding.why


def test_c44_a_vllm_without_our_manifest_is_not_called_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, box: Path
) -> None:
    _python(path=[_copy(box / "a", "1")])(monkeypatch, box)
    _, data = result(capsys, "--target", "rocm")
    found = next(f["found"] for f in data["findings"] if f["name"] == "vllm")
    assert "not ours: it has no build manifest" in found


@pytest.mark.parametrize(("answer", "ok"), [(0, True), (1, False)])
def test_the_network_is_asked_only_where_something_is_missing(monkeypatch: pytest.MonkeyPatch, answer: int, ok: bool) -> None:
    monkeypatch.undo()
    asked: list[list[str]] = []

    def run(argv: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(argv)
        return subprocess.CompletedProcess(argv, answer)

    monkeypatch.setattr(doctor.subprocess, "run", run)
    monkeypatch.setattr(doctor, "_pinned", lambda target: {"the sdist": True})
    monkeypatch.setattr(doctor.childenv, "for_pip", dict)
    monkeypatch.setattr(doctor, "_have_tools", lambda: True)
    assert doctor._network("rocm").ok
    assert asked == []
    monkeypatch.setattr(doctor, "_have_tools", lambda: False)
    finding = doctor._network("rocm")
    assert finding.ok is ok
    assert len(asked) == 1
    assert ok or "make bundle" in finding.do


def test_the_table_has_no_color_unless_asked() -> None:
    findings = [Finding("a", False, "x", "because", "do it")]
    assert "\033" not in doctor.table(findings, color=False)
    assert "why: because" in doctor.table(findings, color=False)
    assert "\033[31m" in doctor.table(findings, color=True)


def _imports(module: str, seen: set[str]) -> set[str]:
    """Every top-level module that `scripts.<module>` imports, its own imports included."""
    if module in seen:
        return set()
    seen.add(module)
    found: set[str] = set()
    path = ROOT / "scripts" / module.replace(".", "/")
    if not path.with_suffix(".py").is_file():
        return set()  # a name of a module, or a room
    for node in ast.walk(ast.parse(path.with_suffix(".py").read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names if node.module.startswith("scripts"))]
        for name in names:
            top, _, rest = name.partition(".")
            found |= _imports(rest, seen) if top == "scripts" else {top}
    return found


def test_doctor_needs_nothing_but_the_standard_library() -> None:
    assert _imports("machine.doctor", set()) <= set(sys.stdlib_module_names)
    assert "packaging" in _imports("wheel.metadata", set())  # the same walk sees a package where there is one


def test_a_python_that_is_too_old_is_told_so_and_not_shown_a_traceback() -> None:
    main = ROOT / "scripts" / "__main__.py"
    ast.parse(main.read_text(), feature_version=(3, 6))
    code = f"import runpy, sys; sys.version_info = (3, 6, 8, 'final', 0); runpy.run_path({str(main)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 13
    assert done.stderr.startswith("error: this is Python 3.6\n")
    assert "make doctor PYTHON=" in done.stderr
