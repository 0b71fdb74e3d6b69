"""The device build: what it is made of is decided first, and every refusal is one sentence."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.common import errors, paths
from scripts.common.files import hold
from scripts.machine import archs, dtk
from scripts.machine.interpreter import Facts, facts
from scripts.wheel import device, install
from scripts.wheel.pack import DEFAULT_EPOCH, Entry, write_wheel
from tests.machine import program


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> device.Plan:
    monkeypatch.setattr(device, "BUILD", tmp_path / "build")
    python = Facts("/py/python3.10", version=(3, 10, 12), torch="2.10.0+das", hip="6.3.26093")
    made = device.Plan(
        dtk.Dtk(tmp_path / "dtk", {"PATH": "/usr/bin:/bin"}, ""), tmp_path / "clang++", "clang 17", tmp_path / "dtk", python,
        ("gfx936",), "", 4, Path("cmake"), tmp_path / "ninja", "", None, device.COMPONENTS,
    )  # fmt: skip
    made.folder.mkdir(parents=True)
    return made


def test_the_wheel_is_for_the_python_whose_torch_was_compiled_against(plan: device.Plan) -> None:
    assert device.wheel_tag(plan).startswith("cp310-cp310-linux_")
    assert device.wheel_tag(replace(plan, stand_in="gfx906")) == "cp310-cp310-standin_gfx906"


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p, archs=("gfx906", "gfx936")),
        lambda p: replace(p, compiler_version="clang 18"),
        lambda p: replace(p, stand_in="gfx906"),
        lambda p: replace(p, python=replace(p.python, torch="2.10.1")),
        lambda p: replace(p, toolchain=dtk.Dtk(Path("/other"), {}, "")),
    ],
)
def test_what_may_not_share_objects_has_a_folder_of_its_own(plan: device.Plan, change: Callable[[Any], device.Plan]) -> None:
    assert change(plan).folder != plan.folder
    assert replace(plan, jobs=9, components=("_rocm_C",)).folder == plan.folder


def ninja(plan: device.Plan, text: str, code: int = 1) -> None:
    body = "".join(f"echo {line!r}\n" for line in text.splitlines())
    program(plan.ninja, f"#!/bin/sh\n{body}exit {code}\n")


@pytest.mark.parametrize(
    "line",
    [
        "clang++: error: unable to execute command: Killed",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "FAILED: [code=137] CMakeFiles/_C.dir/csrc/x.hip.o",
        "LLVM ERROR: out of memory",
        "terminate called after throwing an instance of std::bad_alloc",
    ],
)
def test_a_compiler_that_ran_out_of_memory_is_told_apart(plan: device.Plan, line: str) -> None:
    ninja(plan, f"[1/9] Building HIP object a\n{line}")
    with pytest.raises(errors.CannotBuild, match=r"the compiler was killed: out of memory with 4 job\(s\)") as caught:
        device.run_ninja(plan, ["_C"])
    assert caught.value.do.startswith("MAX_JOBS=2 make build TARGET=rocm")
    assert line in plan.log.read_text()


def test_another_failure_shows_the_compilers_first_error_and_the_log(plan: device.Plan) -> None:
    ninja(plan, "FAILED: x.o\nx.hip:3:1: error: no such thing\ny.hip:1:1: error: later")
    with pytest.raises(errors.CannotBuild, match=r"x\.hip:3:1: error: no such thing") as caught:
        device.run_ninja(plan, ["_C"])
    assert "build.log" in caught.value.do


def test_each_finished_step_is_said(plan: device.Plan, capsys: pytest.CaptureFixture[str]) -> None:
    ninja(plan, "noise\n[1/2] Building HIP object a\n[2/2] Linking b", 0)
    device.run_ninja(plan, ["_C"])
    assert capsys.readouterr().err.splitlines() == ["[1/2] Building HIP object a", "[2/2] Linking b"]


def test_an_orphaned_ninja_keeps_the_lock_of_the_build(plan: device.Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two ninjas in one folder delete each other's objects; the lock lives as long as any process holds its descriptor."""
    program(plan.ninja, '#!/bin/sh\nfor fd in /proc/$$/fd/*; do echo "[1/1] $(readlink $fd)"; done\n')
    lock = tmp_path / "the.lock"
    with hold(lock, "test"):
        device.run_ninja(plan, ["_C"])
    assert f"[1/1] {lock}" in capsys.readouterr().err.splitlines()
    device.run_ninja(plan, ["_C"])
    assert f"[1/1] {lock}" not in capsys.readouterr().err.splitlines()


def commands(plan: device.Plan, *asked: str) -> None:
    rows = [{"command": "clang++ " + " ".join(f"--offload-arch={arch}" for arch in asked)}, {"command": "c++ -c host.cpp"}]
    (plan.folder / "compile_commands.json").write_text(json.dumps(rows))


def test_commands_for_exactly_the_asked_archs_pass(plan: device.Plan) -> None:
    commands(plan, "gfx936")
    device.check_commands(plan)


def test_an_arch_that_cmake_dropped_is_named_before_anything_is_compiled(plan: device.Plan) -> None:
    commands(plan, "gfx906")
    with pytest.raises(errors.CannotBuild, match="CMake dropped the arch gfx936"):
        device.check_commands(plan)


def test_an_arch_that_nobody_asked_for_is_named(plan: device.Plan) -> None:
    commands(plan, "gfx936", "gfx90a")
    with pytest.raises(errors.CannotBuild, match="CMake compiles for gfx90a, gfx936"):
        device.check_commands(plan)


def bundle(path: Path, arch: str) -> Path:
    """A file with one offload bundle that holds code for `arch`."""
    import struct

    ident, code = f"hipv4-amdgcn-amd-amdhsa--{arch}".encode(), b"\x7fELF" + bytes(12)
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1)
    offset = len(head) + 24 + len(ident)
    path.write_bytes(head + struct.pack("<QQQ", offset, len(code), len(ident)) + ident + code)
    return path


def test_a_library_without_code_for_the_device_is_refused_in_the_runtimes_own_words(plan: device.Plan, tmp_path: Path) -> None:
    good, foreign = bundle(tmp_path / "a", "gfx936"), bundle(tmp_path / "b", "gfx906")
    device.check_code_objects(plan, {"vllm/_C.abi3.so": good, "vllm/cumem_allocator.abi3.so": foreign})
    with pytest.raises(errors.CannotBuild, match="holds device code for gfx906, not for gfx936") as caught:
        device.check_code_objects(plan, {"vllm/_C.abi3.so": foreign})
    assert "hipErrorNoBinaryForGpu" in caught.value.why


def test_own_kernels_that_do_not_compile_are_left_out_or_fatal_as_asked(plan: device.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = errors.CannotBuild("compiling failed", "gemv.cu:1: error: planted", "read the log")
    asked: list[object] = []

    def run(p: device.Plan, targets: object) -> None:
        asked.append(targets)
        raise refused

    monkeypatch.setattr(device, "run_ninja", run)
    assert device.own_kernels(plan) == "the compiler refused it: gemv.cu:1: error: planted"
    assert asked == [["_dcu_C"]]
    with pytest.raises(errors.CannotBuild, match="compiling failed"):
        device.own_kernels(replace(plan, dcu_kernels="required"))
    refused = errors.CannotBuild(f"{device._OUT_OF_MEMORY} with 4 job(s)", "no verdict on the code", "fewer jobs")
    with pytest.raises(errors.CannotBuild, match="out of memory"):
        device.own_kernels(plan)
    asked.clear()
    assert device.own_kernels(replace(plan, dcu_kernels="0")) == "DCU_KERNELS=0"
    assert device.own_kernels(replace(plan, archs=("gfx906",))) == "no DCU among the archs"
    assert asked == []


def test_dcu_kernels_has_three_values() -> None:
    assert [device._own_kernels({"DCU_KERNELS": v}) for v in ("", "required", "0")] == ["", "required", "0"]
    with pytest.raises(errors.UserError, match="neither required nor 0"):
        device._own_kernels({"DCU_KERNELS": "off"})


def test_own_kernels_hold_code_for_the_dcus_of_a_mixed_list_alone(plan: device.Plan, tmp_path: Path) -> None:
    mixed = replace(plan, archs=("gfx906", "gfx936"))
    device.check_code_objects(mixed, {"vllm/_dcu_C.abi3.so": bundle(tmp_path / "own", "gfx936")})
    with pytest.raises(errors.CannotBuild, match=r"_dcu_C\.abi3\.so holds device code for gfx906, not for gfx936"):
        device.check_code_objects(mixed, {"vllm/_dcu_C.abi3.so": bundle(tmp_path / "foreign", "gfx906")})


def test_a_part_of_the_build_is_refused_but_for_a_stand_in() -> None:
    assert device._components({"ROCM_COMPONENTS": "_rocm_C"}, "gfx906") == ("_rocm_C",)
    with pytest.raises(errors.UserError, match="is not the whole build"):
        device._components({"ROCM_COMPONENTS": "_rocm_C"}, "")


def test_a_pinned_copy_of_triton_kernels_is_taken_and_its_content_is_said(
    tmp_path: Path, plan: device.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "OFFLINE", tmp_path / "offline")
    assert device._triton_kernels({}) is None
    (tmp_path / "tk").mkdir()
    given = {"TRITON_KERNELS_SRC_DIR": str(tmp_path / "tk")}
    with pytest.raises(errors.MissingInput, match="holds no Python file"):
        device._triton_kernels(given)
    (tmp_path / "tk" / "matmul.py").write_text("x = 1\n")
    found = device._triton_kernels(given)
    assert found == tmp_path / "tk"
    digest = device.tree_sha256(tmp_path / "tk")
    assert device._triton_kernels({**given, "TRITON_KERNELS_SHA256": digest}) == found
    with pytest.raises(errors.DamagedDownload, match="has sha256"):
        device._triton_kernels({**given, "TRITON_KERNELS_SHA256": "0" * 64})


def test_compiler_caches_are_used_where_they_are(tmp_path: Path) -> None:
    assert device._launcher({"PATH": str(tmp_path)}) == ""
    program(tmp_path / "ccache", "#!/bin/sh\n")
    assert device._launcher({"PATH": str(tmp_path)}) == "ccache"
    program(tmp_path / "sccache", "#!/bin/sh\n")
    assert device._launcher({"PATH": str(tmp_path)}) == "sccache"
    assert device._launcher({"PATH": str(tmp_path), "VLLM_DISABLE_SCCACHE": "1"}) == "ccache"


def test_the_constraints_hold_all_that_is_there_and_bar_what_is_not() -> None:
    there = {"torch": "2.10.0+das", "triton": "3.1.0", "numpy": "1.26.4", "vllm": "0.18.1+das", "odd": "1.0-custom-build"}
    text = install.constraints(Facts("python3.10", version=(3, 10, 12), distributions=there))
    lines = [line.split("  #")[0] for line in text.splitlines() if not line.startswith("#")]
    assert lines == ["numpy==1.26.4", "torch==2.10.0+das", "triton==3.1.0", "torchvision<0", "torchaudio<0", "amdsmi<0"]
    assert "# odd 1.0-custom-build: no version that pip can hold" in text


def test_the_install_lines_name_the_python_the_wheel_and_the_constraints() -> None:
    """Names with blanks are quoted; what would be changed is said first."""
    lines = install.install_lines(Path("dist/w.whl"), Path("a b/c.txt"), Facts("/dtk/python3.10"))
    assert lines[0] == "/dtk/python3.10 -m pip install --no-deps dist/w.whl"
    assert lines[1].startswith("/dtk/python3.10 -m pip install --dry-run -c 'a b/c.txt' dist/w.whl")
    assert lines[2].startswith("/dtk/python3.10 -m pip install -c 'a b/c.txt' dist/w.whl")


def test_a_python_without_pip_has_lines_for_the_uv_of_the_tools() -> None:
    lines = install.install_lines(Path("dist/w.whl"), Path("dist/c.txt"), Facts("/dtk/python3.10", pip=False))
    assert lines[0] == f"{paths.shown(Path(sys.executable))} -m uv pip install --python /dtk/python3.10 --no-deps dist/w.whl"
    assert not [line for line in lines if "/dtk/python3.10 -m pip" in line]


def test_what_vllm_asks_for_in_another_version_is_said(tmp_path: Path) -> None:
    text = b"Name: vllm\nRequires-Dist: transformers>=4.56\nRequires-Dist: numpy\nRequires-Dist: x>9; extra == 'y'\nRequires-Dist: gone>1\n"
    write_wheel(tmp_path / "w.whl", "vllm-1.dist-info", [Entry("vllm-1.dist-info/METADATA", text)], DEFAULT_EPOCH)
    found = install.held_back(
        tmp_path / "w.whl", Facts("p", version=(3, 10, 12), distributions={"Transformers": "4.40", "numpy": "1", "x": "1"})
    )
    assert found == ["transformers 4.40 is held, vLLM asks for >=4.56"]


def wheel(folder: Path, **files: str) -> Path:
    """A wheel with the real manifest module, a manifest that fits, and a `_rocm_C` made of Python."""
    import hashlib

    from scripts.common.paths import ROOT

    code = {
        "__init__.py": "", "dcu/__init__.py": "",
        **{f"dcu/{name}.py": (ROOT / f"overlay/vllm/dcu/{name}.py").read_text() for name in ("manifest", "device/marks", "records/strict", "records/typed")},
        **files,
    }  # fmt: skip
    said = {
        "schema": 1, "version": "1", "target": "rocm", "upstream": "1", "upstream_sha256": "0" * 64, "patches": [], "tree": "0" * 40,
        "base_commit": "0" * 40, "head_commit": "0" * 40, "archs": [], "toolchain": {},
        "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in code.items()},
    }  # fmt: skip
    entries = [Entry(f"vllm/{name}", text.encode()) for name, text in code.items()]
    write_wheel(folder / "w.whl", "vllm-1.dist-info", [*entries, Entry("vllm/dcu/manifest.json", json.dumps(said).encode())], DEFAULT_EPOCH)
    return folder / "w.whl"


def test_the_import_check_imports_the_wheel_in_a_child_and_installs_nothing(tmp_path: Path) -> None:
    python = facts(sys.executable)
    assert install.import_check(wheel(tmp_path), python, {"PATH": "/usr/bin:/bin"}) == {"LLMM1": "not bound"}


def test_another_vllm_that_hides_the_built_one_is_named(tmp_path: Path) -> None:
    """A `sitecustomize` that imports its own vllm first, as editable installs and vendors' hooks do."""
    with zipfile.ZipFile(wheel(tmp_path)) as archive:
        archive.extractall(tmp_path / "other")
    (tmp_path / "other" / "sitecustomize.py").write_text("import vllm.dcu.manifest\n")
    with pytest.raises(errors.CheckFailed, match="another vllm was imported"):
        install.import_check(wheel(tmp_path), facts(sys.executable), {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "other")})


def test_a_library_that_does_not_load_is_named_with_the_loaders_words(tmp_path: Path) -> None:
    broken = wheel(tmp_path, **{"_rocm_C.abi3.so": "no ELF"})
    with pytest.raises(errors.CheckFailed, match=r"import vllm\._rocm_C fails in .*ImportError"):
        install.import_check(broken, facts(sys.executable), {"PATH": "/usr/bin:/bin"})


def test_a_stand_in_is_taken_only_where_the_compiler_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.dtk, "made_for", lambda compiler, arch, env: ("gfx906", ""))
    device._check_stand_in("gfx906", tmp_path, ["gfx936"], {})
    with pytest.raises(errors.UserError, match="STAND_IN='gfx900'"):
        device._check_stand_in("gfx900", tmp_path, ["gfx936"], {})
    monkeypatch.setattr(device.dtk, "made_for", lambda compiler, arch, env: ("gfx936", ""))
    with pytest.raises(errors.UserError, match="unset STAND_IN"):
        device._check_stand_in("gfx936", tmp_path, ["gfx936"], {})


def test_what_a_stand_in_makes_is_said_of_the_dcu_alone(plan: device.Plan) -> None:
    mixed = replace(plan, archs=("gfx90a", "gfx936"), stand_in="gfx906")
    assert mixed.made == ("gfx906", "gfx90a")
    assert archs.dcu_archs() == {"gfx936"}
