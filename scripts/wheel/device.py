"""TARGET=rocm: vLLM's own CMake build, for the Python in use, with the DTK of this machine, in build/rocm.

What upstream's setup.py passes to CMake is passed here too; what it does besides (fetch from the network, guess a
version, write into the source tree) is not. Nothing is installed into the Python in use: its torch is compiled against.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.common import errors, programs
from scripts.common.childenv import for_build
from scripts.common.files import HELD, atomic_write, new_folder, say, sha256_of
from scripts.common.overlay import overlay_module
from scripts.common.paths import BUILD, OFFLINE, TREE, shown
from scripts.machine import archs, doctor_device, dtk, facts, memory, versions
from scripts.machine.interpreter import Facts

__all__ = ["COMPONENTS", "OWN_KERNELS", "Built", "Plan", "compile_native", "compiled", "configure", "only_rocm", "plan", "wheel_tag"]

OWN_KERNELS = "_dcu_C"
"""The extension of this project's own kernels: no part of upstream's build, and a wheel is whole without it."""
_DCU_KERNELS = ("", "required", "0")
COMPONENTS = ("_C", "_moe_C", "cumem_allocator", "_rocm_C", "triton_kernels")
# What a compiler that ran out of memory leaves: clang's and gcc's words, and the shell's exit code as ninja shows it.
_KILLED = re.compile(r"\bKilled\b|code=137|out of memory|[Cc]annot allocate memory|std::bad_alloc")
_OUT_OF_MEMORY = "the compiler was killed: out of memory"
_STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)")


@dataclass(frozen=True)
class Plan:
    """Everything that a device build depends on, decided before anything is compiled.

    Attributes:
        toolchain: the DTK and its environment.
        compiler: its clang++; `compiler_version` is that program's first line.
        hip_root: the prefix with CMake's HIP language package.
        python: the Python in use, whose torch is compiled against.
        archs: what is asked of the compiler.
        stand_in: the arch that the compiler makes instead of the DCU, where a person allowed it (STAND_IN); else "".
        jobs: compile jobs at a time.
        cmake, ninja: the programs.
        launcher: `ccache` or `sccache`, or "".
        triton_kernels: folder of the pinned local copy, or None: left out.
        components: what is built, of COMPONENTS.
        dcu_kernels: of _DCU_KERNELS: `_dcu_C` where the compiler takes it, whatever happens, or not at all.
    """

    toolchain: dtk.Dtk
    compiler: Path
    compiler_version: str
    hip_root: Path
    python: Facts
    archs: tuple[str, ...]
    stand_in: str
    jobs: int
    cmake: Path
    ninja: Path
    launcher: str
    triton_kernels: Path | None
    components: tuple[str, ...]
    dcu_kernels: str = ""

    @property
    def folder(self) -> Path:
        """The build folder: one for each combination that may not share objects; the same one again resumes."""
        key = "\0".join([
            self.python.python, ".".join(map(str, self.python.version)), self.python.torch, self.python.torch_file,
            str(self.compiler), self.compiler_version, str(self.toolchain.prefix), self.stand_in, *self.archs,
        ])  # fmt: skip
        return BUILD / "rocm" / f"{'+'.join(self.archs)}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"

    @property
    def log(self) -> Path:
        return self.folder / "build.log"

    @property
    def env(self) -> dict[str, str]:
        """The environment of CMake and the compilers."""
        mine = {
            "ROCM_PATH": str(self.toolchain.prefix),
            archs.VARIABLE: ";".join(self.archs),
            "TRITON_KERNELS_SRC_DIR": str(self.triton_kernels or self.folder / "no-triton-kernels"),
            "VLLM_TARGET_DEVICE": "rocm",
            "DCU_KERNELS": self.dcu_kernels,
        }
        return {**for_build(self.toolchain.env), **mine}

    @property
    def made(self) -> tuple[str, ...]:
        """The archs that the result holds code for."""
        dcus = archs.dcu_archs()
        return tuple(sorted({self.stand_in if self.stand_in and arch in dcus else arch for arch in self.archs}))

    @property
    def made_for_dcus(self) -> tuple[str, ...]:
        """Those of them that are made for a DCU."""
        dcus = sorted(archs.dcu_archs() & set(self.archs))
        return ((self.stand_in,) if dcus else ()) if self.stand_in else tuple(dcus)


@dataclass(frozen=True)
class Built:
    """The result of a compile: wheel path -> file, what the manifest says of the toolchain, and why `_dcu_C` is not there (empty: it is)."""

    files: Mapping[str, Path]
    toolchain: Mapping[str, str]
    left_out: str


def plan(environ: Mapping[str, str] | None = None) -> Plan:
    """Decide, once a process, or refuse with the same words as doctor.

    Raises:
        errors.CannotBuild: doctor has a problem that stops a build.
        errors.UserError: a variable has a value that cannot be meant.
    """
    return _plan(tuple(sorted((os.environ if environ is None else environ).items())))


@functools.lru_cache(maxsize=4)
def _plan(items: tuple[tuple[str, str], ...]) -> Plan:
    environ = dict(items)
    stand_in = environ.get("STAND_IN", "").strip()
    machine = facts.look(environ)
    for check in doctor_device.CHECKS:
        finding = check(machine)
        if finding.ok or not finding.blocks or (stand_in and finding.name == "compiler"):
            continue
        raise errors.CannotBuild(f"TARGET=rocm: {finding.name}: {finding.found}", finding.why, finding.do)
    toolchain = machine.toolchain
    assert toolchain is not None  # doctor has said so
    compiler, root = dtk.hip_compiler(toolchain), dtk.hip_lang_root(toolchain)
    tools = Path(sys.executable).parent
    cmake, ninja = programs.locate("cmake", toolchain.env, tools), programs.locate("ninja", toolchain.env, tools)
    if compiler is None or root is None or cmake is None or ninja is None:
        raise errors.CannotBuild("TARGET=rocm: a program is missing", "see `make doctor TARGET=rocm`", "run it, and do what it says")
    chosen = archs.choose(toolchain.env, archs.supported(TREE), machine.device)
    _check_stand_in(stand_in, compiler, chosen, toolchain.env)
    jobs, _ = versions.jobs(memory.processors(), memory.available_gb(), environ.get("MAX_JOBS"))
    return Plan(
        toolchain, compiler, dtk.version_line(compiler, toolchain.env), root, machine.python, chosen, stand_in, jobs, cmake, ninja,
        _launcher(toolchain.env), _triton_kernels(environ), _components(environ, stand_in), _own_kernels(environ),
    )  # fmt: skip


def _check_stand_in(stand_in: str, compiler: Path, chosen: Sequence[str], env: Mapping[str, str]) -> None:
    if not stand_in:
        return
    for arch in sorted(archs.dcu_archs() & set(chosen)):
        made, why = dtk.made_for(compiler, arch, env)
        if made != stand_in or made == arch:
            raise errors.UserError(
                f"STAND_IN={stand_in!r}, but {compiler} makes {made or 'nothing'} for {arch}{': ' + why if why else ''}",
                "STAND_IN is for a build that is known not to be for the device, and says so in its name",
                "unset STAND_IN" if made == arch else "name the arch that the compiler makes",
            )


def _components(environ: Mapping[str, str], stand_in: str) -> tuple[str, ...]:
    asked = tuple(environ.get("ROCM_COMPONENTS", "").replace(",", " ").split()) or COMPONENTS
    if unknown := sorted(set(asked) - set(COMPONENTS)):
        raise errors.UserError(
            f"ROCM_COMPONENTS names {unknown[0]!r}", "it chooses parts of the build", f"the parts are: {', '.join(COMPONENTS)}"
        )
    if set(asked) != set(COMPONENTS) and not stand_in:
        raise errors.UserError(
            f"ROCM_COMPONENTS={' '.join(asked)} is not the whole build",
            "a wheel without its other extensions imports, and fails when it serves",
            "unset ROCM_COMPONENTS; `make ext` builds _rocm_C alone, for a try in build/vllm",
        )
    return tuple(part for part in COMPONENTS if part in asked)


def _own_kernels(environ: Mapping[str, str]) -> str:
    asked = environ.get("DCU_KERNELS", "").strip()
    if asked not in _DCU_KERNELS:
        raise errors.UserError(
            f"DCU_KERNELS={asked!r} is neither required nor 0",
            "it says what becomes of the build where _dcu_C, this project's own kernels, does not compile",
            "unset it (then the wheel is made without them and says so), or set it to `required` or `0`",
        )
    return asked


def _launcher(env: Mapping[str, str]) -> str:
    # As upstream's setup.py: sccache before ccache, and a switch for the former.
    switch = env.get("VLLM_DISABLE_SCCACHE", "0").strip()
    if switch in ("", "0") and shutil.which("sccache", path=env.get("PATH")):
        return "sccache"
    return "ccache" if shutil.which("ccache", path=env.get("PATH")) else ""


def _triton_kernels(environ: Mapping[str, str]) -> Path | None:
    given = environ.get("TRITON_KERNELS_SRC_DIR")
    folder = Path(given).resolve() if given else OFFLINE / "triton_kernels"
    if not given and not folder.is_dir():
        return None
    if not any(folder.glob("*.py")):
        raise errors.MissingInput(
            f"{shown(folder)} holds no Python file", "it has to be the triton_kernels package itself",
            "point TRITON_KERNELS_SRC_DIR at python/triton_kernels/triton_kernels of a triton checkout, or unset it to leave it out",
        )  # fmt: skip
    wanted, found = environ.get("TRITON_KERNELS_SHA256"), tree_sha256(folder)
    if wanted and wanted != found:
        raise errors.DamagedDownload(
            f"{shown(folder)} has sha256 {found}, not {wanted}",
            "TRITON_KERNELS_SHA256 pins it",
            "take the copy that was pinned, or pin this one",
        )
    return folder


def tree_sha256(folder: Path) -> str:
    """sha256 over the names and contents of a folder's Python files, in order."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder).as_posix()}\0{sha256_of(file)}\n".encode())
    return digest.hexdigest()


def configure_argv(p: Plan, environ: Mapping[str, str]) -> list[str]:
    """CMake's command line: upstream's own definitions, and the compiler said outright instead of guessed."""
    kind = environ.get("CMAKE_BUILD_TYPE") or "Release"
    argv = [
        str(p.cmake), "-G", "Ninja", "-S", str(TREE), "-B", str(p.folder), f"-DCMAKE_MAKE_PROGRAM={p.ninja}",
        f"-DCMAKE_BUILD_TYPE={kind}", "-DVLLM_TARGET_DEVICE=rocm",
        f"-DVLLM_PYTHON_EXECUTABLE={p.python.python}", f"-DVLLM_PYTHON_PATH={':'.join(entry for entry in p.python.path if entry)}",
        f"-DFETCHCONTENT_BASE_DIR={p.folder / 'deps'}", "-DFETCHCONTENT_FULLY_DISCONNECTED=OFF",
        "-DCMAKE_JOB_POOL_COMPILE:STRING=compile", f"-DCMAKE_JOB_POOLS:STRING=compile={p.jobs}",
        f"-DROCM_PATH={p.toolchain.prefix}", f"-DCMAKE_HIP_COMPILER={p.compiler}", f"-DCMAKE_HIP_COMPILER_ROCM_ROOT={p.hip_root}",
        # Without a device here CMake would find no default arch and stop.
        f"-DCMAKE_HIP_ARCHITECTURES={';'.join(p.archs)}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
    ]  # fmt: skip
    if p.launcher:
        argv += [f"-DCMAKE_{language}_COMPILER_LAUNCHER={p.launcher}" for language in ("C", "CXX", "HIP")]
    return [*argv, *shlex.split(environ.get("CMAKE_ARGS", ""))]


def configure(p: Plan) -> None:
    """Run CMake in the plan's folder; its output goes to the log.

    Raises:
        errors.CannotBuild: CMake refused; the message holds its first error.
    """
    (p.folder / "no-triton-kernels").mkdir(parents=True, exist_ok=True)
    atomic_write(p.folder / "no-triton-kernels" / "README", b"triton_kernels was left out of this build\n")
    argv = configure_argv(p, os.environ)
    say(f"configuring for {';'.join(p.archs)}, {p.jobs} job(s), {p.launcher or 'no compiler cache'}; log in {shown(p.log)}")
    result = subprocess.run(argv, env=p.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    p.log.write_text(shlex.join(argv) + "\n" + result.stdout + result.stderr, encoding="utf-8")
    if result.returncode:
        raise errors.CannotBuild(
            f"CMake refused to configure (ended with {result.returncode})",
            programs.cmake_error(result.stderr),
            f"the whole output is in {shown(p.log)}",
        )


def check_commands(p: Plan) -> None:
    """Every device unit must be told the archs that were asked for, and no other.

    Raises:
        errors.CannotBuild: CMake dropped an arch, or added one.
    """
    seen: set[str] = set()
    for row in json.loads((p.folder / "compile_commands.json").read_text(encoding="utf-8", errors="surrogateescape")):
        seen |= set(re.findall(r"--offload-arch=([^\s;]+)", row["command"]))
    if seen != set(p.archs):
        dropped = sorted(set(p.archs) - seen)
        raise errors.CannotBuild(
            f"CMake dropped the arch {', '.join(dropped)}" if dropped else f"CMake compiles for {', '.join(sorted(seen))}",
            f"asked for {';'.join(p.archs)}, the compile commands say {';'.join(sorted(seen)) or 'nothing'}",
            f"read {shown(p.log)}; remove {shown(p.folder)} if another CMake has configured it before",
        )


def run_ninja(p: Plan, targets: Sequence[str]) -> None:
    """Compile. Every line goes to the log; what a person sees is one line a finished step.

    Raises:
        errors.CannotBuild: a step failed; out of memory is told apart.
    """
    argv = [str(p.ninja), "-C", str(p.folder), f"-j{p.jobs}", *targets]
    errors_seen: list[str] = []
    killed = False
    with p.log.open("a", encoding="utf-8") as log:
        log.write(shlex.join(argv) + "\n")
        with subprocess.Popen(
            argv, env=p.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            pass_fds=tuple(HELD),  # a ninja whose parent was killed keeps the lock: two in one folder delete each other's objects
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if step := _STATUS.match(line):
                    say(f"[{step[1]}/{step[2]}] {step[3][:110]}")
                killed = killed or bool(_KILLED.search(line))
                if "error:" in line or line.startswith("FAILED:"):
                    errors_seen.append(line.strip())
    if process.returncode == 0:
        return
    if killed:
        fewer = max(1, p.jobs // 2)
        raise errors.CannotBuild(
            f"{_OUT_OF_MEMORY} with {p.jobs} job(s)",
            f"the kernel ends the largest process when memory runs out; {memory.available_gb():.1f} GB are free now",
            f"MAX_JOBS={fewer} make build TARGET=rocm" + ("" if p.jobs > 1 else ", on a machine or container with more memory")
            + " (what is compiled stays compiled)",
        )  # fmt: skip
    first = next(
        (line for line in errors_seen if "error:" in line), errors_seen[0] if errors_seen else f"ninja ended with {process.returncode}"
    )
    raise errors.CannotBuild("compiling failed", first, f"the whole output is in {shown(p.log)}; after a fix the same command resumes")


def own_kernels(p: Plan) -> str:
    """Compile `_dcu_C`, after the rest. Returns why it is not there; empty where it is.

    Raises:
        errors.CannotBuild: DCU_KERNELS=required and it does not compile; or the compiler was killed, which is no verdict on the code.
    """
    if p.dcu_kernels == "0":
        return "DCU_KERNELS=0"
    if "_rocm_C" not in p.components or not archs.dcu_archs() & set(p.archs):
        return "no DCU among the archs"
    try:
        run_ninja(p, [OWN_KERNELS])
    except errors.CannotBuild as error:
        if p.dcu_kernels == "required" or _OUT_OF_MEMORY in error.what:
            raise
        say(f"{OWN_KERNELS} is left out, this compiler refuses it: {error.why}")
        return f"the compiler refused it: {error.why}"
    return ""


def compiled(p: Plan, own: bool) -> dict[str, Path]:
    """Install the plan's components, and `_dcu_C` where `own`, into a fresh folder; wheel path -> file.

    Raises:
        errors.CannotBuild: a component left nothing.
    """
    stage = p.folder / "stage"
    with new_folder(stage) as work:
        parts = (*p.components, *((OWN_KERNELS,) if own else ()))
        for part in parts:
            if part == "triton_kernels" and p.triton_kernels is None:
                continue
            argv = [str(p.cmake), "--install", str(p.folder), "--prefix", str(work), "--component", part]
            done = subprocess.run(argv, env=p.env, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["no message"]
                raise errors.CannotBuild(f"{part} could not be installed from the build", lines[0], f"read {shown(p.log)}")
    files = {file.relative_to(stage).as_posix(): file for file in sorted(stage.rglob("*")) if file.is_file()}
    for part in parts:
        if part != "triton_kernels" and not any(re.fullmatch(rf"vllm/{part}[^/]*\.so", path) for path in files):
            raise errors.CannotBuild(f"the build left no vllm/{part}*.so", "the wheel would lack it", f"read {shown(p.log)}")
    return files


def check_code_objects(p: Plan, files: Mapping[str, Path]) -> None:
    """The libraries hold device code for exactly the archs that the plan says.

    Raises:
        errors.CannotBuild: one is missing or foreign.
    """
    module = overlay_module("device.codeobjects")
    for path, file in files.items():
        if not path.endswith(".so") or "cumem_allocator" in path:
            continue
        try:
            found = module.code_object_targets(file)
        except module.CodeObjectError as error:
            raise errors.CannotBuild(f"{path} cannot be checked", str(error), "build it as the message says") from error
        wanted = set(p.made_for_dcus if OWN_KERNELS in path else p.made)
        if found != wanted:
            raise errors.CannotBuild(
                f"{path} holds device code for {', '.join(sorted(found)) or 'no arch'}, not for {', '.join(sorted(wanted))}",
                "on a device without code of its own every kernel fails with hipErrorNoBinaryForGpu",
                f"remove {shown(p.folder)} and build again; if it stays, read {shown(p.log)}",
            )


def compile_native(p: Plan) -> Built:
    """From the applied tree to checked libraries. Resumes where a former run stopped."""
    if p.stand_in:
        say(f"stand-in arch {p.stand_in}: this build is for inspection, it is not for {', '.join(sorted(archs.dcu_archs()))}")
    configure(p)
    check_commands(p)
    run_ninja(p, [part for part in p.components if part != "triton_kernels"])
    left_out = own_kernels(p)
    files = compiled(p, own=not left_out)
    check_code_objects(p, files)
    return Built(files, {**toolchain(p), "dcu_kernels": f"left out: {left_out}" if left_out else OWN_KERNELS}, left_out)


def wheel_tag(p: Plan) -> str:
    """The wheel's tag: for the very Python whose torch was compiled against; a stand-in's platform is none that pip knows."""
    python = f"cp{p.python.version[0]}{p.python.version[1]}"
    machine = f"standin_{p.stand_in}" if p.stand_in else f"linux_{platform.machine()}"
    return f"{python}-{python}-{machine}"


def toolchain(p: Plan) -> dict[str, str]:
    """What the manifest says of the compile, by role. No folder of this machine: the same build elsewhere says the same."""
    said = {
        "compiler": p.compiler_version,
        "hip": p.python.hip,
        "torch": p.python.torch,
        "python": ".".join(map(str, p.python.version)),
        "cmake": programs.program_version(p.cmake, p.env),
        "ninja": programs.program_version(p.ninja, p.env),
        "archs_asked": ";".join(p.archs),
        "components": " ".join(part for part in p.components if part != "triton_kernels" or p.triton_kernels),
        "triton_kernels": f"sha256 {tree_sha256(p.triton_kernels)}" if p.triton_kernels else "left out: no local copy was given",
    }
    return {**said, **({"stand_in": p.stand_in} if p.stand_in else {})}


def only_rocm(p: Plan) -> Plan:
    """The same plan for _rocm_C, and _dcu_C with it."""
    return replace(p, components=("_rocm_C",))
