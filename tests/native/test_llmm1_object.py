"""LLMM1 compiled for gfx906, executed instruction by instruction on the CPU. gfx906 code: a public relative, not gfx936."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.rehearsal.wave import host_llmm1
from tests.native import cases
from tests.native.cases import numerics
from tests.native.gfx906 import build, isa, run
from tests.native.gfx906.machine import Fault
from tests.native.gfx906.objectfile import Kernel, ObjectError, read_kernels
from tests.support import not_run

M, K = 34816, 5120
ROWS = (2, 4, 8, 16)
Kernels = dict[str, Kernel]


@pytest.fixture(scope="module", autouse=True)
def decoder() -> None:
    if importlib.util.find_spec("tinygrad") is None:
        not_run("tinygrad, which decodes the instructions, is not installed (it needs Python 3.11)")


@pytest.fixture(scope="module")
def kernels(skinny: str, toolchain: Any) -> Kernels:
    return build.compile_object(skinny, toolchain)


@pytest.fixture(scope="module")
def believing_32(skinny: str, toolchain: Any) -> Kernels:
    return build.compile_object(skinny, toolchain, believed=32)


def execute(kernel: Kernel, a: cases.Bits, x: cases.Bits, rows: int, believed: int = 64) -> cases.Bits:
    """One call of LLMM1, launched as upstream's host function launches it."""
    m, k = a.shape
    threads = max(rows * 16, -(-(k // 8) // believed) * believed)
    out = np.full(m, 0x7FFF, np.uint16)
    run.launch(kernel, m // rows, threads, [a, x], out, k)
    return out


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_object_gives_the_bits_of_the_source(kernels: Kernels, wave64: host_llmm1.Raw, dtype: str, rows: int) -> None:
    kernel = build.kernel_of(kernels, dtype, rows)
    for k in (8, 24, 512, 520, 4096, 4104, K, 8184, 8192):
        a, x = cases.make(2 * rows, k, dtype, seed=k)
        assert np.array_equal(execute(kernel, a, x, rows), cases.run(wave64, a, x, dtype, rows)), f"K={k}"


def test_subnormals_infinities_and_cancellation_give_the_bits_of_the_source(kernels: Kernels, wave64: host_llmm1.Raw) -> None:
    for dtype, largest, infinity in (("bfloat16", 0x7F7F, 0x7F80), ("float16", 0x7BFF, 0x7C00)):
        a, x = cases.make(8, 512, dtype)
        a[0], a[1, :2], a[2, 7], a[3, :4], a[4] = a[0] & 0x807F, largest, infinity, [1, 0x8001, 3, 0x8002], a[4] | 0x0001
        x[0, 0] = 1
        out = execute(build.kernel_of(kernels, dtype, 4), a, x, 4)
        assert np.array_equal(out, cases.run(wave64, a, x, dtype, 4)), dtype


def test_the_mission_shape_is_right_and_the_same_bits(kernels: Kernels, wave64: host_llmm1.Raw) -> None:
    a, x = cases.make(M, K, "bfloat16")
    out = execute(build.kernel_of(kernels, "bfloat16", 4), a, x, 4)
    assert np.array_equal(out, cases.run(wave64, a, x, "bfloat16", 4))
    assert cases.relative(out, cases.exact(a, x, "bfloat16"), "bfloat16") <= numerics.ceiling("bfloat16", M)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_object_that_believes_in_32_lanes_is_wrong_beyond_4096(
    believing_32: Kernels, hosted: Callable[..., host_llmm1.Raw], dtype: str
) -> None:
    kernel = build.kernel_of(believing_32, dtype, 4)
    a, x = cases.make(512, 4096, dtype)
    assert cases.relative(execute(kernel, a, x, 4, 32), cases.exact(a, x, dtype), dtype) <= numerics.ceiling(dtype, 512)
    a, x = cases.make(512, K, dtype)
    out = execute(kernel, a, x, 4, 32)
    assert cases.relative(out, cases.exact(a, x, dtype), dtype) == pytest.approx(0.447, abs=0.07)
    assert np.array_equal(out, cases.run(hosted(believed=32), a, x, dtype, 4))


def test_the_size_of_lds_tells_what_the_source_believed(kernels: Kernels, believing_32: Kernels) -> None:
    for rows in ROWS:
        assert build.kernel_of(kernels, "bfloat16", rows).lds == rows * 64 * 4
        assert build.kernel_of(believing_32, "bfloat16", rows).lds == rows * 32 * 4


def instructions(kernel: Kernel, name: str) -> Iterator[tuple[int, isa.Op]]:
    return ((at, op) for at, op in run.program(kernel).items() if op.name == name)


@pytest.fixture(scope="module")
def mission(kernels: Kernels) -> Kernel:
    return build.kernel_of(kernels, "bfloat16", 4)


def result(kernel: Kernel, k: int = K, rows: int = 4) -> float:
    a, x = cases.make(64, k, "bfloat16")
    return cases.relative(execute(kernel, a, x, rows), cases.exact(a, x, "bfloat16"), "bfloat16")


LIMIT = numerics.ceiling("bfloat16", 64)


def test_every_swapped_multiplicand_is_seen_in_the_numbers(mission: Kernel) -> None:
    sums = list(instructions(mission, "V_FMAC_F32"))
    assert len(sums) == 24, "three fused multiply-adds for each half of each of four rows"
    assert result(mission) <= LIMIT
    for (at, first), (_, second) in zip(sums[::2], sums[1::2], strict=True):
        swapped = build.patched(mission, at, 0xFF << 9, (second["vsrc1"] - 256) << 9)  # VOP2: vsrc1 is bits 9 to 16
        assert first["vsrc1"] != second["vsrc1"]
        assert result(swapped) > LIMIT, f"the swap at {at:#x} went unseen"


def test_every_swapped_shuffle_mask_is_seen_in_the_numbers(mission: Kernel) -> None:
    masks = [(at, op) for at, op in instructions(mission, "V_XOR_B32") if op["src0"] in (128 + 16, 128 + 8, 128 + 4, 128 + 2, 128 + 1)]
    assert masks
    for at, op in masks:
        other = 128 + 32 if op["src0"] != 128 + 1 else 128 + 2
        try:
            seen = result(build.patched(mission, at, 0x1FF, other)) > LIMIT  # VOP2: src0 is bits 0 to 8
        except Fault:
            seen = True
        assert seen, f"the swapped mask at {at:#x} went unseen"


def test_swapped_operands_of_an_lds_write_are_a_fault(mission: Kernel) -> None:
    ((at, op),) = instructions(mission, "DS_WRITE_B32")
    swapped = build.patched(mission, at, 0xFFFF << 32, ((op["data0"] - 256) | (op["addr"] - 256) << 8) << 32)
    with pytest.raises(Fault, match="LDS is accessed at byte"):
        result(swapped)


def test_a_barrier_that_is_gone_is_a_fault(mission: Kernel) -> None:
    ((at, _op),) = instructions(mission, "S_BARRIER")
    with pytest.raises(Fault, match="no barrier between"):
        result(build.patched(mission, at, 0xFFFFFFFF, 0xBF800000))


def test_a_wait_that_is_gone_is_a_fault(mission: Kernel) -> None:
    for at, op in list(instructions(mission, "S_WAITCNT"))[:3]:
        with pytest.raises(Fault, match="used before s_waitcnt"):
            result(build.patched(mission, at, 0xFFFFFFFF, 0xBF800000))
        assert op.num["simm16"] != 0xFFFF


def test_a_weakened_guard_loads_past_the_buffers(mission: Kernel) -> None:
    at, op = next(iter(instructions(mission, "V_LSHLREV_B32")))
    assert op["src0"] == 128 + 3
    with pytest.raises(Fault, match="accesses 16 bytes at offset"):
        result(build.patched(mission, at, 0x1FF, 128 + 0), k=520)


def test_what_lanes_beyond_k_computed_must_not_be_used(mission: Kernel) -> None:
    # VCC still says which lanes are within K where the sums are selected: pick the other arm.
    found = [(at, op) for at, op in instructions(mission, "V_CNDMASK_B32") if op["src0"] == 128 and op.form == "VOP2"]
    assert len(found) == 4
    at, op = found[0]
    with pytest.raises(Fault, match="never written"):
        result(build.patched(mission, at, 0x1FF, op["vsrc1"]), k=520)


def test_an_instruction_that_is_not_known_is_refused(mission: Kernel) -> None:
    at, _op = next(iter(instructions(mission, "V_ADD_F32")))
    with pytest.raises(isa.Refusal, match="V_SUB_F32"):
        run.program(build.patched(mission, at, 0x3F << 25, 2 << 25))


def test_a_file_that_is_no_code_object_is_refused() -> None:
    with pytest.raises(ObjectError, match="not an AMDGPU code object"):
        read_kernels(Path("/proc/self/exe").read_bytes())
