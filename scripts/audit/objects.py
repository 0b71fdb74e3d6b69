"""What a compiled library holds for a device, and whether that is LLMM1, or this project's own kernels, and nothing else.

Facts come from the code objects themselves: the kernel metadata the loader reads, and the disassembly. The rules take
facts, so that each can be shown to fail on a planted fault.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from vllm.dcu.device.codeobjects import CodeObjectError, code_objects
from vllm.dcu.device.kernelnotes import KernelNote, NoteError, kernel_notes, wave_faults
from vllm.dcu.records.gemv import MOST_N

from scripts.audit.toolchain import Toolchain
from scripts.common import errors

__all__ = [
    "DCU_NAMESPACE",
    "FORBIDDEN",
    "GEMV_KERNELS",
    "LLMM1_KERNELS",
    "DeviceCode",
    "LlvmTools",
    "device_code",
    "dtk_tools",
    "gemv_faults",
    "holds",
    "library_of",
    "llmm1_faults",
    "private_tools",
    "split_faults",
]

DCU_NAMESPACE = "vllm_dcu::selected::"
_ROWS = (2, 4, 8, 16)
# Exactly the kernels that LLMM1's host function can launch, in the namespace that cmake/dcu.cmake selects them into.
LLMM1_KERNELS = {f"{DCU_NAMESPACE}LLGemm1_kernel<c10::{dtype}, {rows}>": rows for dtype in ("BFloat16", "Half") for rows in _ROWS}
# Exactly the kernels of csrc/dcu/gemv_variants.h -> bytes of LDS: one float for each wave of a block, activation and row of a wave.
_BLOCK_WAVES = 8
_GEMV = "vllm_dcu::gemv::"
GEMV_KERNELS = {
    f"{_GEMV}dcu_gemv<{_GEMV}{dtype}, {n}, {rows}, {loads}>": n * rows * _BLOCK_WAVES * 4
    for (rows, loads), most_n in MOST_N.items()
    for n in range(1, most_n + 1)
    for dtype in ("BFloat16", "Half")
}
FORBIDDEN = re.compile(r"v_dot\w*|v_s?mfma\w*|v_\w*mmac\w*|s_trap")
# What plain arithmetic, loads, shuffles through LDS and one atomic of a counter compile to; anything else in our own kernels is looked at.
EXPECTED = re.compile(
    r"s_(?!trap|sendmsg|setprio|sleep|dcache|icache)\w+"
    r"|v_(mov|add|addc|sub|subb|subrev|mul|mad|fma|fmac|mac|cvt|and|or|xor|not|lshl|lshr|ashr|lshlrev|lshrrev|ashrrev|bfe|bfi|perm|cndmask"
    r"|cmp|cmpx|readfirstlane|readlane|mbcnt|alignbit|alignbyte|pack|min|max|med3|rcp|add3|swap|nop)(_\w+)?"
    r"|ds_(read|write|bpermute|swizzle)\w*|(global|flat)_(load|store)\w*|(global|flat)_atomic_add(_x2|_u64)?"
)


@dataclass(frozen=True)
class LlvmTools:
    """The two tools that read a code object, wherever they come from."""

    objdump: Path
    cxxfilt: Path
    origin: str


@dataclass(frozen=True)
class DeviceCode:
    """One code object: its bundle in the file, bare arch, kernels (names demangled, without return type and arguments), and how often each instruction occurs."""

    bundle: int
    arch: str
    kernels: tuple[KernelNote, ...]
    instructions: Counter[str]

    @property
    def forbidden(self) -> dict[str, int]:
        """Instructions that a DCU lacks or that abort, with counts."""
        return {name: n for name, n in sorted(self.instructions.items()) if FORBIDDEN.fullmatch(name)}


def private_tools(toolchain: Toolchain) -> LlvmTools:
    """The tools of the private toolchain."""
    tool = toolchain.tool
    return LlvmTools(tool("llvm-objdump"), tool("llvm-cxxfilt"), toolchain.compiler)


def dtk_tools() -> LlvmTools | None:
    """The DTK's (or a ROCm's) own tools, which alone can disassemble gfx936; None where there is no such toolchain."""
    prefix = Path(os.environ.get("ROCM_PATH") or "/opt/dtk")
    for folder in (prefix / "lib" / "llvm" / "bin", prefix / "llvm" / "bin", prefix / "bin"):
        paths = [folder / name for name in ("llvm-objdump", "llvm-cxxfilt")]
        if paths[0].is_file():
            demangle = paths[1] if paths[1].is_file() else Path(shutil.which("c++filt") or paths[1])
            return LlvmTools(paths[0], demangle, str(folder))
    return None


def device_code(library: Path, tools: LlvmTools) -> tuple[DeviceCode, ...]:
    """Every code object of every bundle in `library`.

    Raises:
        errors.CheckFailed: the bundles cannot be listed, or a tool cannot read a code object.
    """
    try:
        entries = code_objects(library)
    except CodeObjectError as error:
        raise errors.CheckFailed(str(error), "code that cannot be listed cannot be audited", "build it as the message says") from error
    found = []
    with tempfile.TemporaryDirectory(prefix="gfx936-audit-") as folder, library.open("rb") as stream:
        for entry in entries:
            if not entry.target or not entry.size:
                continue
            stream.seek(entry.offset)
            code = stream.read(entry.size)
            file = Path(folder) / f"{entry.bundle}.{entry.arch}.co"
            file.write_bytes(code)
            found.append(DeviceCode(entry.bundle, entry.arch, _kernels(code, tools), _instructions(file, tools)))
            file.unlink()
    return tuple(found)


def _kernels(code: bytes, tools: LlvmTools) -> tuple[KernelNote, ...]:
    try:
        notes = kernel_notes(code)
    except NoteError as error:
        raise errors.CheckFailed(str(error), "the loader could not load it either", "is it a HIP code object?") from error
    names = _run([str(tools.cxxfilt)], "".join(f"{note.name}\n" for note in notes)).splitlines()
    return tuple(msgspec.structs.replace(note, name=_bare(name)) for name, note in zip(names, notes, strict=True))


def _bare(demangled: str) -> str:
    """`void a::k<c10::Half, 4>(c10::Half const*, ...)` -> `a::k<c10::Half, 4>`."""
    name = demangled.removeprefix("void ")
    depth = 0
    for index, char in enumerate(name):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "(" and depth == 0 and index:
            return name[:index]
    return name


def _instructions(file: Path, tools: LlvmTools) -> Counter[str]:
    text = _run([str(tools.objdump), "-d", "--no-show-raw-insn", str(file)])
    return Counter(re.findall(r"(?m)^\s+([a-z][a-z0-9_]+)\b", text))


def _run(argv: Sequence[str], stdin: str | None = None) -> str:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise errors.CheckFailed(
            f"{Path(argv[0]).name} cannot read the code object (ended with {done.returncode})",
            (done.stderr.strip().splitlines() or ["no message"])[0],
            "use the tools of the toolchain that built it: `source /opt/dtk/env.sh` first",
        )
    return done.stdout


def llmm1_faults(code: DeviceCode) -> list[str]:
    """Why a DCU's code object is not LLMM1 and nothing else, one sentence a fault; [] when it is."""
    where = f"bundle {code.bundle}, {code.arch}"
    faults = []
    names = Counter(kernel.name for kernel in code.kernels)
    for name, times in sorted(names.items()):
        if name not in LLMM1_KERNELS:
            faults.append(f"{where}: kernel {name} is not LLMM1's; only LLMM1 may be compiled for a DCU")
        elif times != 1:
            faults.append(f"{where}: kernel {name} is there {times} times")
    for missing in sorted(LLMM1_KERNELS.keys() - names.keys()):
        faults.append(f"{where}: kernel {missing} of LLMM1 is missing")
    for kernel in code.kernels:
        rows = LLMM1_KERNELS.get(kernel.name)
        faults += [f"{where}: {fault}" for fault in wave_faults(kernel, rows)]
        spills = kernel.vgpr_spills + kernel.sgpr_spills
        if rows == 4 and (kernel.scratch or spills):
            faults.append(f"{where}: {kernel.name} uses {kernel.scratch} bytes of scratch, {spills} spills; expected none")
    for name, count in code.forbidden.items():
        faults.append(f"{where}: instruction {name} occurs {count} times; a DCU lacks it or it aborts")
    return faults


def gemv_faults(codes: Sequence[DeviceCode], dcu: str) -> list[str]:
    """Why `_dcu_C` is not this project's kernels for `dcu` and nothing else, one sentence a fault."""
    if [code.arch for code in codes] != [dcu]:
        return [f"_dcu_C holds code objects for {', '.join(code.arch for code in codes) or 'no arch'}; exactly one, for {dcu}, is expected"]
    (code,) = codes
    where = f"_dcu_C, {code.arch}"
    faults = []
    names = Counter(kernel.name for kernel in code.kernels)
    faults += [f"{where}: kernel {name} is none of csrc/dcu/gemv_variants.h" for name in sorted(names.keys() - GEMV_KERNELS.keys())]
    faults += [f"{where}: kernel {name} is missing" for name in sorted(GEMV_KERNELS.keys() - names.keys())]
    faults += [f"{where}: kernel {name} is there {times} times" for name, times in sorted(names.items()) if times != 1]
    for kernel in code.kernels:
        faults += [f"{where}: {fault}" for fault in wave_faults(kernel, None)]
        if kernel.lds != GEMV_KERNELS.get(kernel.name, kernel.lds):
            faults.append(f"{where}: {kernel.name} has {kernel.lds} bytes of LDS, not {GEMV_KERNELS[kernel.name]}")
        if kernel.scratch or kernel.vgpr_spills or kernel.sgpr_spills:
            spills = kernel.vgpr_spills + kernel.sgpr_spills
            faults.append(f"{where}: {kernel.name} uses {kernel.scratch} bytes of scratch, {spills} spills; expected none")
    for name, count in sorted(code.instructions.items()):
        if FORBIDDEN.fullmatch(name):
            faults.append(f"{where}: instruction {name} occurs {count} times; a DCU lacks it or it aborts")
        elif not EXPECTED.fullmatch(name):
            faults.append(f"{where}: instruction {name} occurs {count} times; the source has no use for it")
    return faults


def split_faults(codes: Sequence[DeviceCode], dcu: str, others: frozenset[str]) -> list[str]:
    """Why a module is not the split it should be: LLMM1 alone for `dcu`, other code for exactly `others`."""
    faults = []
    mine = [code for code in codes if code.arch == dcu]
    if len(mine) != 1:
        faults.append(f"{len(mine)} code objects for {dcu}, 1 expected")
    for code in mine:
        faults += llmm1_faults(code)
        siblings = sorted({c.arch for c in codes if c.bundle == code.bundle and c.arch != dcu})
        if siblings:
            faults.append(f"the bundle that holds {dcu} also holds {', '.join(siblings)}: its unit was compiled for other archs")
    present = frozenset(code.arch for code in codes if code.arch != dcu)
    if present != others:
        faults.append(f"archs besides {dcu}: {_names(present)}; expected {_names(others)}")
    return faults


def _names(archs: frozenset[str]) -> str:
    return ", ".join(sorted(archs)) or "none"


def holds(wheel: Path, module: str) -> bool:
    """Whether a wheel has an extension module of that name."""
    with zipfile.ZipFile(wheel) as archive:
        return any(re.fullmatch(rf"vllm/{module}[^/]*\.so", name) for name in archive.namelist())


@contextmanager
def library_of(path: Path, module: str = "_rocm_C") -> Iterator[Path]:
    """The library of an extension module of a wheel (unpacked into a temporary folder), or `path` itself where it is a library.

    Raises:
        errors.MissingInput: there is no such file, or no such module in it.
    """
    if not path.is_file():
        raise errors.MissingInput(f"{path} is not a file", "the audit reads a wheel or a library", "give its path: WHEEL=dist/vllm-....whl")
    if path.suffix != ".whl":
        yield path
        return
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory(prefix="gfx936-wheel-") as folder:
        names = [name for name in wheel.namelist() if re.fullmatch(rf"vllm/{module}[^/]*\.so", name)]
        if len(names) != 1:
            raise errors.MissingInput(
                f"{path.name} holds {len(names)} vllm/{module} libraries",
                "a build for a DCU has exactly one; a CPU or pure-Python wheel has none",
                "build with TARGET=rocm and PYTORCH_ROCM_ARCH=gfx936",
            )
        file = Path(folder) / Path(names[0]).name
        with wheel.open(names[0]) as source, file.open("wb") as target:
            shutil.copyfileobj(source, target)
        yield file
