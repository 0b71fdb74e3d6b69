"""Build the region of a tree for the host: the fast library, or a program under sanitizers (rehearsal and tests).

Builds are kept in the user's cache, keyed by everything that goes into them.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scripts.common.paths import ROOT, cache_dir
from scripts.rehearsal.wave import region

__all__ = ["FAST", "SANITIZERS", "BuildError", "build", "build_gemv", "compiler_for", "gemv_text"]

HERE = Path(__file__).parent
_INPUTS = ("wave.h", "hip_on_host.h", "torch_on_host.h", "entry.cc", "gemv_entry.cc")
_GEMV = ("dcu/gemv_variants.h", "dcu/gemv_kernel.h", "dcu/gemv_contract.h", "dcu/gemv_launch.h", "rocm/dcu_arch.h", "rocm/dcu_contract.h")
# No contraction: each bf16 and fp16 operation rounds where HIP's does. The kernel reinterprets float4 as pairs of halves.
_COMMON = ("-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread", "-Wall", "-Wno-unknown-pragmas")
FAST = ("-O3", "-march=native", "-fPIC", "-shared")
# shift-base and signed overflow included; vptr needs RTTI of a library we do not link.
SANITIZERS = {
    "address": ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DWAVE_MAIN"),
    "memory": ("-O1", "-g", "-fsanitize=memory", "-fsanitize-memory-track-origins", "-DWAVE_MAIN"),
}


class BuildError(Exception):
    """The host build failed; the text ends with the compiler's own words."""


def compiler_for(kind: str, clang: Path | None = None) -> str | None:
    """The compiler for `kind` ('fast', 'address' or 'memory'), or None: MemorySanitizer exists in clang only."""
    if clang is not None:
        return str(clang)
    found = [shutil.which(name) for name in ("clang++-19", "clang++", "g++")]
    if kind == "memory":
        found = found[:2]
    return next((path for path in found if path), None)


def build(text: str, *, kind: str, wave: int, believed: int | None = None, clang: Path | None = None, cache: Path | None = None) -> Path:
    """Compile the region of `text` (upstream's whole file) for waves of `wave` lanes.

    `believed` is the source's WARP_SIZE, the same as `wave` unless that very mistake is modelled.
    Raises region.RegionError when the region is not found, BuildError when there is no compiler or it fails.
    """
    code = region.kernel_text(text) + region.host_launcher_text(text)
    return _build({"region.inc": code}, "entry.cc", (f"-DWARP_SIZE={believed or wave}",), kind, wave, clang, cache)


def gemv_text() -> dict[str, str]:
    """The files of our own kernel, by their path below csrc/."""
    return {name: (ROOT / "csrc" / name).read_text(encoding="utf-8") for name in _GEMV}


def build_gemv(files: Mapping[str, str], *, kind: str, wave: int, clang: Path | None = None, cache: Path | None = None) -> Path:
    """Compile `files` (those of `gemv_text`, or changed ones) for waves of `wave` lanes.

    Raises BuildError when there is no compiler or it fails.
    """
    return _build(files, "gemv_entry.cc", (), kind, wave, clang, cache)


def _build(
    files: Mapping[str, str], entry: str, more: tuple[str, ...], kind: str, wave: int, clang: Path | None, cache: Path | None
) -> Path:
    compiler = compiler_for(kind, clang)
    if compiler is None:
        raise BuildError(f"no C++ compiler for the {kind} build: install g++ (or clang++ for 'memory')")
    gnu = "clang" not in Path(compiler).name
    flags = (
        *_COMMON,
        *(("-Wno-maybe-uninitialized",) if gnu else ("-Wno-pass-failed",)),
        *(FAST if kind == "fast" else SANITIZERS[kind]),
        f"-DWAVE_WIDTH={wave}",
        *more,
    )
    key = hashlib.sha256(repr((compiler, flags, entry, sorted(files.items()))).encode())
    for name in _INPUTS:
        key.update((HERE / name).read_bytes())
    root = cache or cache_dir() / "host-kernel"
    target = root / f"{kind}{wave}-{key.hexdigest()[:24]}.so"
    if target.is_file():
        return target
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        for name, code in files.items():
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).write_text(code, encoding="utf-8")
        made = Path(folder) / "made"
        command = [compiler, *flags, "-I", str(HERE), "-I", folder, str(HERE / entry), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise BuildError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        made.replace(target)  # atomic: another process never loads half a library
    return target
