# SPDX-License-Identifier: Apache-2.0
"""What each native kernel can compute at all, whoever asks.  Standard library only.

These limits come from the kernel's source, not from measurements: a record may narrow them and never widen them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm.dcu.records.gemv import MAX_N, VARIANTS

__all__ = ["GEMV", "KERNELS", "LLMM1", "Kernel", "broken_limit"]


@dataclass(frozen=True)
class Kernel:
    """One native kernel.

    Attributes:
        name: what records call it.
        op: the operator, `namespace::name`.
        schema: the operator's exact signature; a differing one closes the gate.
        source: where the limits were read.
        dispatchable: whether the gate knows how to call it. The others exist so that negative records can name them.
        dtypes: what it computes; both operands have one.
        argument: its one argument of its own, after weight and activation.
        values: what that argument may be.
        max_n: activation rows.
        max_k: elements of a row.
        extension: the module that registers the operator.
        mark: a part of the kernel's name, by which a profiler and a code object show it.
    """

    name: str
    op: str
    schema: str
    source: str
    dispatchable: bool
    dtypes: frozenset[str] = frozenset()
    argument: str = ""
    values: frozenset[int] = frozenset()
    max_n: int = 1
    max_k: int = 0
    extension: str = "vllm._rocm_C"
    mark: str = ""


LLMM1 = Kernel(
    name="LLMM1",
    op="_rocm_C::LLMM1",
    schema="_rocm_C::LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor",
    source="csrc/rocm/skinny_gemms.cu, LLGemm1_kernel and LLMM1",
    dispatchable=True,
    dtypes=frozenset({"bfloat16", "float16"}),
    argument="rows_per_block",
    values=frozenset({2, 4, 8, 16}),
    max_k=8192,
    mark="LLGemm1_kernel",
)

GEMV = Kernel(
    name="GEMV",
    op="_dcu_C::gemv",
    schema="_dcu_C::gemv(Tensor weight, Tensor x, int variant) -> Tensor",
    source="csrc/dcu/gemv_kernel.h",
    dispatchable=True,
    dtypes=frozenset({"bfloat16", "float16"}),
    argument="variant",
    values=frozenset(VARIANTS),
    max_n=MAX_N,
    max_k=2**31 - 8,
    extension="vllm._dcu_C",
    mark="dcu_gemv",
)

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        LLMM1,
        GEMV,
        Kernel("wvSplitK", "_rocm_C::wvSplitK", "", "csrc/rocm/skinny_gemms.cu", dispatchable=False),
        Kernel("wvSplitKrc", "_rocm_C::wvSplitKrc", "", "csrc/rocm/skinny_gemms.cu", dispatchable=False),
        Kernel("wvSplitKQ", "_rocm_C::wvSplitKQ", "", "csrc/rocm/skinny_gemms.cu", dispatchable=False),
    )
}


def broken_limit(kernel: Kernel, dtype: str, n: int, m: int, k: int, args: Mapping[str, int]) -> tuple[str, str] | None:
    """The first limit of `kernel` that a shape breaks, as (field, sentence), or None.

    `out[N, M] = x[N, K] @ weight[M, K].T`; `args` holds the kernel's own arguments.
    """
    if not kernel.dispatchable:
        return "kernel", f"{kernel.name} is not a kernel that the gate can call"
    if dtype not in kernel.dtypes:
        return "dtype", f"{kernel.name} computes {', '.join(sorted(kernel.dtypes))}, not {dtype}"
    if not 1 <= n <= kernel.max_n:
        return "n", f"{kernel.name} takes {_up_to(kernel.max_n)}, not {n}"
    if set(args) != {kernel.argument}:
        return "args", f"{kernel.name} takes exactly the argument {kernel.argument}, not {sorted(args)}"
    value = args[kernel.argument]
    if value not in kernel.values:
        return "args", f"{kernel.argument} is one of {sorted(kernel.values)}, not {value}"
    if k <= 0 or k % 8:
        return "k", f"K={k} is not a positive multiple of 8: rows are read 8 elements at a time"
    return _llmm1_limit(m, k, value) if kernel.name == "LLMM1" else _gemv_limit(n, m, k, value)


def _up_to(most: int) -> str:
    return "one activation row" if most == 1 else f"1 to {most} activation rows"


def _llmm1_limit(m: int, k: int, rows: int) -> tuple[str, str] | None:
    if m <= 0 or m % rows:
        return "m", f"M={m} is not a positive multiple of rows_per_block={rows}: the last rows would not be computed"
    if k > LLMM1.max_k:
        return "k", f"K={k} is above {LLMM1.max_k}: the last stage adds up at most 16 waves of 64 lanes"
    if m * k >= 2**31:
        return "m", f"M*K={m * k} does not fit the kernel's 32-bit row offset"
    return None


_MOST_M = 2**23 - 1


def _gemv_limit(n: int, m: int, k: int, variant: int) -> tuple[str, str] | None:
    if n > VARIANTS[variant].most_n:
        return "n", f"variant {variant} takes {_up_to(VARIANTS[variant].most_n)}, not {n}: beyond that it would spill"
    if not 0 < m <= _MOST_M:
        return "m", f"M={m} is not 1 to {_MOST_M}: a launch has fewer than 2^32 threads"
    if k > GEMV.max_k:
        return "k", f"K={k} is above {GEMV.max_k}: pieces of a row are counted in 32 bits"
    return None
