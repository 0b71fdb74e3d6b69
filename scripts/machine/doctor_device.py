"""The part of doctor that is about a device build: DTK, compiler, device, the Python with the HIP torch, memory. Bare Python."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors, programs
from scripts.common.overlay import overlay_module
from scripts.common.paths import TREE
from scripts.common.tools import FOLDER
from scripts.machine import archs, dtk, memory, versions
from scripts.machine.diagnosis import Finding
from scripts.machine.interpreter import Facts, facts, python_in_use, vllm_copies

__all__ = ["CHECKS", "Machine", "look"]

DCU = "gfx936"


@dataclass(frozen=True)
class Machine:
    """What every check looks at.

    Attributes:
        environ: the environment of the person.
        toolchain: the DTK, or None.
        trouble: why the DTK could not be taken, if so.
        python: the Python in use, asked in the DTK's environment.
        device: the DCU arch by KFD, or None.
    """

    environ: Mapping[str, str]
    toolchain: dtk.Dtk | None
    trouble: errors.Fatal | None
    python: Facts
    device: str | None

    @property
    def env(self) -> Mapping[str, str]:
        return self.toolchain.env if self.toolchain else self.environ


def look(environ: Mapping[str, str] | None = None) -> Machine:
    """Ask this machine, once."""
    environ = os.environ if environ is None else environ
    toolchain, trouble = None, None
    try:
        toolchain = dtk.find(environ)
    except errors.Fatal as error:
        trouble = error
    env = toolchain.env if toolchain else environ
    return Machine(environ, toolchain, trouble, facts(python_in_use(), env), overlay_module("device.kfd").dcu_arch(environ=environ))


def _dtk(m: Machine) -> Finding:
    if m.trouble is not None:
        return Finding("dtk", False, m.trouble.what, m.trouble.why, m.trouble.do)
    if m.toolchain is None:
        return Finding("dtk", False, "none found", "compiler, HIP headers and libraries come from it",
                       "source /opt/dtk/env.sh, or set DTK_ENV=/path/to/env.sh or ROCM_PATH")  # fmt: skip
    if dtk.hip_lang_root(m.toolchain) is None:
        return Finding("dtk", False, f"{m.toolchain.prefix} has no lib/cmake/hip-lang", "CMake finds the HIP language through it",
                       "install the DTK's development files, or use the DTK's development image")  # fmt: skip
    return Finding("dtk", True, f"{m.toolchain.prefix} ({m.toolchain.origin})")


def _compiler(m: Machine) -> Finding:
    if m.toolchain is None:
        return Finding("compiler", False, "no DTK, no HIP compiler", "device code is compiled by the DTK's clang++", "see dtk")
    compiler = dtk.hip_compiler(m.toolchain)
    if compiler is None:
        return Finding("compiler", False, f"no clang++ in {m.toolchain.prefix}/lib/llvm/bin or llvm/bin",
                       "device code is compiled by it, and CMake refuses the hipcc wrapper",
                       "set HIPCXX to the DTK's clang++: find /opt -name 'clang++'")  # fmt: skip
    line = dtk.version_line(compiler, m.env)
    if not line:
        return Finding("compiler", False, f"{compiler} does not run", "device code is compiled by it", f"{compiler} --version")
    made, why = dtk.made_for(compiler, DCU, m.env)
    probe = f"{compiler} -x hip --offload-arch={DCU} --cuda-device-only -nogpuinc -nogpulib -S -o - /dev/null"
    if not made:
        return Finding("compiler", False, f"{compiler} refuses --offload-arch={DCU}: {why}",
                       f"only the DTK's compiler knows {DCU}; upstream's LLVM and ROCm do not",
                       f"use the clang++ of a DTK for BW1000-class devices; to see it: {probe}")  # fmt: skip
    if made != DCU:
        return Finding("compiler", False, f"{compiler} makes {made} when asked for {DCU}: a stand-in, not a DTK's compiler",
                       f"code for {made} does not run on {DCU}", "take the stand-in out of ROCM_PATH, HIPCXX and PATH")  # fmt: skip
    return Finding("compiler", True, f"{line}, makes {DCU}")


def _device(m: Machine) -> Finding:
    nodes = overlay_module("device.kfd").gpu_nodes(environ=m.environ)
    if m.device is not None:
        return Finding("device", True, f"{m.device} by KFD, {len(nodes)} node(s)")
    seen = ", ".join(str(node.gfx_target_version) for node in nodes)
    return Finding(
        "device", True, f"no {DCU} by KFD ({'gfx_target_version ' + seen if seen else 'no GPU node'}): fine for a build, not for serving"
    )


def _archs(m: Machine) -> Finding:
    try:
        chosen = archs.choose(m.env, archs.supported(TREE), m.device)
    except errors.Fatal as error:
        return Finding("archs", False, error.what, error.why, error.do)
    return Finding("archs", True, ";".join(chosen))


def _python(m: Machine) -> Finding:
    limit = versions.matrix()["python"]
    version = ".".join(map(str, m.python.version))
    if m.python.error:
        return Finding("PYTHON", False, f"{m.python.python} {m.python.error}", "the wheel is built for it", limit.do)
    if not limit.holds(version):
        return Finding("PYTHON", False, f"{version} (wanted: {limit.words})", limit.why, limit.do)
    if not (Path(m.python.include) / "Python.h").is_file():
        return Finding("PYTHON", False, f"{version} without headers", "the extensions include Python.h",
                       f"install the headers of Python {version}: apt-get install python{version.rpartition('.')[0]}-dev")  # fmt: skip
    return Finding("PYTHON", True, f"{version}, {m.python.python}")


def _torch(m: Machine) -> Finding:
    p, limits = m.python, versions.matrix()
    replaced = "the device kernels are compiled against the vendor's torch; a pip install that resolved torch anew has replaced it, or this is another Python"
    again = "pip install --no-deps --force-reinstall /path/to/the/vendor's/torch.whl, and from then on -c dist/constraints-gfx936.txt"
    if p.torch_error or not p.torch:
        what = f"import torch fails in {p.name}: {p.torch_error}" if p.torch_error else f"no torch in {p.name}"
        return Finding("torch", False, what, "TARGET=rocm compiles against the device's PyTorch",
                       "make doctor TARGET=rocm PYTHON=/path/to/the/python/with/the/vendor's/torch")  # fmt: skip
    if not p.hip:
        kind = f"CUDA {p.cuda}" if p.cuda else "the CPU"
        return Finding("torch", False, f"torch {p.torch} in {p.name} is built for {kind}, not for HIP", replaced, again)
    if not limits["torch"].holds(p.torch):
        return Finding("torch", False, f"torch {p.torch} (wanted: {limits['torch'].words})", limits["torch"].why, limits["torch"].do)
    if not limits["hip"].holds(p.hip):
        return Finding(
            "torch", False, f"torch {p.torch} is built for HIP {p.hip} (wanted: {limits['hip'].words})", limits["hip"].why, limits["hip"].do
        )
    if "+rocm" in p.torch or (p.archs and DCU not in p.archs):
        has = f"has code for {', '.join(p.archs)}" if p.archs else "is upstream's ROCm build"
        return Finding(
            "torch",
            False,
            f"torch {p.torch} {has}, not for {DCU}",
            "upstream's torch has no kernels for a DCU: the vendor's is needed",
            again,
        )
    return Finding("torch", True, f"{p.torch}, HIP {p.hip}")


def _program(name: str) -> Callable[[Machine], Finding]:
    def check(m: Machine) -> Finding:
        limit = versions.matrix()[name]
        given = m.environ.get("TOOLS_PYTHON")
        program = programs.locate(name, m.env, Path(given).parent if given else None)
        if not given and (program is None or program.parent != FOLDER / "bin"):
            return Finding(name, True, "comes with the tools environment")
        if program is None:
            return Finding(name, False, f"no {name} beside TOOLS_PYTHON or on PATH", "the build runs it",
                           f"{given} -m pip install {name}, or put it on PATH")  # fmt: skip
        version = programs.program_version(program, m.env)
        if not limit.holds(version):
            return Finding(name, False, f"{program} is {version or 'of no known version'} (wanted: {limit.words})", limit.why, limit.do)
        return Finding(name, True, f"{version}, {program}")

    return check


def _memory(m: Machine) -> Finding:
    gb, cpus = memory.available_gb(), memory.processors()
    try:
        jobs, per_job = versions.jobs(cpus, gb, m.environ.get("MAX_JOBS"))
    except errors.Fatal as error:
        return Finding("memory", False, error.what, error.why, error.do)
    row = versions.memory()
    if gb < jobs * per_job:
        return Finding("memory", False, f"{gb:.1f} GB for {jobs} job(s), {gb / jobs:.1f} GB each (wanted: {per_job:.0f})", row.why, row.do)
    return Finding("memory", True, f"{gb:.0f} GB, {cpus} processors: {jobs} job(s) at a time")


def _visible(m: Machine) -> Finding:
    hip, cuda = m.env.get("HIP_VISIBLE_DEVICES") or None, m.env.get("CUDA_VISIBLE_DEVICES") or None
    if hip and cuda and hip != cuda:
        return Finding("visible", False, f"HIP_VISIBLE_DEVICES={hip!r}, CUDA_VISIBLE_DEVICES={cuda!r}",
                       "vLLM refuses to start where they differ (Inconsistent GPU visibility env vars)",
                       "unset CUDA_VISIBLE_DEVICES", blocks=False)  # fmt: skip
    return Finding("visible", True, f"devices {hip or cuda or 'all'}")


def _copies(m: Machine) -> Finding:
    copies = vllm_copies(m.python)
    if len(copies) > 1:
        return Finding("vllm", False, f"{len(copies)} copies; the one that runs is {copies[0]}, hidden: {', '.join(map(str, copies[1:]))}",
                       "code of one copy under the metadata of another picks the wrong platform",
                       f"{m.python.python} -m pip uninstall vllm, until none is left; then install one", blocks=False)  # fmt: skip
    if not copies:
        return Finding("vllm", True, "none installed yet")
    version = m.python.distributions.get("vllm", "of unknown version")
    try:
        whose = "ours, " + overlay_module("manifest").read(copies[0]).version
    except overlay_module("manifest").ManifestError:
        whose = "not ours: it has no build manifest; installing our wheel replaces it"
    return Finding("vllm", True, f"{version} in {copies[0]} ({whose})")


def _plugins(m: Machine) -> Finding:
    if not m.python.plugins:
        return Finding("plugins", True, "no platform plugin")
    listed = ", ".join(f"{name} = {value} of {owner}" for name, value, owner in m.python.plugins)
    chosen = m.env.get("VLLM_PLUGINS")
    if chosen is not None and not {name for name, _, _ in m.python.plugins} & {part.strip() for part in chosen.split(",")}:
        return Finding("plugins", True, f"{listed}: left out by VLLM_PLUGINS={chosen!r}")
    active = _active_class(m) if vllm_copies(m.python) else ""
    now = f"; the active platform is {active}" if active else ""
    return Finding("plugins", False, f"{listed}{now}",
                   "a plugin takes the platform over: what runs on it is not this project's build of the platform, and is not called ours",
                   "pip uninstall the plugin, or serve with VLLM_PLUGINS= (empty)", blocks=False)  # fmt: skip


def _active_class(m: Machine) -> str:
    code = (
        "import sys; from vllm.platforms import current_platform as p; sys.stdout.write(f'\\n{type(p).__module__}.{type(p).__qualname__}')"
    )
    with tempfile.TemporaryDirectory(prefix="gfx936-doctor-") as folder:  # no vllm of the current folder
        try:
            done = subprocess.run(
                [m.python.python, "-c", code], env=dict(m.env), cwd=folder, capture_output=True, text=True, check=False, timeout=300
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"not to be told ({type(error).__name__})"
    lines = done.stdout.splitlines()
    return lines[-1] if done.returncode == 0 and lines else f"not to be told ({(done.stderr.strip().splitlines() or ['no output'])[-1]})"


CHECKS: tuple[Callable[[Machine], Finding], ...] = (
    _dtk, _compiler, _device, _archs, _python, _torch, _program("cmake"), _program("ninja"), _memory, _visible, _copies, _plugins,
)  # fmt: skip
