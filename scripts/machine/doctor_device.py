"""The part of doctor that is about a device build: DTK, compiler, device, the Python with the HIP torch, memory. Bare Python."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scripts.common import errors, programs
from scripts.common.child import ask
from scripts.common.childenv import for_python
from scripts.common.overlay import overlay_module
from scripts.common.paths import TREE
from scripts.common.tools import FOLDER
from scripts.machine import archs, dtk, memory, nodes, versions
from scripts.machine.diagnosis import Finding
from scripts.machine.facts import Machine
from scripts.machine.interpreter import vllm_copies

__all__ = ["CHECKS", "torch_finding"]

DCU = "gfx936"


def _dtk(m: Machine) -> Finding:
    if m.trouble is not None:
        return Finding("dtk", False, m.trouble.what, m.trouble.why, m.trouble.do)
    if m.toolchain is None:
        return Finding("dtk", False, "none found", "compiler, HIP headers and libraries come from it",
                       "source /opt/dtk/env.sh, or set DTK_ENV=/path/to/env.sh or ROCM_PATH")  # fmt: skip
    if dtk.hip_lang_root(m.toolchain) is None:
        outer = dtk.outer_prefix(m.toolchain)
        if outer is not None:
            return Finding("dtk", False, f"ROCM_PATH={m.toolchain.prefix} is a folder inside the DTK, without lib/cmake/hip-lang",
                           f"compiler and CMake files are in the DTK's own folder, {outer}", f"export ROCM_PATH={shlex.quote(str(outer))}")  # fmt: skip
        return Finding("dtk", False, f"{m.toolchain.prefix} has no lib/cmake/hip-lang", "CMake finds the HIP language through it",
                       "install the DTK's development files, or use the DTK's development image")  # fmt: skip
    return Finding("dtk", True, f"{m.toolchain.prefix} ({m.toolchain.origin})")


def _compiler(m: Machine) -> Finding:
    if m.toolchain is None:
        return Finding("compiler", False, "no DTK, no HIP compiler", "device code is compiled by the DTK's clang++", "see dtk")
    compiler, by = dtk.chosen_compiler(m.toolchain)
    without = dtk.chosen_compiler(replace(m.toolchain, env={k: v for k, v in m.env.items() if k not in ("HIPCXX", "HIP_CLANG_PATH")}))[0]
    variable = by.partition("=")[0]
    back = f"unset {variable}" + (f" (the DTK's own is {without})" if without else "") if variable else ""
    if compiler is None and by:
        return Finding("compiler", False, f"{by} is not a program", f"{variable} decides alone which compiler is taken",
                       back if without else "set HIPCXX to the DTK's clang++: find /opt -name 'clang++'")  # fmt: skip
    if compiler is not None and compiler.name.startswith("hipcc"):
        return Finding("compiler", False, f"{by} is the hipcc wrapper", "CMake refuses it as the compiler of the HIP language", back)
    if compiler is None:
        outer = dtk.outer_prefix(m.toolchain)
        return Finding("compiler", False, f"no clang++ in {m.toolchain.prefix}/lib/llvm/bin or llvm/bin",
                       "device code is compiled by it, and CMake refuses the hipcc wrapper",
                       f"export ROCM_PATH={shlex.quote(str(outer))}" if outer else "set HIPCXX to the DTK's clang++: find /opt -name 'clang++'")  # fmt: skip
    chosen = f" (chosen by {variable})" if variable else ""
    line = dtk.version_line(compiler, m.env)
    if not line:
        return Finding(
            "compiler", False, f"{compiler} does not run{chosen}", "device code is compiled by it", back or f"{compiler} --version"
        )
    made, why = dtk.made_for(compiler, DCU, m.env)
    probe = f"{compiler} -x hip --offload-arch={DCU} --cuda-device-only -nogpuinc -nogpulib -S -o - /dev/null"
    if not made:
        return Finding("compiler", False, f"{compiler} refuses --offload-arch={DCU}: {why}{chosen}",
                       f"only the DTK's compiler knows {DCU}; upstream's LLVM and ROCm do not",
                       back or f"use the clang++ of a DTK for BW1000-class devices; to see it: {probe}")  # fmt: skip
    if made != DCU:
        return Finding("compiler", False, f"{compiler} makes {made} when asked for {DCU}: a stand-in, not a DTK's compiler",
                       f"code for {made} does not run on {DCU}", back or "take the stand-in out of ROCM_PATH, HIPCXX and PATH")  # fmt: skip
    return Finding("compiler", True, f"{line}, makes {DCU}")


def _device(m: Machine) -> Finding:
    found = overlay_module("device.kfd").gpu_nodes(environ=m.environ)
    if m.device is not None:
        return Finding("device", True, f"{m.device} by KFD, {len(found)} node(s)")
    seen = ", ".join(str(node.gfx_target_version) for node in found)
    return Finding(
        "device", True, f"no {DCU} by KFD ({'gfx_target_version ' + seen if seen else 'no GPU node'}): fine for a build, not for serving"
    )


def _usable(m: Machine) -> Finding:
    """Seen in sysfs is not usable: a container sees the host's topology without having a single device of it."""
    if m.device is None and not nodes.present(m.environ):
        return Finding("usable", True, "not asked: no DCU is to be seen here")
    found = nodes.troubles(m.environ, m.toolchain.prefix if m.toolchain else None)
    if not found:
        return Finding("usable", True, "/dev/kfd, /dev/mkfd, /dev/dri and hyhal are here and open")
    return Finding("usable", False, "; ".join(row.what for row in found),
                   "a DCU is seen, but no process here can use it: serving, verify and bench need them all",
                   f"{'; '.join(dict.fromkeys(row.do for row in found))}. A container has all with: docker run {nodes.CONTAINER}",
                   blocks=False)  # fmt: skip


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
    if not m.python.pip:
        name = version.rpartition(".")[0]
        line = f"{m.python.python} -m ensurepip" if m.python.ensurepip else f"apt-get install python3-pip python{name}-venv"
        return Finding("PYTHON", False, f"{version}, {m.python.python} has no pip", "the wheel is installed with it, and so is what vLLM needs",
                       f"{line}; or use the lines that `make build` prints: where there is no pip they run the uv of the tools", blocks=False)  # fmt: skip
    return Finding("PYTHON", True, f"{version}, {m.python.python}")


def torch_finding(m: Machine) -> Finding:
    """Whether the Python in use has the vendor's torch."""
    p, limits = m.python, versions.matrix()
    replaced = "the device kernels are compiled against the vendor's torch; a pip install that resolved torch anew has replaced it, or this is another Python"
    again = "pip install --no-deps --force-reinstall /path/to/the/vendor's/torch.whl, and from then on -c dist/constraints-gfx936.txt"
    if p.torch_error or not p.torch:
        what = f"import torch fails in {p.name}: {p.torch_error}" if p.torch_error else f"no torch in {p.name}"
        return Finding("torch", False, what, "TARGET=rocm compiles against the device's PyTorch", _torch_line(m))
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


def _torch_line(m: Machine) -> str:
    other = "make doctor TARGET=rocm PYTHON=/path/to/the/python/with/the/vendor's/torch"
    library = re.search(r"\S*\.so[.\d]*", m.python.torch_error)
    if library is None:
        return other
    if "sourced" in (m.toolchain.origin if m.toolchain else ""):
        hyhal = nodes.troubles(m.environ, m.toolchain.prefix if m.toolchain else None)
        mount = "start the container with -v /opt/hyhal:/opt/hyhal:ro, or " if any("hyhal" in row.what for row in hyhal) else ""
        return f"{mount}install what has {library[0]} (find / -name '{library[0]}'): the DTK's env.sh was sourced, and it is on none of its paths"
    return "make doctor DTK_ENV=/opt/dtk/env.sh (the library is on the paths that the DTK's env.sh sets; say where yours is)"


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
    if edited := [phrase for copy in copies for phrase in overlay_module("device.marks").rewritten(copy)]:
        return Finding("vllm", False, f"a platform plugin has rewritten {len(edited)} installed file(s), first {edited[0]}",
                       "uninstalling the plugin does not undo it, and every capability is shut on files that are not the build's",
                       f"{m.python.python} -m pip install --force-reinstall --no-deps dist/vllm-....whl", blocks=False)  # fmt: skip
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
        done = ask([m.python.python, "-c", code], env=for_python(m.env), cwd=folder, seconds=300)
    lines = done.out.splitlines()
    return lines[-1] if done.code == 0 and lines else f"not to be told ({done.last})"


CHECKS: tuple[Callable[[Machine], Finding], ...] = (
    _dtk, _compiler, _device, _archs, _python, torch_finding, _program("cmake"), _program("ninja"), _memory,
    _usable, _visible, _copies, _plugins,
)  # fmt: skip
