"""Upstream's LLMM1 on a CUDA device: its own text, selected at build time, through a shim of a dozen lines.

The device is 32 lanes wide where the DCU is 64. That is the point: the kernel's known fault shows here at K > 4096.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from scripts.rehearsal.wave import host_llmm1, region  # noqa: E402  (the one selection of upstream's region; needs the path above)

__all__ = ["SHIM", "build_cpu", "build_cuda", "nvcc_version"]

# CUDA's bf16 fma rounds once, HIP's twice (float32, then bf16): figures may differ in the last bit, the structure may not.
SHIM = """\
#include <ATen/Dispatch.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torch/library.h>
#include <torch/types.h>

using __hip_bfloat16 = __nv_bfloat16;
using __hip_bfloat162 = __nv_bfloat162;
#define WARP_SIZE 32
#define __shfl_xor(value, mask) __shfl_xor_sync(0xffffffffu, value, mask)
#define __builtin_nontemporal_load(address) __ldcs(address)
"""

# The schema is the one of upstream's csrc/rocm/torch_bindings.cpp; the gate refuses any other.
_BINDING = """
TORCH_LIBRARY_FRAGMENT(_rocm_C, ops) { ops.def("LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor"); }
TORCH_LIBRARY_IMPL(_rocm_C, CUDA, ops) { ops.impl("LLMM1", &LLMM1); }
"""


def nvcc_version() -> str:
    """The last line of `nvcc --version`, or why there is none."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    try:
        return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown ({error})"


def build_cuda(skinny: Path, folder: Path) -> str:
    """Compile the region of `skinny` and register `_rocm_C::LLMM1` for CUDA. Returns the region's sha256.

    Raises region.RegionError, or RuntimeError with nvcc's output.
    """
    from torch.utils import cpp_extension

    text = skinny.read_text()
    folder.mkdir(parents=True, exist_ok=True)
    unit = folder / "llmm1_on_cuda.cu"
    unit.write_text(SHIM + region.kernel_text(text) + region.launcher_text(text) + _BINDING)
    cpp_extension.load(
        name="llmm1_on_cuda", sources=[str(unit)], build_directory=str(folder), is_python_module=False, extra_cuda_cflags=["-O3"]
    )
    return region.region_hash(text)


def build_cpu(skinny: Path, wave: int = 32) -> str:
    """The same op from the host build, so that this script itself can be tried without a GPU."""
    function = host_llmm1.load(skinny, wave=wave)
    library: Any = torch.library.Library("_rocm_C", "FRAGMENT")
    library.define("LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor")
    library.impl("LLMM1", function, "CPU")
    _KEPT.append(library)
    return region.region_hash(skinny.read_text())


_KEPT: list[Any] = []
