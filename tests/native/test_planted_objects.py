"""The rules about code objects fail on real compiled faults: each plant is a kernel compiled by the private toolchain."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from vllm.dcu.records.gemv import MOST_N

from scripts.audit.objects import DeviceCode, LlvmTools, device_code, gemv_faults, library_of, llmm1_faults, private_tools, split_faults
from scripts.audit.toolchain import Toolchain, ensure
from scripts.common import errors
from scripts.rehearsal.wave import build
from tests.support import not_run

# Names, LDS and instantiations of LLMM1, in seven lines: what the rules accept, so that each plant is the only fault.
SOURCE = """
#include <hip/hip_runtime.h>
namespace c10 { struct BFloat16 { short x; }; struct Half { short x; }; }
namespace vllm_dcu::selected {
template <typename T, int R> __global__ void LLGemm1_kernel(const T* a, T* c, int n) {
  __shared__ float s[R][LANES];
  s[threadIdx.x % R][threadIdx.x % LANES] = a[threadIdx.x].x;
  __syncthreads();
  EXTRA
  c[threadIdx.x].x = s[threadIdx.x % R][n];
}
#define MAKE(T, R) template __global__ void LLGemm1_kernel<T, R>(const T*, T*, int);
MAKE(c10::BFloat16, 2) MAKE(c10::BFloat16, 4) MAKE(c10::BFloat16, 8) MAKE(c10::BFloat16, 16)
MAKE(c10::Half, 2) MAKE(c10::Half, 4) MAKE(c10::Half, 8) MAKE(c10::Half, 16)
}
"""
Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    try:
        return ensure()
    except errors.Fatal as error:
        not_run(f"no toolchain: {error.what}")


@pytest.fixture(scope="module")
def tools(toolchain: Toolchain) -> LlvmTools:
    return private_tools(toolchain)


@pytest.fixture
def compiled(toolchain: Toolchain, tmp_path: Path) -> Compile:
    def make(
        source: str = SOURCE, extra: str = "", lanes: int = 64, archs: Sequence[str] = ("gfx906",), options: Sequence[str] = ()
    ) -> Path:
        number = len(list(tmp_path.glob("*.hip")))
        file, output = tmp_path / f"{number}.hip", tmp_path / f"{number}.bundle"
        file.write_text(source.replace("EXTRA", extra).replace("LANES", str(lanes)))
        argv = [
            str(toolchain.tool("clang++")), "-x", "hip", *(f"--offload-arch={arch}" for arch in archs), "-O3", "-std=c++17",
            f"--rocm-path={toolchain.rocm}", f"--rocm-device-lib-path={toolchain.device_libs}", "--cuda-device-only",
            "--gpu-bundle-output", *options, "-c", str(file), "-o", str(output),
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return output

    return make


def only(file: Path, tools: LlvmTools) -> DeviceCode:
    (code,) = device_code(file, tools)
    return code


def test_the_form_of_llmm1_is_accepted(compiled: Compile, tools: LlvmTools) -> None:
    assert llmm1_faults(only(compiled(), tools)) == []


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ('asm volatile("v_dot2_f32_f16 v0, v1, v2, v3");', "instruction v_dot2_f32_f16 occurs"),
        ("if (n == 7) __builtin_trap();", "instruction s_trap occurs"),
        ("volatile int big[64]; big[n] = n; c[0].x = big[n + 1];", "bytes of scratch"),
    ],
)
def test_a_planted_instruction_or_scratch_is_found(compiled: Compile, tools: LlvmTools, extra: str, says: str) -> None:
    assert any(says in fault for fault in llmm1_faults(only(compiled(extra=extra), tools)))


def test_a_ninth_llmm1_kernel_is_found(compiled: Compile, tools: LlvmTools) -> None:
    ninth = SOURCE.replace("MAKE(c10::Half, 16)", "MAKE(c10::Half, 16) MAKE(c10::Half, 32)")
    faults = llmm1_faults(only(compiled(source=ninth), tools))
    assert any("LLGemm1_kernel<c10::Half, 32> is not LLMM1's" in fault for fault in faults)


def gemv_source(*, old: str = "", new: str = "", kernels: str = "") -> str:
    """Our own kernel's source, changed in one place, with every instance that the table names, or with `kernels` alone."""
    text = build.gemv_text()
    kernel = text["dcu/gemv_kernel.h"].replace('#include "../rocm/dcu_arch.h"', text["rocm/dcu_arch.h"].replace("#pragma once", ""))
    assert not old or kernel.count(old) == 1
    kernel = kernel.replace(old, new) if old else kernel
    made = kernels or "".join(
        f"MAKE({dtype}, {n}, {rows}, {loads}) "
        for (rows, loads), most in MOST_N.items()
        for n in range(1, most + 1)
        for dtype in ("BFloat16", "Half")
    )
    define = "#define MAKE(T, N, R, U) template __global__ void dcu_gemv<T, N, R, U>(const Words*, const Words*, std::uint16_t*, Shape, unsigned long long*, unsigned long long*);\n"
    return kernel.replace("#pragma once", "") + f"\n{define}namespace vllm_dcu::gemv {{ {made} }}\n"


def test_our_own_kernels_are_accepted_and_one_more_or_less_is_not(compiled: Compile, tools: LlvmTools) -> None:
    (code,) = device_code(compiled(source=gemv_source()), tools)
    assert gemv_faults([code], "gfx906") == []
    assert any("is missing" in f for f in gemv_faults([replace(code, kernels=code.kernels[1:])], "gfx906"))
    assert any("code objects for gfx900" in f for f in gemv_faults([replace(code, arch="gfx900")], "gfx906"))


@pytest.mark.parametrize(
    ("old", "new", "kernels", "says"),
    [
        ("", "", "MAKE(BFloat16, 1, 4, 8)", "BFloat16, 1, 4, 8> is none of csrc/dcu/gemv_variants.h"),
        ("  if (mine >= 0)", '  asm volatile("v_dot2_f32_f16 v0, v1, v2, v3");\n  if (mine >= 0)', "", "instruction v_dot2_f32_f16 occurs"),
        ("  if (mine >= 0)", '  asm volatile("s_sleep 1");\n  if (mine >= 0)', "", "instruction s_sleep occurs"),
        ("  if (mine >= 0)", "  volatile int big[64]; big[lane] = wave; sum[0] += big[wave];\n  if (mine >= 0)", "", "bytes of scratch"),
        ("partial[kMaxWaves][N * R]", "partial[kMaxWaves + 1][N * R]", "", "bytes of LDS, not"),
    ],
)  # fmt: skip
def test_a_fault_planted_in_our_own_unit_is_found(compiled: Compile, tools: LlvmTools, old: str, new: str, kernels: str, says: str) -> None:
    source = gemv_source(old=old, new=new, kernels=kernels or "MAKE(BFloat16, 1, 2, 1)")
    assert any(says in fault for fault in gemv_faults(device_code(compiled(source=source), tools), "gfx906"))


def test_a_planted_mfma_is_found(compiled: Compile, tools: LlvmTools) -> None:
    extra = 'asm volatile("v_mfma_f32_32x32x1f32 a[0:31], v0, v1, a[0:31]");'
    assert any("v_mfma_f32_32x32x1f32" in fault for fault in llmm1_faults(only(compiled(extra=extra, archs=["gfx90a"]), tools)))


def test_a_source_that_believed_in_32_lanes_is_told_by_its_lds(compiled: Compile, tools: LlvmTools) -> None:
    faults = llmm1_faults(only(compiled(lanes=32), tools))
    assert len(faults) == 8
    assert all("believed in 32 lanes" in fault for fault in faults)


def test_code_for_a_32_wide_device_is_refused(compiled: Compile, tools: LlvmTools) -> None:
    assert any("compiled for 32 lanes" in fault for fault in llmm1_faults(only(compiled(archs=["gfx1030"]), tools)))


def test_an_extra_kernel_behind_the_first_bundle_is_found(compiled: Compile, tools: LlvmTools, tmp_path: Path) -> None:
    extra = compiled(source="#include <hip/hip_runtime.h>\n__global__ void wvSplitK_planted(float* p) { *p = 1; }\n")
    module = tmp_path / "_rocm_C.abi3.so"
    module.write_bytes(b"host code" + compiled().read_bytes() + extra.read_bytes())
    faults = split_faults(device_code(module, tools), "gfx906", frozenset())
    assert any("wvSplitK_planted is not LLMM1's" in fault for fault in faults)


def test_a_unit_compiled_for_the_dcu_and_another_arch_at_once_is_found(compiled: Compile, tools: LlvmTools) -> None:
    codes = device_code(compiled(archs=["gfx906", "gfx90a"]), tools)
    assert any("was compiled for other archs" in fault for fault in split_faults(codes, "gfx906", frozenset({"gfx90a"})))


def test_a_module_without_code_for_the_dcu_is_refused(compiled: Compile, tools: LlvmTools) -> None:
    assert "0 code objects for gfx936, 1 expected" in split_faults(device_code(compiled(), tools), "gfx936", frozenset({"gfx906"}))


def test_a_compressed_bundle_is_refused_not_taken_for_empty(compiled: Compile, tools: LlvmTools) -> None:
    with pytest.raises(errors.CheckFailed, match="--offload-compress"):
        device_code(compiled(options=["--offload-compress"]), tools)


def test_a_file_that_is_no_wheel_or_library_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingInput, match=r"nothing\.whl"), library_of(tmp_path / "nothing.whl"):
        pass
