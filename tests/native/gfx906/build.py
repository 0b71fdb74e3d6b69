"""Compile upstream's LLGemm1 for gfx906 with the public toolchain, and find its kernels in the object."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from vllm.dcu.records.gemv import MOST_N

from scripts.common.paths import ROOT
from scripts.rehearsal.wave import region
from tests.native.gfx906.objectfile import Kernel, ObjectError, read_kernels

__all__ = ["compile_gemv", "compile_object", "kernel_of", "patched", "with_code"]

# torch's two scalar types by name and layout; parsing torch's headers would take 30 s and change no instruction.
_BEFORE = """\
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <hip/hip_bf16.h>
namespace c10 {
struct alignas(2) Half { unsigned short x; };
struct alignas(2) BFloat16 { unsigned short x; };
}
"""
_AFTER = "".join(
    f"template __global__ void LLGemm1_kernel<c10::{t}, {rows}>(const c10::{t}*, const c10::{t}*, c10::{t}*, int);\n"
    for t in ("Half", "BFloat16")
    for rows in (2, 4, 8, 16)
)
# vLLM's own HIP flags, as far as they reach this text.
_FLAGS = ("-DUSE_ROCM", "-DENABLE_FP8", "-U__HIP_NO_HALF_CONVERSIONS__", "-U__HIP_NO_HALF_OPERATORS__", "-fno-gpu-rdc",
          "-D__HIP_PLATFORM_AMD__=1", "-DCUDA_HAS_FP16=1", "-DHIP_ENABLE_WARP_SYNC_BUILTINS=1", "-fPIC", "-O3", "-DNDEBUG",
          "-std=c++17")  # fmt: skip
_KERNEL = re.compile(r"LLGemm1_kernelIN3c10(?:8(BFloat16)|4(Half))ELi(\d+)EE")


def compile_object(text: str, toolchain: Any, believed: int = 64) -> dict[str, Kernel]:
    """The kernels of `text`'s region for gfx906, by mangled name. `believed` is the source's WARP_SIZE.

    `toolchain` is scripts.audit.toolchain.Toolchain. Raises ObjectError with the compiler's words.
    """
    return _compile(_BEFORE + region.kernel_text(text) + _AFTER, toolchain, (f"-DWARP_SIZE={believed}",))


def compile_gemv(toolchain: Any) -> dict[tuple[str, int, int, int], Kernel]:
    """The kernels of csrc/dcu/gemv_kernel.h for gfx906, by (dtype, N, rows, loads).

    Raises ObjectError with the compiler's words.
    """
    wanted = [(t, n, *body) for body, most in MOST_N.items() for n in range(1, most + 1) for t in ("Half", "BFloat16")]
    text = f'#include "{ROOT}/csrc/dcu/gemv_kernel.h"\nnamespace vllm_dcu::gemv {{\n' + "".join(
        f"template __global__ void dcu_gemv<{t}, {n}, {rows}, {loads}>(const Words*, const Words*, std::uint16_t*, Shape, "
        "unsigned long long*, unsigned long long*);\n"
        for t, n, rows, loads in wanted
    )
    kernels = _compile(text + "}\n", toolchain, ())
    found = {}
    for name, kernel in kernels.items():
        match = re.search(r"dcu_gemvINS0_(?:8(BFloat16)|4(Half))ELi(\d)ELi(\d)ELi(\d)EE", name)
        if match:
            found["bfloat16" if match[1] else "float16", int(match[3]), int(match[4]), int(match[5])] = kernel
    return found


def _compile(text: str, toolchain: Any, more: tuple[str, ...]) -> dict[str, Kernel]:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "region.hip", Path(folder) / "region.co"
        source.write_text(text)
        command = [str(toolchain.tool("clang++")), "-x", "hip", "--offload-arch=gfx906", "--cuda-device-only", "--no-gpu-bundle-output",
                   f"--rocm-path={toolchain.rocm}", f"--rocm-device-lib-path={toolchain.device_libs}", "-nogpuinc", "-include",
                   "__clang_hip_runtime_wrapper.h", "-isystem", str(toolchain.rocm / "include"), *_FLAGS, *more,
                   "-c", str(source), "-o", str(target)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ObjectError(f"clang++ for gfx906 failed:\n{done.stderr[-2000:]}")
        return read_kernels(target.read_bytes())


def kernel_of(kernels: dict[str, Kernel], dtype: str, rows: int) -> Kernel:
    """The instance for a dtype and rows_per_block, in whatever namespace."""
    for name, kernel in kernels.items():
        found = _KERNEL.search(name)
        if found and int(found[3]) == rows and {"BFloat16": "bfloat16", "Half": "float16"}[found[1] or found[2]] == dtype:
            return kernel
    raise ObjectError(f"the object holds no LLGemm1_kernel for {dtype}, rows_per_block={rows}: {', '.join(kernels)}")


def with_code(kernel: Kernel, code: bytes) -> Kernel:
    """`kernel` with other bytes."""
    return Kernel(**{**kernel.__dict__, "code": code})


def patched(kernel: Kernel, at: int, clear: int, put: int) -> Kernel:
    """`kernel` with the 64-bit little-endian word at `at` changed: bits of `clear` to 0, then those of `put` to 1."""
    word = int.from_bytes(kernel.code[at : at + 8], "little")
    return with_code(kernel, kernel.code[:at] + ((word & ~clear) | put).to_bytes(8, "little") + kernel.code[at + 8 :])
