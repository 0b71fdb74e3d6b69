"""Each row of docs/troubleshooting.md, provoked. Those that need a compiler or vLLM are in tests/native and tests/runtime."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.common import errors
from scripts.common.overlay import overlay_module
from scripts.common.paths import ROOT
from scripts.machine import archs, doctor, doctor_device, dtk
from scripts.machine.facts import Machine
from scripts.machine.interpreter import Facts, facts
from scripts.wheel import device
from tests.machine import fake_python, fake_toolchain, program
from tests.troubleshooting import row, rows, without_test
from tests.unit.dcu.test_manifest import MANIFEST, install
from tests.unit.repository.test_readme import make_words
from tests.unit.repository.test_repository import makefile_targets
from tests.unit.scripts.wheel.test_rocm_build import bundle, commands, plan

__all__ = ["plan"]  # a fixture

OVERLAY = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "overlay")}


def sources() -> list[str]:
    return [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py")]


def test_every_row_has_its_test_and_every_test_its_row() -> None:
    assert without_test(set(rows()), sources()) == set()


def test_a_row_without_a_test_is_found() -> None:
    assert without_test({*rows(), "invented"}, sources()) == {"invented"}


def test_every_make_target_that_the_page_names_exists() -> None:
    text = "\n".join(f"{r.command} {r.fix}" for r in rows().values())
    assert {"doctor", "build"} <= make_words(text) <= set(makefile_targets())


def machine(python: Facts, toolchain: dtk.Dtk | None = None, **environ: str) -> Machine:
    return Machine(environ, toolchain, None, python, None)


def finding(name: str, m: Machine) -> Any:
    check = {"torch": doctor_device.torch_finding, "compiler": doctor_device._compiler, "plugins": doctor_device._plugins}[name]
    found = check(m)
    assert not found.ok
    return found


def test_row_torch_replaced(tmp_path: Path) -> None:
    found = finding("torch", machine(facts(str(fake_python(tmp_path, torch="2.10.0", hip="", cuda="12.8")))))
    assert row("torch_replaced").symptom in found.found
    assert "constraints-gfx936.txt" in found.do


def test_row_not_a_dtk(tmp_path: Path) -> None:
    found = finding("compiler", machine(Facts("p"), dtk.Dtk(fake_toolchain(tmp_path, made=""), OVERLAY, "")))
    assert row("not_a_dtk").symptom in found.found


def test_row_rocm_path() -> None:
    with pytest.raises(errors.MissingInput) as caught:
        dtk.find({"ROCM_PATH": "/nowhere/dtk", **OVERLAY})
    assert row("rocm_path").symptom in caught.value.what


def test_row_arch_dropped() -> None:
    with pytest.raises(errors.UserError) as caught:
        archs.choose({"PYTORCH_ROCM_ARCH": "gfx936;gfx928"}, frozenset({"gfx936", "gfx90a"}), None)
    assert row("arch_dropped").symptom in caught.value.what


def test_row_out_of_memory(plan: device.Plan) -> None:
    program(plan.ninja, "#!/bin/sh\necho 'clang++: error: unable to execute command: Killed'\nexit 1\n")
    with pytest.raises(errors.CannotBuild) as caught:
        device.run_ninja(plan, ["_C"])
    assert row("out_of_memory").symptom in caught.value.what


def test_row_no_code_object(plan: device.Plan, tmp_path: Path) -> None:
    """The runtime's own word (a native test finds it in libamdhip64) is in our refusal of such a library."""
    commands(plan, "gfx936")
    with pytest.raises(errors.CannotBuild) as caught:
        device.check_code_objects(plan, {"vllm/_C.abi3.so": bundle(tmp_path / "so", "gfx906")})
    assert row("no_code_object").symptom in caught.value.why


def test_row_two_copies(tmp_path: Path) -> None:
    ours = install(tmp_path / "site", MANIFEST.version)
    stock = install(tmp_path / "stock", "0.18.1", ours=False)
    verdict = overlay_module("manifest").examine(ours / "vllm", [str(ours), str(stock)])
    assert any(row("two_copies").symptom in note for note in verdict.notes)


def explain(*argv: str) -> str:
    """`python -m vllm.dcu explain` from the overlay alone: it needs neither torch nor vLLM for an assumed device."""
    done = subprocess.run([sys.executable, "-m", "vllm.dcu", "explain", *argv], env=OVERLAY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_row_toolchain_closed() -> None:
    asked = ("--arch", "gfx936", "--m", "34816", "--k", "5120")
    said = explain(*asked, "--torch", "2.9.0")
    r = row("toolchain_closed")
    assert f"[{r.symptom}]" in said
    assert "runs      F.linear" in said
    assert f"[{r.symptom}]" not in explain(*asked)
    forced = re.search(r"VLLM_DCU_CAPABILITIES=(\S+)=force", r.fix)
    assert forced is not None
    assert forced[1] in said


def test_row_plugin(tmp_path: Path) -> None:
    code = "from vllm.dcu.evidence.active import describe; print(describe('vllm_hcu.HcuPlatform', ('vllm-hcu',), None).sentence)"
    said = subprocess.run([sys.executable, "-c", code], env=OVERLAY, capture_output=True, text=True, check=True).stdout
    assert row("plugin").symptom in said
    found = finding("plugins", machine(facts(str(fake_python(tmp_path, plugins=[["hcu", "vllm_hcu:register", "vllm-hcu"]])))))
    assert "VLLM_PLUGINS=" in found.do


def test_row_rewritten(tmp_path: Path) -> None:
    ours = install(tmp_path / "site", MANIFEST.version)
    (ours / "vllm" / "__init__.py").write_text("# PATCHED_vllm_patch_0\n")
    problems = overlay_module("manifest").examine(ours / "vllm", [str(ours)]).problems
    r = row("rewritten")
    assert f"{r.symptom} (mark PATCHED_vllm_patch_0)" in problems[0]
    assert "--force-reinstall --no-deps" in problems[1]
    assert "--force-reinstall --no-deps" in r.fix


def test_row_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_have_tools", lambda: False)
    monkeypatch.setattr(doctor.childenv, "for_pip", dict)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1))
    found = doctor._network("rocm")
    assert row("offline").symptom in found.found
    assert "make bundle" in found.do
