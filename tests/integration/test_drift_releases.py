"""What clean rebases hide, found by the scan in the real releases: every item of the design's list, none of them named in a contract."""

from __future__ import annotations

from functools import cache

import pytest

from scripts.drift import contracts
from scripts.drift.contracts.model import BLOCK, REVIEW, Facts, Finding
from scripts.upstream.releases import read_pin
from tests.integration.upstream import tree

HIDDEN = (
    ("0.27.1", BLOCK, "arch-truth", "rocm._ON_CDNA is new and true for gfx936"),
    ("0.27.1", BLOCK, "arch-truth", "RocmPlatform.supports_fp8() is now true for gfx936"),
    ("0.27.1", BLOCK, "arch-truth", "rocm.use_rocm_custom_paged_attention() is now true for gfx936"),
    ("0.27.1", BLOCK, "native-ops", "LLMM1 now stands under #if !defined(VLLM_SKIP_SKINNY_GEMMS)"),
    ("0.27.1", BLOCK, "build-set", "1 new source(s) in _rocm_C would be built for gfx936: skinny_gemms_int4.cu"),
    ("0.22.1", BLOCK, "build-set", "hipify is now one shared target, closed before the end of the file"),
    ("0.22.1", BLOCK, "pins", "CMAKE_CXX_STANDARD changes from 17 to 20"),
    (
        "0.33.0",
        BLOCK,
        "python-code",
        "the GEMM implementation is chosen elsewhere: linear.py:UnquantizedLinearMethod.apply -> linear.py:UnquantizedLinearMethod.__init__",
    ),
    ("0.33.0", BLOCK, "native-ops", "WARP_SIZE's header moved from csrc/cuda_compat.h to csrc/core/cuda_compat.h"),
    ("0.33.0", REVIEW, "python-code", "5 new return(s) come before LLMM1's"),
    ("0.27.1", REVIEW, "build-set", "the object library _rocm_C_skinny of _rocm_C holds csrc/rocm/skinny_gemms.cu"),
    ("0.33.0", REVIEW, "python-code", "the graph pass allreduce_rms_fusion.py matches or makes calls of rocm_unquantized_gemm by its name"),
    ("0.33.0", REVIEW, "build-set", "+--offload-compress"),
    ("0.33.0", BLOCK, "build-set", "attention_dispatch.cu"),
    ("0.33.0", REVIEW, "pins", "Python 3.10, the reference device's, is out"),
    ("0.19.0", REVIEW, "arch-truth", "_get_backend_priorities() for gfx936 changes from [TRITON_ATTN] to [ROCM_ATTN, TRITON_ATTN]"),
    ("0.19.0", REVIEW, "environment", "VLLM_ROCM_CUSTOM_PAGED_ATTN is gone"),
)


@cache
def facts(version: str) -> Facts:
    return contracts.collect(tree(version))


@cache
def findings(version: str) -> tuple[Finding, ...]:
    return tuple(contracts.judge(facts(read_pin().version), facts(version)))


@pytest.mark.parametrize(("version", "level", "contract", "phrase"), HIDDEN, ids=lambda v: str(v)[:40])
def test_the_scan_finds_what_a_clean_rebase_hides(version: str, level: str, contract: str, phrase: str) -> None:
    rows = [f for f in findings(version) if f.contract == contract and phrase in f.sentence]
    assert [f.level for f in rows] == [level]
    assert rows[0].line > 0
    assert rows[0].path in tree(version).files


def test_the_kernel_and_its_helpers_are_the_same_text_in_all_of_them() -> None:
    for version in ("0.18.0", "0.19.0", "0.22.1", "0.27.1", "0.33.0"):
        regions = facts(version).of("native-ops", "region:")
        assert set(regions) == {"region:LLGemm1_kernel", "region:helpers of LLGemm1_kernel", "region:LLMM1"}
        assert {k: f.value for k, f in regions.items()} == {k: f.value for k, f in facts("0.18.1").of("native-ops", "region:").items()}


def test_a_neighbouring_release_is_nearly_silent() -> None:
    assert [f.level for f in findings("0.18.0") if f.level in (BLOCK, REVIEW)] == []
