"""Our own kernel's source, executed on the CPU in lockstep waves against float64, with the faults that must be caught by name.

GEMV_SWEEP=1 runs every variant where a sample runs otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.dcu.evidence import numerics
from vllm.dcu.records.gemv import VARIANTS, float32_roundings

from scripts.rehearsal.wave import build, host_gemv
from scripts.rehearsal.wave.host_llmm1 import HostFault, HostRefusal
from tests.native import cases

DTYPES = ("bfloat16", "float16")
# Where a piece, a lane's second piece, a wave, a shared row or a group of loads begins and ends, at 64 lanes.
EDGES = (8, 16, 504, 512, 520, 1016, 1024, 1536, 1544, 2040, 2048, 2056, 4096, 4104, 5112, 5120, 6144, 8192, 17408)
SAMPLE = tuple(VARIANTS) if os.environ.get("GEMV_SWEEP") else (1, 3, 9, 14)


@pytest.fixture(scope="module")
def gemv64() -> host_gemv.Gemv:
    return host_gemv.load(64)


def tensors(m: int, k: int, n: int, dtype: str, seed: int = 0) -> tuple[cases.Bits, cases.Bits]:
    weight, _ = cases.make(m, k, dtype, seed)
    x = np.random.default_rng(seed + 1).standard_normal((n, k), dtype=np.float32)
    return weight, cases.to_bits(x, dtype)


def run(gemv: host_gemv.Gemv, weight: cases.Bits, x: cases.Bits, dtype: str, variant: int, counted: int = 0) -> cases.Bits:
    """One call; the output starts as a NaN pattern, with a guard behind it that must stay."""
    n, m = x.shape[0], weight.shape[0]
    out = np.full(n * m + 8, 0x7FFF, np.uint16)
    gemv(weight.ctypes.data, x.ctypes.data, out.ctypes.data, m, weight.shape[1], n, cases.CODES[dtype], variant, counted)
    assert (out[n * m :] == 0x7FFF).all(), "something was written behind the output"
    return out[: n * m].reshape(n, m)


def wrong(out: cases.Bits, weight: cases.Bits, x: cases.Bits, dtype: str, variant: int) -> str:
    """Which outputs break the derived bound; empty where all hold."""
    k = weight.shape[1]
    sums = numerics.Sums(1, 1.0, float32_roundings(k, VARIANTS[variant].share))
    values = cases.from_bits(weight, dtype)
    exact = cases.from_bits(x, dtype) @ values.T
    size = np.abs(cases.from_bits(x, dtype)) @ np.abs(values).T
    off = ~(np.abs(cases.from_bits(out, dtype) - exact) <= numerics.element_factor(dtype, sums) * size)
    return f"outputs (n, m) {np.argwhere(off)[:4].tolist()}" if off.any() else ""


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_variant_is_right_at_every_edge_of_k(gemv64: host_gemv.Gemv, dtype: str, variant: int) -> None:
    found = {}
    for k in EDGES:
        for n in (1, VARIANTS[variant].most_n):
            weight, x = tensors(13, k, n, dtype, seed=k)
            if said := wrong(run(gemv64, weight, x, dtype, variant), weight, x, dtype, variant):
                found[k, n] = said
    assert found == {}


@pytest.mark.parametrize("variant", SAMPLE)
def test_no_last_row_is_lost_whatever_m(gemv64: host_gemv.Gemv, variant: int) -> None:
    for m in (1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 100):
        weight, x = tensors(m, 1032, 2, "bfloat16", seed=m)
        assert wrong(run(gemv64, weight, x, "bfloat16", variant), weight, x, "bfloat16", variant) == "", f"M={m}"


def test_the_bits_depend_on_k_and_share_alone(gemv64: host_gemv.Gemv) -> None:
    for dtype in DTYPES:
        weight, x = tensors(29, 5128 + 512, 5, dtype)
        first: dict[int, cases.Bits] = {}
        for variant, facts in VARIANTS.items():
            for n in range(1, facts.most_n + 1):
                row = run(gemv64, weight, x[:n].copy(), dtype, variant)[0]
                known = first.setdefault(facts.share, row)
                assert np.array_equal(row, known), f"variant {variant}, N={n}, {dtype}"
            own = run(gemv64, np.ascontiguousarray(weight[7:8]), x[:1].copy(), dtype, variant)[0]
            assert np.array_equal(own, first[facts.share][7:8]), f"variant {variant}: a row alone, {dtype}"


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(m=st.integers(1, 70), eights=st.integers(1, 1500), n=st.integers(1, 5), variant=st.sampled_from(sorted(VARIANTS)),
       dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**16))  # fmt: skip
def test_random_shapes_are_right(gemv64: host_gemv.Gemv, m: int, eights: int, n: int, variant: int, dtype: str, seed: int) -> None:
    weight, x = tensors(m, eights * 8, min(n, VARIANTS[variant].most_n), dtype, seed)
    assert wrong(run(gemv64, weight, x, dtype, variant), weight, x, dtype, variant) == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_as_exact_as_one_rounding(gemv64: host_gemv.Gemv, dtype: str) -> None:
    weight, x = tensors(4096, 5120, 1, dtype)
    out = run(gemv64, weight, x, dtype, 0)
    error = cases.relative(out[0], cases.exact(weight, x, dtype), dtype)
    sums = numerics.Sums(1, 1.0, float32_roundings(5120, VARIANTS[0].share))
    assert error <= numerics.ceiling(dtype, 4096, sums)
    assert error == pytest.approx(numerics.expected(dtype, sums), rel=0.05), "the derivation no longer describes the kernel"


def test_32_lanes_are_right_too() -> None:
    gemv = host_gemv.load(32)
    for variant in SAMPLE:
        for k in (8, 256, 264, 5120, 17408):
            weight, x = tensors(9, k, 2, "bfloat16", seed=k)
            values = cases.from_bits(weight, "bfloat16")
            bound = numerics.element_factor("bfloat16", numerics.Sums(1, 1.0, float32_roundings(k, VARIANTS[variant].share, 32)))
            off = np.abs(cases.from_bits(run(gemv, weight, x, "bfloat16", variant), "bfloat16") - cases.from_bits(x, "bfloat16") @ values.T)
            assert (off <= bound * (np.abs(cases.from_bits(x, "bfloat16")) @ np.abs(values).T)).all(), f"variant {variant}, K={k}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nans_come_out_as_such(gemv64: host_gemv.Gemv, dtype: str) -> None:
    weight, x = tensors(8, 520, 2, dtype)
    infinity, nan = {"bfloat16": (0x7F80, 0x7FC0), "float16": (0x7C00, 0x7E00)}[dtype]
    weight[1, 3], weight[2, 519], x[:, 3] = infinity, nan, x[:, 0] | 1
    out = cases.from_bits(run(gemv64, weight, x, dtype, 5), dtype)
    assert np.isinf(out[:, 1]).all()
    assert np.isnan(out[:, 2]).all()
    assert np.isfinite(np.delete(out, [1, 2], axis=1)).all()


def test_launches_are_counted_once_each(gemv64: host_gemv.Gemv) -> None:
    counted = np.zeros(9, np.uint64)
    weight, x = tensors(64, 512, 1, "bfloat16")
    for launch in range(1, 21):
        run(gemv64, weight, x, "bfloat16", launch % len(VARIANTS), counted.ctypes.data)
        assert counted[0] == launch == counted[1:].max()


@pytest.mark.parametrize(
    ("k", "n", "variant", "words"),
    [
        (512, 6, 9, "x has 6 rows; variant 9 takes 1 to 5"),
        (512, 4, 3, "x has 4 rows; variant 3 takes 1 to 3"),
        (512, 0, 9, "x has 0 rows"),
        (512, 1, 99, "variant is 99; there is none of that number"),
        (508, 1, 0, "K=508, not a multiple of 8"),
    ],
)
def test_the_host_refuses_before_a_launch(gemv64: host_gemv.Gemv, k: int, n: int, variant: int, words: str) -> None:
    weight, x = tensors(4, k, max(n, 1), "bfloat16")
    with pytest.raises(HostRefusal, match=words):
        run(gemv64, weight, x[:n], "bfloat16", variant)


def planted(old: str, new: str, file: str = "dcu/gemv_kernel.h") -> Mapping[str, str]:
    files = build.gemv_text()
    assert files[file].count(old) == 1, f"{old!r} is in {file} {files[file].count(old)} times"
    return {**files, file: files[file].replace(old, new)}


# name -> (old text, new text, K, M): each must break the numbers.
WRONG = {
    "a wrong shuffle": ("+ shuffle_xor(give, M)", "+ shuffle_xor(give, M == 16 ? 8 : M)", 1024, 16),
    "a shuffle step left out": ("const int mine = reduce<kLanes / 2>(sum, lane)", "const int mine = reduce<kLanes / 4>(sum, lane)", 1024, 16),
    "a swapped row": ("const int n = lane / R, r = lane % R;", "const int n = lane / R, r = lane % R ^ (R > 1);", 512, 16),
    "a lost tail of K": ("if (at < shape.vectors) add", "if (at < 0) add", 1032, 16),
    "a lost last row": ("if (group < shape.groups && row < shape.rows)", "if (group < shape.groups && row < shape.rows - 1)", 512, 13),
    "a wave's share left out": ("for (int s = 1; s < 1 << shape.share_shift; s++)", "for (int s = 2; s < 1 << shape.share_shift; s++)", 2048, 16),
    "an activation of another row": ("x[static_cast<std::int64_t>(n) * vectors", "x[static_cast<std::int64_t>(n ^ (N > 1)) * vectors", 512, 16),
    "the second half of a pair": ("return as_float(pair & 0xffff0000u)", "return as_float(pair << 16)", 512, 16),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_a_planted_fault_is_caught_by_name(gemv64: host_gemv.Gemv, fault: str) -> None:
    old, new, k, m = WRONG[fault]
    gemv = host_gemv.load(64, planted(old, new))
    weight, x = tensors(m, k, 2, "bfloat16")
    assert wrong(run(gemv64, weight, x, "bfloat16", 12), weight, x, "bfloat16", 12) == ""
    assert wrong(run(gemv, weight, x, "bfloat16", 12), weight, x, "bfloat16", 12) != "", f"{fault} went unseen"


def test_a_lane_that_leaves_before_a_shuffle_is_a_fault() -> None:
    gemv = host_gemv.load(64, planted("  const Words* rows[R];\n", "  const Words* rows[R];\n  if (lane == 5) return;\n"))
    weight, x = tensors(8, 512, 1, "bfloat16")
    with pytest.raises(HostFault, match="does not take part"):
        run(gemv, weight, x, "bfloat16", 9)


# name -> (sanitizer, old text, new text, K, M, what it says).
FOUND = {
    "a row too far": ("address", "(row < shape.rows ? row : shape.rows - 1)", "row", 512, 5, "heap-buffer-overflow"),
    "a piece too far": ("address", "if (at < shape.vectors) add", "if (true) add", 520, 8, "heap-buffer-overflow"),
    "the barrier gone": ("memory", "  __syncthreads();\n", "", 4096, 8, "use-of-uninitialized-value"),
    "a lost last row": ("memory", "row < shape.rows)", "row < shape.rows - 1)", 512, 8, "use-of-uninitialized-value"),
}


def watched(kind: str, files: Mapping[str, str], request: pytest.FixtureRequest) -> Path:
    clang = request.getfixturevalue("toolchain").tool("clang++") if kind == "memory" else None
    return build.build_gemv(files, kind=kind, wave=64, clang=clang)


@pytest.mark.parametrize("kind", ["address", "memory"])
def test_sanitizers_find_nothing_and_see_the_same_bits(
    gemv64: host_gemv.Gemv, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    program = watched(kind, build.gemv_text(), request)
    for i, variant in enumerate(SAMPLE):
        for k in (8, 520, 5120):
            dtype = DTYPES[(i + k // 8) % 2]
            weight, x = tensors(5, k, 1 + (i + k // 8) % 3, dtype, seed=k)
            weight[0, :4] = [0x0001, 0x8001, 0x7BFF, 0x0400]
            seen = cases.watch(program, tmp_path, weight, x, dtype, variant)
            assert seen.code == 0, f"variant {variant} K={k} {dtype}: {seen.said[-2000:]}"
            assert seen.out is not None
            assert np.array_equal(seen.out.reshape(x.shape[0], -1), run(gemv64, weight, x, dtype, variant)), f"variant {variant} K={k}"


@pytest.mark.parametrize("fault", FOUND)
def test_a_planted_fault_is_named_by_a_sanitizer(fault: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    kind, old, new, k, m, name = FOUND[fault]
    weight, x = tensors(m, k, 1, "bfloat16")
    # Four rows a wave; or, for the barrier, waves that share them.
    seen = cases.watch(watched(kind, planted(old, new), request), tmp_path, weight, x, "bfloat16", 6)
    assert seen.code != 0
    assert name in seen.said
