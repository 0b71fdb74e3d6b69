# SPDX-License-Identifier: Apache-2.0
"""What each native kernel can compute at all, whoever asks.  Standard library only.

These limits come from the kernel's source, not from measurements: a record may narrow them and never widen them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["KERNELS", "LLMM1", "Kernel", "broken_limit"]


@dataclass(frozen=True)
class Kernel:
    """One native kernel.

    Attributes:
        name: what records call it.
        op: the operator, `namespace::name`.
        schema: the operator's exact signature; a differing one closes the gate.
        source: where the limits were read.
        dispatchable: whether the gate knows how to call it. The others exist so that negative records can name them.
    """

    name: str
    op: str
    schema: str
    source: str
    dispatchable: bool
    dtypes: frozenset[str] = frozenset()
    rows_per_block: frozenset[int] = frozenset()
    max_k: int = 0


LLMM1 = Kernel(
    name="LLMM1",
    op="_rocm_C::LLMM1",
    schema="_rocm_C::LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor",
    source="csrc/rocm/skinny_gemms.cu, LLGemm1_kernel and LLMM1",
    dispatchable=True,
    dtypes=frozenset({"bfloat16", "float16"}),
    rows_per_block=frozenset({2, 4, 8, 16}),
    max_k=8192,
)

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        LLMM1,
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
    if n != 1:
        return "n", f"{kernel.name} takes one activation row, not {n}"
    if set(args) != {"rows_per_block"}:
        return "args", f"{kernel.name} takes exactly the argument rows_per_block, not {sorted(args)}"
    rows = args["rows_per_block"]
    if rows not in kernel.rows_per_block:
        return "args", f"rows_per_block is one of {sorted(kernel.rows_per_block)}, not {rows}"
    if m <= 0 or m % rows:
        return "m", f"M={m} is not a positive multiple of rows_per_block={rows}: the last rows would not be computed"
    if k <= 0 or k % 8:
        return "k", f"K={k} is not a positive multiple of 8: rows are read 8 elements at a time"
    if k > kernel.max_k:
        return "k", f"K={k} is above {kernel.max_k}: the last stage adds up at most 16 waves of 64 lanes"
    if m * k >= 2**31:
        return "m", f"M*K={m * k} does not fit the kernel's 32-bit row offset"
    return None
