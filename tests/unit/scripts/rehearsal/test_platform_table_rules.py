"""The rules that the platform table keeps, each broken once."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.rehearsal.platform_table import DCU, archs_of, differences, render

UPSTREAM = {
    DCU: {"platform class": "RocmPlatform", "rocm._ON_GFX9": "False", "attention": "TritonAttentionBackend"},
    "gfx90a": {"platform class": "RocmPlatform", "rocm._ON_GFX9": "True", "attention": "TritonAttentionBackend"},
}
PATCHED = {
    DCU: {"platform class": "DcuRocmPlatform", "rocm._ON_GFX936": "True", "rocm._ON_GFX9": "False", "attention": "TritonAttentionBackend"},
    "gfx90a": {
        "platform class": "RocmPlatform",
        "rocm._ON_GFX936": "False",
        "rocm._ON_GFX9": "True",
        "attention": "TritonAttentionBackend",
    },
}


def test_a_table_in_which_only_gfx936_differs_keeps_every_rule() -> None:
    assert differences(UPSTREAM, PATCHED) == []


@pytest.mark.parametrize(
    ("arch", "row", "value", "said"),
    [
        ("gfx90a", "platform class", "DcuRocmPlatform", "gfx90a: platform class is DcuRocmPlatform, upstream has RocmPlatform"),
        ("gfx90a", "rocm._ON_GFX9", "False", "gfx90a: rocm._ON_GFX9 is False, upstream has True"),
        ("gfx90a", "rocm._ON_GFX936", "True", "gfx90a: rocm._ON_GFX936, which the series adds, is True, not False"),
        ("gfx90a", "attention", None, "gfx90a: attention is gone (upstream: TritonAttentionBackend)"),
        (DCU, "rocm._ON_GFX9", "True", f"{DCU}: rocm._ON_GFX9 is True: an unverified path is open"),
        (DCU, "attention", "AiterFlashAttentionBackend", f"{DCU}: attention is AiterFlashAttentionBackend: an unverified path is open"),
        (DCU, "platform.supports_fp8()", "True", f"{DCU}: platform.supports_fp8() is True: an unverified path is open"),
        (DCU, "QuickAllReduce._rocm_arch_available()", "True", "an unverified path is open"),
        (DCU, "unquantized GEMM, N=1 M=4096 K=4096", "wvSplitK", "an unverified path is open"),
        (DCU, "rocm.use_rocm_custom_paged_attention(grid)", "96 of 288 (19d48d)", "an unverified path is open"),
        (DCU, "rocm_aiter_ops.is_enabled() (switches on)", "True", "an unverified path is open"),
        (DCU, "quantization fp8", "accepted", "an unverified path is open"),
    ],
)
def test_one_changed_cell_is_named(arch: str, row: str, value: str | None, said: str) -> None:
    upstream = {name: dict(rows) for name, rows in UPSTREAM.items()}
    patched = {name: dict(rows) for name, rows in PATCHED.items()}
    if value is None:
        del patched[arch][row]
    else:
        patched[arch][row] = value
        if row.startswith("rocm.use"):
            upstream[arch][row] = "0 of 288 (2d5565)"
    found = differences(upstream, patched)
    assert len(found) == 1, found
    assert said in found[0]


def test_the_document_shows_both_columns_of_gfx936() -> None:
    lines = render(UPSTREAM, PATCHED).splitlines()
    assert "| | gfx936 upstream | **gfx936 patched** | gfx90a |" in lines
    assert "| `platform class` | RocmPlatform | DcuRocmPlatform | RocmPlatform |" in lines
    assert "| `rocm._ON_GFX936` | - | yes | no |" in lines
    assert "| `attention` | TritonAttentionBackend |" in lines


def test_the_archs_are_those_that_upstream_builds_for_or_tells_apart(tmp_path: Path) -> None:
    (tmp_path / "vllm/platforms").mkdir(parents=True)
    (tmp_path / "CMakeLists.txt").write_text('set(HIP_SUPPORTED_ARCHS "gfx906;gfx1100")\n')
    (tmp_path / "vllm/platforms/rocm.py").write_text('x = ["gfx90a", "gfx12", "gfx936"]\n')
    assert archs_of(tmp_path) == ["gfx906", "gfx90a", "gfx1100"]
