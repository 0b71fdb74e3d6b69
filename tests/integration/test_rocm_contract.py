"""What upstream's setup.py does for a HIP build, read from its own text, is what our device build does too."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts.cli import run
from scripts.common.paths import TREE
from scripts.machine import dtk
from scripts.machine.interpreter import Facts
from scripts.wheel import device

# Of upstream's definitions, those that are for CUDA or only make the build talk.
NOT_OURS = {"CMAKE_CUDA_COMPILER_LAUNCHER", "CMAKE_CUDA_COMPILER", "NVCC_THREADS", "CMAKE_VERBOSE_MAKEFILE"}


@pytest.fixture(scope="module")
def setup_py() -> str:
    assert run(["apply"]) == 0
    return (TREE / "setup.py").read_text(encoding="utf-8")


def plan(folder: Path, launcher: str = "ccache") -> device.Plan:
    toolchain = dtk.Dtk(folder / "dtk", {"PATH": "/bin"}, "")
    python = Facts("/py/bin/python", version=(3, 10, 12), path=("/py/lib", "/py/site"), torch="2.10.0+das", hip="6.3.26093")
    return device.Plan(
        toolchain, folder / "clang++", "clang 17", folder / "dtk", python, ("gfx936",), "", 3,
        Path("cmake"), Path("ninja"), launcher, None, device.COMPONENTS,
    )  # fmt: skip


def definitions(text: str) -> set[str]:
    """Names of CMake definitions in a text, those inside f-strings and formats included."""
    return set(re.findall(r"-D([A-Z][A-Z0-9_]+)(?::STRING)?=", text))


def missing(setup_py: str, argv: list[str]) -> set[str]:
    return definitions(setup_py) - NOT_OURS - definitions(" ".join(argv))


def test_every_definition_of_upstreams_setup_py_is_passed(setup_py: str, tmp_path: Path) -> None:
    assert len(definitions(setup_py)) > 8
    assert missing(setup_py, device.configure_argv(plan(tmp_path), {})) == set()


def test_a_definition_that_upstream_adds_is_found(setup_py: str, tmp_path: Path) -> None:
    assert missing(setup_py + '"-DVLLM_NEW_SWITCH=ON"', device.configure_argv(plan(tmp_path), {})) == {"VLLM_NEW_SWITCH"}


def hip_extensions(setup_py: str) -> set[str]:
    """Extensions that setup.py builds where `_is_hip()` holds: blocks of the module whose condition can be true there."""
    found: set[str] = set()
    for node in ast.parse(setup_py).body:
        if isinstance(node, ast.If) and re.search(r"_is_hip\(\)|_build_custom_ops\(\)", ast.unparse(node.test)):
            found |= {m.removeprefix("vllm.") for m in re.findall(r"CMakeExtension\(name='([\w.]+)'", ast.unparse(node))}
    return found


def test_the_components_are_upstreams_extensions_for_hip(setup_py: str) -> None:
    assert hip_extensions(setup_py) == set(device.COMPONENTS)


def test_an_extension_that_upstream_adds_is_found(setup_py: str) -> None:
    planted = setup_py + '\nif _is_hip():\n    ext_modules.append(CMakeExtension(name="vllm._new_C"))\n'
    assert hip_extensions(planted) == {*device.COMPONENTS, "_new_C"}


def test_c37_one_prefix_is_passed_and_it_is_the_toolchains(tmp_path: Path) -> None:
    argv = device.configure_argv(plan(tmp_path), {})
    assert f"-DROCM_PATH={tmp_path / 'dtk'}" in argv
    assert plan(tmp_path).env["ROCM_PATH"] == str(tmp_path / "dtk")
    assert not [word for word in argv if "/opt/rocm" in word]
