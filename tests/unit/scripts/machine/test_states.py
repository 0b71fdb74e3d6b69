"""The first hour on a DTK machine, whatever state it is in: each state is named with its fixing line, and the line works."""

from __future__ import annotations

import grp
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.checks import bench, verify
from scripts.common import errors
from scripts.common.paths import ROOT
from scripts.machine import doctor_device, facts, memory, nodes, versions
from scripts.machine.diagnosis import Finding
from scripts.wheel import install
from tests.machine import Box, box, distribution, env_sh, fake_python, fake_toolchain, program
from tests.troubleshooting import row


@pytest.fixture
def dtk_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setattr(memory, "available_gb", lambda: 64.0)
    return box(tmp_path / "a b é")


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
        if "pci" not in kept:
            (b.root / "sys/bus/pci/devices/0000:00:00.0/vendor").unlink()
        if "torch" not in kept:
            b.environ["PYTHON"] = sys.executable

    return plant


@pytest.mark.parametrize("sign", ["dtk", "kfd", "mkfd", "pci", "torch"])
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


def test_make_build_and_make_doctor_answer_for_rocm_and_never_for_cpu(tmp_path: Path) -> None:
    """As a person types it: no variable of the DTK's set, a relative path to the Python, with blanks and another alphabet in it.

    What is wrong here is the compiler, so that nothing is built. `make` reads this repository's own limits: the torch is within them.
    """
    torch = f"{versions.matrix(versions.FILE)['torch'].at_least}.0+das.dtk2604"
    dtk_box = box(tmp_path / "a b é", version=torch)
    (dtk_box.prefix / "lib/llvm/bin/clang++").unlink()
    python = os.path.relpath(dtk_box.python, ROOT)
    for verb in ("doctor", "build"):
        words = ["make", "-s", verb, f"PYTHON={python}"]
        done = subprocess.run(words, cwd=ROOT, env=dtk_box.environ, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 2, said  # make's own, for a recipe that failed
        assert "no clang++ in" in said
        assert "TARGET=rocm" in said
        assert "cpu here" not in said
        assert verb == "build" or python.lstrip("./") in said
        assert verb == "build" or f"{torch}, HIP 6.3.26093" in said


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


def _sourced(b: Box) -> None:
    """As in a shell in which env.sh was sourced."""
    b.environ |= {"LD_LIBRARY_PATH": f"{b.prefix}/lib", "ROCM_PATH": str(b.prefix)}


def _foreign(b: Box, name: str, made: str) -> Path:
    """A compiler of another toolchain."""
    return fake_toolchain(b.root / name, made) / "lib/llvm/bin"


def _python(**said: Any) -> Callable[[Box], None]:
    def plant(b: Box) -> None:
        b.environ["PYTHON"] = str(fake_python(b.root / "other", **said))

    return plant


def _back(b: Box, line: str) -> None:
    """Another Python, the vendor's: what the lines about torch and Python come down to."""
    b.environ["PYTHON"] = str(b.python)


def _inner(b: Box) -> None:
    """ROCM_PATH as env.sh of some DTKs leaves it in the shell."""
    _sourced(b)
    (b.prefix / ".hyhal" / "lib").mkdir(parents=True)
    b.environ["ROCM_PATH"] = str(b.prefix / ".hyhal")


def _gone(*paths: str) -> Callable[[Box], None]:
    return lambda b: [shutil.rmtree(b.root / p) if (b.root / p).is_dir() else (b.root / p).unlink() for p in paths]


def _program(name: str, said: str) -> Callable[[Box], None]:
    return lambda b: (program(b.root.parent / "tools" / name, f"#!/bin/sh\necho {said}\n"), None)[1]


def _copies(b: Box) -> None:
    for folder in ("one", "two"):
        (b.root / folder / "vllm").mkdir(parents=True)
        (b.root / folder / "vllm" / "__init__.py").touch()
    b.environ["PYTHONPATH"] = f"{b.root / 'one'}:{b.root / 'two'}"


def _install_plugin(b: Box) -> None:
    distribution(b.site, "vllm-hcu", "1", folder="vllm_hcu-1.dist-info")
    (b.site / "vllm_hcu-1.dist-info" / "entry_points.txt").write_text("[vllm.platform_plugins]\nhcu = vllm_hcu:register\n")


Follow = Callable[[Box, str], object]
FOLLOW: Follow = Box.follow

# (finding, what is wrong, words of the finding, words of its fixing line, how it is followed)
SWITCHES: list[tuple[str, Callable[[Box], object], str, str, Follow]] = [
    ("dtk", lambda b: b.environ.update(DTK_ENV="/gone/env.sh"), "/gone/env.sh is not a file", "DTK_ENV", lambda b, _: b.environ.pop("DTK_ENV")),
    ("dtk", lambda b: b.environ.update(DTK_ENV=str(b.prefix)), "opt/dtk is not a file", "/opt/dtk/env.sh", lambda b, _: b.environ.update(DTK_ENV=f"{b.prefix}/env.sh")),
    ("usable", lambda b: (b.environ.update(VLLM_DCU_TEST_KFD_ROOT="/gone", PYTORCH_ROCM_ARCH="gfx936"), _gone("dev/kfd", "dev/mkfd")(b)),
     "no /dev/kfd; no /dev/mkfd", "--device=/dev/kfd", FOLLOW),
    ("dtk", lambda b: b.environ.update(ROCM_PATH="/gone"), "ROCM_PATH=/gone", "unset it", lambda b, _: b.environ.pop("ROCM_PATH")),
    ("dtk", _inner, "is a folder inside the DTK", "export ROCM_PATH=", FOLLOW),
    ("dtk", lambda b: env_sh(b.prefix, "exit 3"), "env.sh cannot be sourced", "correct that line", lambda b, _: env_sh(b.prefix)),
    ("dtk", _gone("opt/dtk/lib/cmake"), "has no lib/cmake/hip-lang", "install the DTK's development files", lambda b, _: fake_toolchain(b.prefix)),
    ("compiler", lambda b: b.environ.update(HIPCXX="/gone/clang++"), "HIPCXX=/gone/clang++ is not a program", "unset HIPCXX (the DTK's own is", FOLLOW),
    ("compiler", lambda b: b.environ.update(HIPCXX=str(program(b.root / "hipcc", ""))), "is the hipcc wrapper", "unset HIPCXX", FOLLOW),
    ("compiler", lambda b: b.environ.update(HIPCXX=str(_foreign(b, "llvm", "") / "clang++")), "(chosen by HIPCXX)", "unset HIPCXX", FOLLOW),
    ("compiler", lambda b: b.environ.update(HIP_CLANG_PATH=str(_foreign(b, "llvm", ""))), "(chosen by HIP_CLANG_PATH)", "unset HIP_CLANG_PATH", FOLLOW),
    ("compiler", _gone("opt/dtk/lib/llvm"), "no clang++ in", "set HIPCXX", lambda b, _: b.environ.update(HIPCXX=str(_foreign(b, "x", "gfx936") / "clang++"))),
    ("archs", lambda b: b.environ.update(PYTORCH_ROCM_ARCH="gfx936,gfx936"), "has a comma", "separate by semicolons", lambda b, _: b.environ.update(PYTORCH_ROCM_ARCH="gfx936")),
    ("archs", lambda b: b.environ.update(VLLM_DCU_TEST_KFD_ROOT="/gone"), "no DCU is to be seen", "PYTORCH_ROCM_ARCH=gfx936 make", FOLLOW),
    ("PYTHON", _python(version=[3, 9, 2]), "3.9.2 (wanted", "PYTHON=/path/to/the/python3.10", _back),
    ("PYTHON", _python(include="/gone"), "without headers", "install the headers", _back),
    ("PYTHON", _python(pip=False), "has no pip", "-m ensurepip", _back),
    ("PYTHON", _python(pip=False, ensurepip=False), "has no pip", "apt-get install", _back),
    ("torch", _python(torch="2.10.0", hip="", cuda="12.8"), "is built for CUDA 12.8, not for HIP", "--no-deps --force-reinstall", _back),
    ("torch", _python(torch="", torch_error="ModuleNotFoundError: No module named 'torch'"), "import torch fails", "PYTHON=/path/to", _back),
    ("torch", lambda b: (env_sh(b.prefix, "LD_LIBRARY_PATH=/else"), _gone("opt/hyhal")(b)), "libgalaxyhip.so.5", "-v /opt/hyhal:/opt/hyhal:ro",
     lambda b, line: (env_sh(b.prefix), FOLLOW(b, line))),
    ("torch", lambda b: (b.environ.update(ROCM_PATH=str(_foreign(b, "rocm", "gfx936").parents[2]))), "libgalaxyhip.so.5", "DTK_ENV=/opt/dtk/env.sh", FOLLOW),
    ("cmake", _program("cmake", "cmake version 3.25.1"), "is 3.25.1", "install cmake 3.26.1", lambda b, _: _program("cmake", "cmake version 3.31.0")(b)),
    ("ninja", _program("ninja", "1.8"), "is 1.8", "install ninja 1.10", lambda b, _: _program("ninja", "1.12")(b)),
    ("memory", lambda b: b.environ.update(MAX_JOBS="99"), "for 99 job(s)", "MAX_JOBS=1 make build", FOLLOW),
    ("memory", lambda b: b.environ.update(MAX_JOBS="lots"), "is not a number", "give a whole number", lambda b, _: b.environ.update(MAX_JOBS="2")),
    ("usable", _gone("dev/kfd"), "no /dev/kfd", "--device=/dev/kfd", FOLLOW),
    ("usable", _gone("dev/mkfd"), "no /dev/mkfd", "--device=/dev/mkfd", FOLLOW),
    ("usable", _gone("dev/dri"), "no /dev/dri/renderD*", "--device=/dev/dri", FOLLOW),
    ("usable", _gone("opt/hyhal"), "no /opt/hyhal", "-v /opt/hyhal:/opt/hyhal:ro", FOLLOW),
    ("usable", _gone("dev/kfd", "dev/mkfd", "dev/dri", "opt/hyhal"), "no /dev/kfd; no /dev/mkfd; no /dev/dri/renderD*; no /opt/hyhal",
     "--device=/dev/kfd --device=/dev/mkfd --device=/dev/dri -v /opt/hyhal:/opt/hyhal:ro", FOLLOW),
    ("visible", lambda b: b.environ.update(HIP_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="1"), "HIP_VISIBLE_DEVICES='0'", "unset CUDA_VISIBLE_DEVICES", FOLLOW),
    ("vllm", _copies, "2 copies; the one that runs is", "pip uninstall vllm, until none is left", lambda b, _: b.environ.pop("PYTHONPATH")),
    ("plugins", _install_plugin, "hcu = vllm_hcu:register", "VLLM_PLUGINS=", lambda b, _: b.environ.update(VLLM_PLUGINS="")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "plant", "words", "line", "follow"), SWITCHES, ids=[f"{row[0]}-{row[2][:24]}" for row in SWITCHES])
def test_each_state_is_named_with_a_line_and_the_line_when_followed_works(
    dtk_box: Box, name: str, plant: Callable[[Box], object], words: str, line: str, follow: Follow
) -> None:
    plant(dtk_box)
    found = next(f for f in findings(dtk_box) if f.name == name)
    assert words in found.found
    assert line in found.do
    assert target(dtk_box) == "rocm"
    follow(dtk_box, found.do)
    assert findings(dtk_box) == []


def test_a_device_node_for_another_group_is_named_with_the_group(dtk_box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    node, access = dtk_box.root / "dev" / "kfd", nodes.os.access
    node.chmod(0o660)
    monkeypatch.setattr(nodes.os, "access", lambda path, mode: path != node and access(path, mode))
    (found,) = findings(dtk_box)
    assert f"/dev/kfd may not be opened (mode 660, group {grp.getgrgid(node.stat().st_gid).gr_name})" in found.found
    monkeypatch.setattr(nodes.os, "getegid", lambda: 4242)
    monkeypatch.setattr(nodes.os, "getgroups", list)
    (found,) = findings(dtk_box)
    assert "it is for group" in found.found
    assert "usermod -aG" in found.do
    assert f"docker run --group-add {node.stat().st_gid} --device=/dev/kfd" in found.do


def test_an_env_sh_whose_rocm_path_is_inside_hyhal_is_understood(dtk_box: Box) -> None:
    (dtk_box.prefix / ".hyhal").mkdir()
    env_sh(dtk_box.prefix, f"export ROCM_PATH='{dtk_box.prefix}/.hyhal'")
    assert findings(dtk_box) == []
    machine = facts.look(dtk_box.environ)
    assert machine.toolchain is not None
    assert machine.toolchain.prefix == dtk_box.prefix
    assert "holds no compiler" in machine.toolchain.origin


def test_an_image_that_sets_rocm_path_and_leaves_the_rest_to_env_sh_is_sourced(dtk_box: Box) -> None:
    dtk_box.environ["ROCM_PATH"] = str(dtk_box.prefix)
    assert findings(dtk_box) == []
    _sourced(dtk_box)
    assert findings(dtk_box) == []
    machine = facts.look(dtk_box.environ)
    assert machine.toolchain is not None
    assert machine.toolchain.origin == "ROCM_PATH of the environment", "what a person has sourced is not sourced over"


def _row(b: Box, name: str, plant: Callable[[Box], object]) -> None:
    plant(b)
    assert row(name).symptom in "".join(f.found + f.why for f in findings(b))


def test_row_env_sh(dtk_box: Box) -> None:
    _row(dtk_box, "env_sh", lambda b: env_sh(b.prefix, "exit 3"))


def test_row_not_usable(dtk_box: Box) -> None:
    _row(dtk_box, "not_usable", _gone("dev/mkfd"))


def test_row_hip_library(dtk_box: Box) -> None:
    _row(dtk_box, "hip_library", lambda b: env_sh(b.prefix, "LD_LIBRARY_PATH=/else"))


def test_row_rocm_path_inside(dtk_box: Box) -> None:
    _row(dtk_box, "rocm_path_inside", _inner)


def test_row_triton_owner(dtk_box: Box) -> None:
    distribution(dtk_box.site, "flagtree", "0.3.0", {"triton/__init__.py": ""})
    python = facts.look(dtk_box.environ).python
    assert row("triton_owner").symptom in install.constraints(python)
    assert "--override" in install.install_lines(dtk_box.root / "w.whl", dtk_box.root / "c.txt", python)[2]
