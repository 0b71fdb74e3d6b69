"""Configuring and compiling vLLM's own HIP build for the audit, with the private toolchain.

The real CMakeLists.txt is configured, so that what is asserted is what a DTK machine would be told to run; nothing of it
is imitated but torch's CMake package (audit_torch/). A build folder's name is the hash of all that goes into it, so
that an unchanged input is compiled once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.audit.launcher import launched
from scripts.audit.toolchain import Toolchain
from scripts.common import errors
from scripts.common.files import atomic_write, hold, remove_tree, say
from scripts.common.paths import BUILD, ROOT, cache_dir, shown
from scripts.common.programs import cmake_error

__all__ = [
    "AUDIT",
    "OBJECTS",
    "Bench",
    "Command",
    "Configured",
    "commands",
    "compile_targets",
    "configure",
    "configure_argv",
    "environment",
    "run_unit",
]

AUDIT = BUILD / "audit"
OBJECTS = cache_dir() / "objects"  # of every checkout: kept by what they are made of
_TORCH = ROOT / "scripts" / "audit" / "torch"


@dataclass(frozen=True)
class Bench:
    """What every configuration of one audit shares: toolchain, the Python that has torch, and torch's headers."""

    toolchain: Toolchain
    python: Path
    torch_version: str
    torch_include: Path


@dataclass(frozen=True)
class Configured:
    """One configured build: its folder, the source tree and the arch list it is for."""

    folder: Path
    tree: Path
    archs: str
    bench: Bench


@dataclass(frozen=True)
class Command:
    """One compile command, as ninja would run it.

    Attributes:
        unit: source path below the tree or build folder (`csrc/rocm/attention.hip`).
        target: CMake target it belongs to.
        offload: archs of its --offload-arch options.
        words: the command line.
    """

    unit: str
    target: str
    offload: frozenset[str]
    words: tuple[str, ...]


def environment(toolchain: Toolchain, archs: str | None) -> dict[str, str]:
    """The environment CMake and ninja run in: the private toolchain, and `archs` as PYTORCH_ROCM_ARCH (None: unset)."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTORCH_ROCM_ARCH", "HIPCXX", "HIPFLAGS", "CXXFLAGS")}
    stub = AUDIT / "no-triton-kernels"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "README").write_text("Stands for triton_kernels, which the audit does not build.\n", encoding="utf-8")
    env |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")]),
        "ROCM_PATH": str(toolchain.rocm),
        "LIBRARY_PATH": str(toolchain.libraries),
        "TRITON_KERNELS_SRC_DIR": str(stub),
    }
    return env if archs is None else {**env, "PYTORCH_ROCM_ARCH": archs}


def configure_argv(bench: Bench, tree: Path, folder: Path, stand_in: str, comparable: bool = False) -> list[str]:
    """CMake's command line. `comparable`: objects of two build folders are to be the same bytes where their inputs are."""
    toolchain = bench.toolchain
    # Paths that assert() and TORCH_LIBRARY write into the objects must not tell two build folders apart.
    same = f"-ffile-prefix-map={folder}=/build -ffile-prefix-map={tree}=/source -ffile-prefix-map={bench.torch_include}=/torch"
    cxx = same
    if comparable:
        same += " -fuse-cuid=none"  # clang names a symbol after a hash of the paths
    hip = f"--rocm-path={toolchain.rocm} --rocm-device-lib-path={toolchain.device_libs} -Wl,--allow-shlib-undefined {same}"
    argv = [
        "cmake", "-G", "Ninja", "-S", str(tree), "-B", str(folder), "-DVLLM_TARGET_DEVICE=rocm", "-DHIP_FOUND=ON",
        f"-DVLLM_PYTHON_EXECUTABLE={bench.python}", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        f"-DCMAKE_HIP_COMPILER={toolchain.tool('clang++')}", f"-DCMAKE_HIP_COMPILER_ROCM_ROOT={toolchain.rocm}",
        f"-DCMAKE_HIP_FLAGS={hip}", f"-DCMAKE_CXX_FLAGS={cxx}", f"-DFETCHCONTENT_BASE_DIR={folder / 'deps'}",
        f"-DTorch_DIR={_TORCH}", f"-DAUDIT_TORCH_VERSION={bench.torch_version}",
        f"-DAUDIT_TORCH_INCLUDE={bench.torch_include}", f"-DAUDIT_HIP_INCLUDE={toolchain.rocm / 'include'}",
    ]  # fmt: skip
    argv += [f"-DCMAKE_{language}_COMPILER_LAUNCHER={';'.join(launched(OBJECTS))}" for language in ("CXX", "HIP")]
    return argv + ([f"-DVLLM_DCU_STAND_IN={stand_in}"] if stand_in else [])


def _comparable(archs: str, stand_in: str) -> bool:
    """A list without a DCU: its objects are held against upstream's."""
    return not stand_in and "gfx936" not in archs


def _inputs(bench: Bench, tree: Path) -> str:
    digest = hashlib.sha256(f"{bench.toolchain.root.name} {bench.torch_version} {bench.torch_include} {tree}".encode())
    files = [tree / "CMakeLists.txt", *sorted((tree / "cmake").rglob("*")), *sorted((tree / "csrc").rglob("*")), *sorted(_TORCH.rglob("*"))]
    for file in files:
        if file.is_file():
            digest.update(str(file).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def configure(bench: Bench, tree: Path, archs: str, stand_in: str = "") -> Configured:
    """Configure `tree` for the arch list `archs` (semicolons), with the arch `stand_in` treated as the DCU.

    Raises:
        errors.CheckFailed: CMake refused; the message holds its first error.
    """
    argv = configure_argv(bench, tree, Path("BUILD"), stand_in, _comparable(archs, stand_in))
    key = hashlib.sha256(f"{_inputs(bench, tree)} {archs} {shlex.join(argv)}".encode()).hexdigest()[:12]
    label = archs.replace(";", "+") + (f"-as-{stand_in}" if stand_in else "")
    folder = AUDIT / f"{label}.{key}"
    done = Configured(folder, tree, archs, bench)
    with hold(AUDIT / f".{folder.name}.lock", f"configuring {label}"):
        if (folder / "configured").is_file():
            return done
        say(f"audit: configuring {shown(tree)} for {archs}" + (f" ({stand_in} stands in for the DCU)" if stand_in else ""))
        remove_tree(folder)
        folder.mkdir(parents=True)
        result = _cmake(bench, tree, folder, archs, stand_in)
        if result.returncode:
            raise errors.CheckFailed(
                f"CMake refused PYTORCH_ROCM_ARCH={archs}", cmake_error(result.stderr), f"the full output is in {shown(folder)}/cmake.log"
            )
        atomic_write(folder / "configured", key.encode())
    return done


def _cmake(
    bench: Bench, tree: Path, folder: Path, archs: str | None, stand_in: str, extra: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    env = environment(bench.toolchain, archs)
    argv = [*configure_argv(bench, tree, folder, stand_in, _comparable(archs or "", stand_in)), *extra]
    result = subprocess.run(argv, env=env, capture_output=True, text=True, errors="replace", check=False)
    (folder / "cmake.log").write_text(shlex.join(argv) + "\n" + result.stdout + result.stderr, encoding="utf-8")
    return result


def commands(configured: Configured) -> tuple[Command, ...]:
    """Every compile command of the configured build, from CMake's own list."""
    rows = json.loads((configured.folder / "compile_commands.json").read_text(encoding="utf-8"))
    found = []
    for row in rows:
        words = tuple(shlex.split(row["command"]))
        unit = row["file"]
        for root in (configured.folder, configured.tree):
            unit = unit.removeprefix(str(root) + "/")
        target = re.sub(r"^.*?CMakeFiles/([^/]+)\.dir/.*$", r"\1", words[words.index("-o") + 1])
        offload = frozenset(word.partition("=")[2] for word in words if word.startswith("--offload-arch="))
        found.append(Command(unit, target, offload, words))
    return tuple(found)


def compile_targets(configured: Configured, targets: Sequence[str]) -> list[Path]:
    """Bring files of the build folder (objects, a module) up to date; their paths. Compiled once for the same inputs.

    Raises:
        errors.CheckFailed: a compile failed.
    """
    folder = configured.folder
    files = [folder / target for target in targets]
    stamp = folder / ("made-" + hashlib.sha256(" ".join(targets).encode()).hexdigest()[:12])
    with hold(folder / ".build.lock", f"compiling for {configured.archs}", wait_seconds=1800):
        if stamp.is_file() and all(file.is_file() for file in files):
            return files
        say(f"audit: compiling {', '.join(file.name for file in files)} for {configured.archs}")
        began = time.monotonic()
        argv = ["ninja", "-C", str(folder), "-j2", *targets]
        env = environment(configured.bench.toolchain, configured.archs)
        result = subprocess.run(argv, env=env, capture_output=True, text=True, errors="replace", check=False)
        (folder / "ninja.log").write_text(result.stdout + result.stderr, encoding="utf-8")
        if result.returncode:
            lines = [line for line in (result.stdout + result.stderr).splitlines() if "error:" in line] or [result.stdout[-300:]]
            raise errors.CheckFailed(
                f"compiling for {configured.archs} failed", lines[0].strip(), f"the full output is in {shown(folder)}/ninja.log"
            )
        say(f"audit: compiled in {time.monotonic() - began:.0f} s")
        atomic_write(stamp, b"made\n")
    return files


def run_unit(
    command: Command, configured: Configured, extra: Sequence[str], output: Path, kept: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one unit's compile command with `extra` options and another output: for builds that must fail, and for costs (not `kept`)."""
    words = [*(launched(OBJECTS) if kept else []), *command.words]
    words[words.index("-o") + 1] = str(output)
    for option in ("-MF", "-MT"):  # dependency files belong to ninja
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    words = [word for word in words if word != "-MD"]
    env = environment(configured.bench.toolchain, configured.archs)
    return subprocess.run([*words, *extra], cwd=configured.folder, env=env, capture_output=True, text=True, errors="replace", check=False)
