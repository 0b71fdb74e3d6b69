"""doctor says what is missing, why it matters and what to run; its exit code is 0 only if a build can succeed."""

from __future__ import annotations

import json
import sys
from collections import namedtuple

import pytest

from scripts import doctor


def result(capsys, *argv: str) -> tuple[int, dict]:
    code = doctor.main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def problem(data: dict) -> dict:
    found = [f for f in data["findings"] if not f["ok"]]
    assert len(found) == 1, found
    assert found[0]["why"]
    assert found[0]["do"]
    return found[0]


def test_a_fit_machine_is_said_to_be_fit(capsys, monkeypatch):
    monkeypatch.delenv("UPSTREAM_SDIST", raising=False)
    code, data = result(capsys, "--target", "cpu")
    assert (code, data["can_build"], data["target"]) == (0, True, "cpu")


def test_rocm_without_a_hip_torch_is_a_problem(capsys, monkeypatch):
    monkeypatch.delenv("UPSTREAM_SDIST", raising=False)
    monkeypatch.setenv("PYTHON", sys.executable)
    code, data = result(capsys, "--target", "rocm")
    assert code == 13
    assert problem(data)["name"] == "torch"


def test_a_python_with_a_hip_torch_makes_auto_rocm(capsys, monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!{sys.executable}\nprint("6.3.26093")\n')
    python.chmod(0o755)
    monkeypatch.delenv("UPSTREAM_SDIST", raising=False)
    monkeypatch.setenv("PYTHON", str(python))
    code, data = result(capsys)
    assert (code, data["target"]) == (0, "rocm")


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("python", lambda m, t: m.setattr(doctor.sys, "version_info", (3, 9, 1))),
        ("git", lambda m, t: m.setenv("PATH", str(t))),
        ("disk", lambda m, t: m.setattr(doctor.shutil, "disk_usage", lambda p: namedtuple("U", "total used free")(9, 8, 1_000_000_000))),
        ("sdist", lambda m, t: m.setenv("UPSTREAM_SDIST", str(t / "gone"))),
        ("tools", lambda m, t: m.setenv("TOOLS_PYTHON", str(t / "gone"))),
        ("folders", lambda m, t: m.setattr(doctor.os, "access", lambda p, mode: False)),
    ],
)
def test_a_planted_problem_is_the_one_that_is_named(capsys, monkeypatch, tmp_path, name, plant):
    monkeypatch.delenv("UPSTREAM_SDIST", raising=False)
    plant(monkeypatch, tmp_path)
    code, data = result(capsys, "--target", "cpu")
    assert code == 13
    assert problem(data)["name"] == name


def test_the_table_has_no_color_unless_asked():
    findings = [doctor.Finding("a", False, "x", "because", "do it")]
    assert "\033" not in doctor.table(findings, color=False)
    assert "why: because" in doctor.table(findings, color=False)
    assert "\033[31m" in doctor.table(findings, color=True)
