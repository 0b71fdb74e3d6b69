"""Upstream's LLMM1, its real source, executed on the CPU in lockstep waves against float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.rehearsal.wave import host_llmm1, region
from tests.native import cases
from tests.native.cases import numerics

M, K = 34816, 5120
DTYPES = ("bfloat16", "float16")
ROWS = (2, 4, 8, 16)
# Where a lane, a wave, or the sixteen waves of the last stage begin and end.
EDGES = (8, 16, 24, 504, 512, 520, 1016, 1024, 1032, 4088, 4096, 4104, 5112, 5120, 5128, 7680, 8184, 8192)


Hosted = Callable[..., host_llmm1.Raw]


@pytest.fixture(scope="module")
def wave32(hosted: Hosted) -> host_llmm1.Raw:
    return hosted(32)


def within_the_bound(out: cases.Bits, a: cases.Bits, x: cases.Bits, dtype: str) -> bool:
    """Every single output lies within the derived bound: no probability in it."""
    error = np.abs(cases.from_bits(out, dtype) - cases.exact(a, x, dtype))
    return bool(np.all(error <= numerics.element_factor(dtype) * cases.magnitude(a, x, dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mission_shape_is_right_at_wave_64(wave64: host_llmm1.Raw, dtype: str) -> None:
    a, x = cases.make(M, K, dtype)
    reference = cases.exact(a, x, dtype)
    outs = {rows: cases.run(wave64, a, x, dtype, rows) for rows in ROWS}
    error = cases.relative(outs[4], reference, dtype)
    assert error <= numerics.ceiling(dtype, M)
    assert error == pytest.approx(numerics.expected(dtype), rel=0.05), "the derivation no longer describes the kernel"
    for rows in ROWS:
        assert np.array_equal(outs[rows], outs[4]), f"rows_per_block={rows} gives other bits than 4"


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_edge_of_k_is_right_at_wave_64(wave64: host_llmm1.Raw, dtype: str, rows: int) -> None:
    wrong = []
    for k in EDGES:
        a, x = cases.make(32, k, dtype, seed=k)
        if not within_the_bound(cases.run(wave64, a, x, dtype, rows), a, x, dtype):
            wrong.append(k)
    assert wrong == []


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    blocks=st.integers(1, 12),
    rows=st.sampled_from(ROWS),
    eights=st.integers(1, 1024),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**16),
)
def test_random_shapes_are_right_at_wave_64(wave64: host_llmm1.Raw, blocks: int, rows: int, eights: int, dtype: str, seed: int) -> None:
    a, x = cases.make(blocks * rows, eights * 8, dtype, seed)
    assert within_the_bound(cases.run(wave64, a, x, dtype, rows), a, x, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_32_wide_wave_is_right_to_4096_and_drops_the_rest_beyond(wave32: host_llmm1.Raw, dtype: str) -> None:
    a, x = cases.make(4096, 4096, dtype)
    assert cases.relative(cases.run(wave32, a, x, dtype, 4), cases.exact(a, x, dtype), dtype) <= numerics.ceiling(dtype, 4096)
    a, x = cases.make(4096, K, dtype)
    out = cases.run(wave32, a, x, dtype, 4)
    # What is missing is 1024 of 5120 products: sqrt(0.2) of the norm.
    assert cases.relative(out, cases.exact(a, x, dtype), dtype) == pytest.approx(0.447, abs=0.02)
    assert within_the_bound(out, np.ascontiguousarray(a[:, :4096]), np.ascontiguousarray(x[:, :4096]), dtype)


def test_a_source_that_believes_in_32_lanes_is_wrong_on_64_too(hosted: Hosted) -> None:
    raw = hosted(believed=32)
    a, x = cases.make(1024, 4096, "bfloat16")
    assert cases.relative(cases.run(raw, a, x, "bfloat16", 4), cases.exact(a, x, "bfloat16"), "bfloat16") <= numerics.ceiling(
        "bfloat16", 1024
    )
    a, x = cases.make(1024, K, "bfloat16")
    assert cases.relative(cases.run(raw, a, x, "bfloat16", 4), cases.exact(a, x, "bfloat16"), "bfloat16") > 0.3


@pytest.mark.parametrize(("k", "why"), [(8200, "1088 threads"), (17408, "2176 threads")])
def test_a_k_beyond_8192_cannot_be_launched(wave64: host_llmm1.Raw, k: int, why: str) -> None:
    a, x = cases.make(4, k, "bfloat16")
    with pytest.raises(host_llmm1.HostFault, match=f"{why} cannot be launched"):
        cases.run(wave64, a, x, "bfloat16", 4)


def test_upstream_itself_refuses_two_rows(wave64: host_llmm1.Raw) -> None:
    a, x = cases.make(4, 64, "bfloat16")
    with pytest.raises(host_llmm1.HostRefusal, match="Row number of activation tensor must be 1"):
        cases.run(wave64, a, np.repeat(x, 2, axis=0), "bfloat16", 4)


def test_a_k_that_is_no_multiple_of_8_is_wrong_without_a_fault(wave64: host_llmm1.Raw) -> None:
    a, x = cases.make(64, 5124, "bfloat16")
    assert cases.relative(cases.run(wave64, a, x, "bfloat16", 4), cases.exact(a, x, "bfloat16"), "bfloat16") > 0.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nans_come_out_as_such(wave64: host_llmm1.Raw, dtype: str) -> None:
    a, x = cases.make(8, 512, dtype)
    infinity, nan = {"bfloat16": (0x7F80, 0x7FC0), "float16": (0x7C00, 0x7E00)}[dtype]
    a[1, 3], a[2, 511], x[0, 0] = infinity, nan, x[0, 0]
    out = cases.from_bits(cases.run(wave64, a, x, dtype, 4), dtype)
    assert np.isinf(out[1])
    assert np.isnan(out[2])
    assert np.isfinite(np.delete(out, [1, 2])).all()


WATCHED = [(8, 2), (24, 16), (520, 8), (1016, 4), (5120, 4), (8192, 2)]


@pytest.mark.parametrize("kind", ["address", "memory"])
@pytest.mark.parametrize("wave", [64, 32])
def test_sanitizers_find_nothing_and_see_the_same_bits(
    skinny: str, watched: Callable[..., Path], kind: str, wave: int, wave64: host_llmm1.Raw, wave32: host_llmm1.Raw, tmp_path: Path
) -> None:
    program, fast = watched(skinny, kind, wave), {64: wave64, 32: wave32}[wave]
    for k, rows in WATCHED:
        for dtype in DTYPES:
            a, x = cases.make(rows * 3, k, dtype, seed=k)
            if wave == 64:
                a[0, :4] = [0x0001, 0x8001, 0x7F7F & 0x7BFF, 0x0400]  # subnormals and the largest half
            seen = cases.watch(program, tmp_path, a, x, dtype, rows)
            assert seen.code == 0, f"K={k} rows_per_block={rows} {dtype}: {seen.said[-2000:]}"
            assert seen.out is not None
            assert np.array_equal(seen.out, cases.run(fast, a, x, dtype, rows)), f"K={k} rows_per_block={rows} {dtype}"


def test_a_k_short_of_a_lane_reads_past_the_activation(skinny: str, watched: Callable[..., Path], tmp_path: Path) -> None:
    a, x = cases.make(4, 5116, "bfloat16")
    seen = cases.watch(watched(skinny, "address"), tmp_path, a, x, "bfloat16", 4)
    assert seen.code != 0
    assert "heap-buffer-overflow" in seen.said


def test_an_m_that_is_no_multiple_of_rows_leaves_outputs_unwritten(skinny: str, watched: Callable[..., Path], tmp_path: Path) -> None:
    a, x = cases.make(34, 512, "bfloat16")
    seen = cases.watch(watched(skinny, "memory"), tmp_path, a, x, "bfloat16", 4)
    assert seen.code != 0
    assert "use-of-uninitialized-value" in seen.said


# Planted faults that only the numbers show.
WRONG = {
    "a swapped shuffle mask": ("__shfl_xor(acc[i], mask)", "__shfl_xor(acc[i], mask == 4 ? 8 : mask)"),
    "a shuffle step left out": ("for (int mask = WARP_SIZE / 2; mask >= 1; mask /= 2)", "for (int mask = WARP_SIZE / 4; mask >= 1; mask /= 2)"),
    "two rows of a block swapped": ("K / 8 * i", "K / 8 * (i ^ 1)"),
    "one product of eight lost": ("acch2 = __hfma2(Af2, colB_elem4w, acch2);", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", sorted(WRONG))
def test_a_planted_fault_is_seen_in_the_numbers(skinny: str, hosted: Hosted, fault: str) -> None:
    raw = hosted(text=region.planted(skinny, *WRONG[fault]))
    a, x = cases.make(512, K, "bfloat16")
    error = cases.relative(cases.run(raw, a, x, "bfloat16", 4), cases.exact(a, x, "bfloat16"), "bfloat16")
    assert error > 10 * numerics.ceiling("bfloat16", 512), f"{fault}: relative error {error}"


# Planted faults that a sanitizer names.
FOUND = {
    "a row offset one row too far": ("address", "K / 8 * i", "K / 8 * (i + 1)", 5120, "heap-buffer-overflow"),
    "the guard of the loads gone": ("address", "if (threadid * 8 < K) {", "if (true) {", 520, "heap-buffer-overflow"),
    "an LDS column too far": ("address", "red_smem[lane][warp] = ", "red_smem[lane][warp + WARP_SIZE] = ", 512, "out of bounds"),
    "the barrier gone": ("memory", "  __syncthreads();\n", "", 5120, "use-of-uninitialized-value"),
    "what lanes beyond K computed is used": ("memory", "(threadid * 8 < K ? S.x + S.y : 0.f)", "S.x + S.y", 520, "use-of-uninitialized-value"),
}  # fmt: skip


@pytest.mark.parametrize("fault", sorted(FOUND))
def test_a_planted_fault_is_named_by_a_sanitizer(skinny: str, watched: Callable[..., Path], fault: str, tmp_path: Path) -> None:
    kind, old, new, k, name = FOUND[fault]
    a, x = cases.make(8, k, "bfloat16")
    seen = cases.watch(watched(region.planted(skinny, old, new), kind), tmp_path, a, x, "bfloat16", 4)
    assert seen.code != 0
    assert name in seen.said


def test_a_shuffle_in_a_branch_that_some_lanes_skip_is_a_fault(skinny: str, hosted: Hosted) -> None:
    text = region.planted(skinny, "acc[i] += __shfl_xor(acc[i], mask);", "if (lane != 5) acc[i] += __shfl_xor(acc[i], mask);")
    a, x = cases.make(4, 512, "bfloat16")
    with pytest.raises(host_llmm1.HostFault, match="does not take part"):
        cases.run(hosted(text=text), a, x, "bfloat16", 4)


def test_a_changed_upstream_is_refused_by_name(skinny: str) -> None:
    with pytest.raises(region.RegionError, match="torch::Tensor LLMM1"):
        region.kernel_text(skinny.replace("torch::Tensor LLMM1(", "torch::Tensor LLMM2("))
    with pytest.raises(region.RegionError, match="launches its kernel"):
        region.host_launcher_text(skinny.replace("LLGemm1_kernel<scalar_t, 8>", "LLGemm1_kernel_v2<scalar_t, 8>"))
