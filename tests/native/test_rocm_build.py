"""TARGET=rocm from configure to wheel, for _rocm_C, with a fake DTK: stand-in arch gfx906, nothing here is for gfx936.

What is real: doctor, the plan, vLLM's CMake build with the series, the compiler (public clang, asked for gfx936 and told by
its wrapper to make gfx906), the linker, the packer, the audit. What is not: the DTK, the HIP torch, a device.
"""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.audit.verb import audit_wheel, bench_of
from scripts.common import errors
from scripts.common.overlay import overlay_module
from scripts.common.paths import cache_dir
from tests.conftest import Checkout, base_environment, copy_repository
from tests.native.fake_dtk import ASKED, STAND_IN, FakeDtk, make
from tests.support import not_run
from tests.troubleshooting import row

STANDIN_VERSION = "0.18.1+gfx936.1.standin.gfx906"


@dataclass(frozen=True)
class Site:
    """A clean checkout beside a fake DTK, with the wheel that was built in it."""

    checkout: Checkout
    dtk: FakeDtk
    wheel: Path
    killed: str
    said: str


def site_hash(python: Path) -> str:
    """Names and contents of all that is installed for an interpreter."""
    digest = hashlib.sha256()
    for file in sorted((python.parent.parent / "lib").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    try:
        bench = bench_of()
    except errors.NotRun as error:
        not_run(error.what.removeprefix("not run: "))
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        not_run("this Python has no headers (Python.h), which the extension includes")
    root = tmp_path_factory.mktemp("rocm")
    # As after installation: the DTK lies in /opt/dtk, and nobody has sourced its env.sh.
    fake = make(root / "machine", bench.toolchain, bench.torch_include.parent)
    (root / "a b 工具").mkdir()
    copy_repository(root / "a b 工具")
    (root / "home").mkdir()
    plain = {
        k: v for k, v in base_environment(root / "home").items() if k not in ("ROCM_PATH", "HIPCXX", "STAND_IN", "CMAKE_ARGS", "CXXFLAGS")
    }
    env = {
        **plain,
        "GFX936_CACHE": str(cache_dir()),
        "PYTHON": str(fake.python),
        "GFX936_TEST_ROOT": str(root / "machine"),
        "PYTORCH_ROCM_ARCH": ASKED,
        "GFX936_TOOLCHAIN": str(bench.toolchain.root),
    }
    checkout = Checkout(root / "a b 工具", env)
    checkout.run("apply")
    before = site_hash(fake.python)
    asked = {"STAND_IN": STAND_IN, "ROCM_COMPONENTS": "_rocm_C"}
    fake.kill_compilers(True)
    killed = checkout.run("build", "--target", "rocm", env=asked, code=errors.CannotBuild.exit_code)
    fake.kill_compilers(False)
    said = checkout.run("build", env=asked)  # no target: what is here decides
    assert site_hash(fake.python) == before, "something was installed into the Python in use"
    (wheel,) = (root / "a b 工具" / "dist").glob("*.whl")
    return Site(checkout, fake, wheel, killed, said)


def member(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


def test_the_wheel_says_stand_in_in_version_tag_and_manifest(site: Site) -> None:
    assert site.wheel.name.startswith(f"vllm-{STANDIN_VERSION}-cp3")
    assert site.wheel.name.endswith(f"-standin_{STAND_IN}.whl")
    manifest = overlay_module("manifest").parse(member(site.wheel, "vllm/dcu/manifest.json"))
    assert (manifest.version, manifest.archs) == (STANDIN_VERSION, (STAND_IN,))
    assert manifest.toolchain["stand_in"] == STAND_IN
    assert manifest.toolchain["archs_asked"] == ASKED
    assert manifest.toolchain["triton_kernels"] == "left out: no local copy was given"
    assert f"stand-in arch {STAND_IN}" in site.said


def test_without_env_sh_the_two_commands_of_the_readme_end_in_a_device_wheel_and_say_why(site: Site) -> None:
    assert subprocess.run([site.dtk.python, "-c", "import torch"], capture_output=True, check=False).returncode != 0
    assert "TARGET=rocm, by what is here: a DTK in" in site.said
    assert [path.name for path in site.wheel.parent.glob("*.whl")] == [site.wheel.name]


def test_the_first_hour_ends_in_a_page_and_a_report_and_goes_on_where_it_stopped(site: Site) -> None:
    asked = {"STAND_IN": STAND_IN, "ROCM_COMPONENTS": "_rocm_C", "USER": "alice-the-owner"}
    for again in (False, True):
        said = site.checkout.run("first-hour", env=asked, code=errors.NotRun.exit_code)
        assert ("not again: " in said) == again
    assert len(site.dtk.compiles()) == 2, "nothing was compiled anew"
    folder = site.checkout.root / "build" / "first-hour"
    page, report = (folder / "page.md").read_text(), (folder / "report.json").read_text()
    assert f"a stand-in for {STAND_IN}: it is not for a DCU, and nothing below is evidence about one" in page
    assert "pip install" not in page
    steps = {step["name"]: step["outcome"] for step in json.loads(report)["steps"]}
    assert steps == {"doctor": "passed", "apply": "passed", "build": "passed", "audit": "passed", "import": "not run", "verify": "not run"}
    assert json.loads(report)["build"]["stand_in"] == STAND_IN
    for private in ("alice-the-owner", str(site.checkout.root), str(site.dtk.prefix), str(Path.home()), socket.gethostname()):
        assert private not in report


def test_row_stand_in(site: Site, tmp_path: Path) -> None:
    """pip does not take the stand-in wheel: its platform is none that pip knows."""
    argv = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(tmp_path), str(site.wheel)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert row("stand_in").symptom in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_unpacked_by_hand_the_stand_in_is_still_refused(site: Site, tmp_path: Path) -> None:
    with zipfile.ZipFile(site.wheel) as archive:
        archive.extractall(tmp_path)
    verdict = overlay_module("manifest").examine(tmp_path / "vllm", [str(tmp_path)])
    assert verdict.problems == (
        f"this is a stand-in build: its native code is for {STAND_IN}, compiled to be inspected, not to be run on a DCU",
    )


def test_every_compile_command_asks_for_gfx936_and_nothing_else(site: Site) -> None:
    ours = [call for call in site.dtk.calls() if "-c" in call and call[-1].endswith("/csrc/dcu/gemv.cu")]
    assert {Path(call[-1]).name for call in site.dtk.compiles()} == {"dcu_llmm1.hip"}
    assert ours
    for call in [*site.dtk.compiles(), *ours]:
        assert [word for word in call if word.startswith("--offload-arch")] == [f"--offload-arch={ASKED}"]
    assert all("-DUSE_ROCM" in call for call in site.dtk.compiles())
    links = [call for call in site.dtk.calls() if "_rocm_C.abi3.so" in call]
    assert [[word for word in call if word.startswith("--offload-arch")] for call in links] == [[f"--offload-arch={ASKED}"]]


def test_in_cmakes_own_list_every_device_unit_is_for_gfx936_and_of_rocm_c_there_is_llmm1_alone(site: Site) -> None:
    (file,) = (site.checkout.root / "build" / "rocm").glob("*/compile_commands.json")
    rocm = set()
    for row_ in json.loads(file.read_text()):
        asked = [word for word in row_["command"].split() if word.startswith("--offload-arch")]
        assert asked == ([f"--offload-arch={ASKED}"] if row_["file"].endswith((".hip", "/csrc/dcu/gemv.cu")) else []), row_["file"]
        if "/csrc/rocm/" in row_["file"]:
            rocm.add(Path(row_["file"]).name)
    assert rocm == {"dcu_llmm1.hip", "dcu_bindings.cpp"}


def test_c36_an_arch_that_cmake_would_drop_is_refused_before_cmake_runs(site: Site) -> None:
    calls = len(site.dtk.calls())
    asked = {"PYTORCH_ROCM_ARCH": "gfx936;gfx928", "STAND_IN": STAND_IN, "ROCM_COMPONENTS": "_rocm_C"}
    said = site.checkout.run("build", "--target", "rocm", env=asked, code=errors.CannotBuild.exit_code)
    assert "PYTORCH_ROCM_ARCH names 'gfx928', which this build does not know" in said
    assert "configuring" not in said
    assert len(site.dtk.calls()) - calls <= 2, "the compiler was asked what it makes, no more"


def test_ext_brings_the_same_library_into_the_tree(site: Site) -> None:
    said = site.checkout.run("ext", env={"STAND_IN": STAND_IN})
    assert f"{STAND_IN} (stand-in for {ASKED})" in said
    assert (site.checkout.tree / "vllm" / "_rocm_C.abi3.so").read_bytes() == member(site.wheel, "vllm/_rocm_C.abi3.so")
    assert len(site.dtk.compiles()) == 2, "nothing was compiled again"


def test_c37_no_command_names_another_prefix(site: Site) -> None:
    log = next((site.checkout.root / "build" / "rocm").glob("*/build.log")).read_text()
    assert f"DCU toolchain: ROCM_PATH={site.dtk.prefix}" in log
    assert "/opt/rocm" not in log + json.dumps(site.dtk.calls())


def test_the_audit_finds_llmm1_alone_for_the_stand_in_and_nothing_for_gfx936(site: Site) -> None:
    assert audit_wheel(site.wheel, STAND_IN).faults == 0
    assert audit_wheel(site.wheel, ASKED).faults == 2, "neither extension holds code for gfx936"
    assert f"ok   objects  {site.wheel.name} holds LLMM1 alone for {STAND_IN}" in site.said


def test_a_killed_compiler_is_told_as_memory_and_the_build_resumes(site: Site) -> None:
    assert "the compiler was killed: out of memory with" in site.killed
    assert "MAX_JOBS=1 make build TARGET=rocm" in site.killed
    assert len(site.dtk.compiles()) == 2, "the killed compile and the good one"


def test_a_second_build_compiles_nothing_and_gives_the_same_bytes(site: Site, tmp_path: Path) -> None:
    asked = {"STAND_IN": STAND_IN, "ROCM_COMPONENTS": "_rocm_C"}
    site.checkout.run("build", "--target", "rocm", "--into", str(tmp_path), env=asked)
    assert (tmp_path / site.wheel.name).read_bytes() == site.wheel.read_bytes()
    assert len(site.dtk.compiles()) == 2


def test_without_being_told_so_a_stand_in_compiler_is_refused(site: Site, tmp_path: Path) -> None:
    said = site.checkout.run("build", "--target", "rocm", "--into", str(tmp_path), code=errors.CannotBuild.exit_code)
    assert "makes gfx906 when asked for gfx936: a stand-in, not a DTK's compiler" in said
    assert list(tmp_path.iterdir()) == []


def test_a_stand_in_that_is_another_than_the_one_named_is_refused(site: Site) -> None:
    said = site.checkout.run("build", "--target", "rocm", env={"STAND_IN": "gfx900"}, code=errors.UserError.exit_code)
    assert "STAND_IN='gfx900', but" in said
    assert "makes gfx906 for gfx936" in said


def test_a_part_of_the_build_is_no_wheel_for_a_device(site: Site) -> None:
    said = site.checkout.run(
        "build", "--target", "rocm", env={"STAND_IN": STAND_IN, "ROCM_COMPONENTS": "_rocm_D"}, code=errors.UserError.exit_code
    )
    assert "ROCM_COMPONENTS names '_rocm_D'" in said


def test_row_stale(site: Site) -> None:
    """Hipified files in the sources are refused."""
    stale = site.checkout.tree / "csrc" / "rocm" / "skinny_gemms.hip"
    stale.write_text("// stale\n")
    try:
        said = site.checkout.run(
            "build", "--target", "rocm", env={"STAND_IN": STAND_IN, "ROCM_COMPONENTS": "_rocm_C"}, code=errors.CannotBuild.exit_code
        )
        assert row("stale").symptom in said
    finally:
        stale.unlink()


def test_doctor_on_the_fake_machine_has_the_compiler_as_its_only_problem(site: Site) -> None:
    out = site.checkout.run("doctor", "--target", "rocm", "--json", code=errors.CannotBuild.exit_code)
    data = json.loads(out[out.index("{") :])
    assert [f["name"] for f in data["findings"] if not f["ok"] and f["blocks"]] == ["compiler"]


def test_row_wave_size(site: Site) -> None:
    """The recorded compile command, with the macro taken away from which upstream concludes 64 lanes."""
    call = site.dtk.compiles()[-1]
    words = [str(site.dtk.prefix / "lib" / "llvm" / "bin" / call[0]), *call[1:], "-U__GFX9__", "--cuda-device-only", "-fsyntax-only"]
    (folder,) = (f for f in (site.checkout.root / "build" / "rocm").iterdir() if f.is_dir())
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert row("wave_size").symptom in done.stderr


def test_row_invalid_kernel_file(site: Site) -> None:
    """The HIP runtime's own words, read from the library itself: no device is here that could say them."""
    runtime = next((site.dtk.prefix / "lib" / "x86_64-linux-gnu").glob("libamdhip64.so.*")).read_bytes()
    for name in ("invalid_kernel_file", "no_code_object"):
        assert row(name).symptom.encode() in runtime
