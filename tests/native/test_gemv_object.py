"""The gfx906 object of our own kernel, instruction by instruction, gives the bits of the source at 64 lanes. gfx906, not gfx936.

GEMV_SWEEP=1 runs every kernel at every edge where a sample runs otherwise.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from vllm.dcu.records.gemv import VARIANTS, Variant

from scripts.rehearsal.wave import host_gemv
from tests.native import cases
from tests.native.gfx906 import build, isa, run
from tests.native.gfx906.machine import Fault
from tests.native.gfx906.objectfile import Kernel
from tests.native.test_gemv_source import DTYPES, tensors
from tests.native.test_gemv_source import run as on_host

pytest.importorskip("tinygrad", reason="tinygrad, which decodes the instructions, is not installed (it needs Python 3.11)")

Kernels = dict[tuple[str, int, int, int], Kernel]
SWEEP = bool(os.environ.get("GEMV_SWEEP"))
EDGES = (8, 504, 512, 520, 1032, 2048, 2056, 4104, 5120) if SWEEP else (8, 520, 2056)


@pytest.fixture(scope="module")
def kernels(toolchain: Any) -> Kernels:
    return build.compile_gemv(toolchain)


@pytest.fixture(scope="module")
def gemv64() -> host_gemv.Gemv:
    return host_gemv.load(64)


def execute(kernel: Kernel, v: Variant, weight: cases.Bits, x: cases.Bits, counters: Sequence[np.ndarray[Any, Any]] = ()) -> cases.Bits:
    """One launch, with the arguments that csrc/dcu/gemv_launch.h makes."""
    (m, k), n = weight.shape, x.shape[0]
    groups = -(-m // v.rows)
    group_step, row_step = (1, groups) if v.spread else (v.rows, 1)
    share_shift, block_groups = v.share.bit_length() - 1, v.waves // v.share
    out = np.full((n, m), 0x7FFF, np.uint16)

    def arguments(at: Sequence[int]) -> bytes:
        shape = (m, groups, group_step, row_step, k // 8, share_shift, block_groups)
        return struct.pack("<3Q4q3i4x2Q", *at[:3], *shape, *(at[3:] or (0, 0)))

    run.launch_with(kernel, -(-groups // block_groups), v.waves * 64, [weight, x], out, arguments, counters)
    return out


@pytest.mark.parametrize("number", VARIANTS)
def test_the_object_gives_the_bits_of_the_source(kernels: Kernels, gemv64: host_gemv.Gemv, number: int) -> None:
    v = VARIANTS[number]
    for i, dtype in enumerate(DTYPES):
        for j, k in enumerate(EDGES):
            rows = range(1, v.most_n + 1) if SWEEP else ((number + i + 2 * j) % v.most_n + 1,)
            for n in rows:
                weight, x = tensors(5, k, n, dtype, seed=k)
                out = execute(kernels[dtype, n, v.rows, v.loads], v, weight, x)
                assert np.array_equal(out, on_host(gemv64, weight, x, dtype, number)), f"{dtype} N={n} K={k}"


def test_every_kernel_runs_and_none_spills(kernels: Kernels, gemv64: host_gemv.Gemv) -> None:
    assert len(kernels) == 56
    for (dtype, n, rows, loads), kernel in kernels.items():
        v = next(v for v in VARIANTS.values() if (v.rows, v.loads) == (rows, loads))
        assert (kernel.scratch, kernel.lds) == (0, 8 * n * rows * 4)
        weight, x = tensors(3, 1544, n, dtype, seed=n)
        assert np.array_equal(execute(kernel, v, weight, x), on_host(gemv64, weight, x, dtype, v.number)), (dtype, n, rows, loads)


def test_one_launch_counts_one_whatever_the_grid(kernels: Kernels) -> None:
    count, seen = np.zeros(1, np.uint64), np.zeros(8, np.uint64)
    weight, x = tensors(70, 512, 1, "bfloat16")
    for launch in (1, 2, 3):
        execute(kernels["bfloat16", 1, 2, 1], VARIANTS[13], weight, x, (count, seen))
        assert (count[0], seen.max(), seen[launch % 8]) == (launch, launch, launch)


def patched(kernel: Kernel, name: str, change: str) -> Kernel:
    """The first instruction of that name made an `s_nop` or an `s_barrier`'s absence: one fault in the object."""
    at = next(at for at, op in run.program(kernel).items() if op.name == name)
    return build.patched(kernel, at, 0xFFFFFFFF, {"nop": 0xBF800000}[change])


@pytest.mark.parametrize(("name", "words"), [("S_BARRIER", "no barrier between"), ("S_WAITCNT", "used before s_waitcnt")])
def test_a_planted_fault_in_the_object_is_named(kernels: Kernels, name: str, words: str) -> None:
    weight, x = tensors(4, 4096, 1, "bfloat16")
    with pytest.raises(Fault, match=words):
        execute(patched(kernels["bfloat16", 1, 2, 1], name, "nop"), VARIANTS[0], weight, x)


def test_an_unknown_instruction_is_refused(kernels: Kernels) -> None:
    kernel = kernels["bfloat16", 1, 2, 1]
    at = next(at for at, op in run.program(kernel).items() if op.name == "V_ADD_F32")
    with pytest.raises(isa.Refusal, match="V_SUB_F32"):
        run.program(build.patched(kernel, at, 0x3F << 25, 2 << 25))
