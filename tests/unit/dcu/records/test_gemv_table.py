"""The variants of `_dcu_C::gemv`: one table in C++ and in Python, and what a record of one must say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from vllm.dcu.records.catalog import CATALOG, semantics_of
from vllm.dcu.records.gemv import MAX_N, MOST_N, VARIANTS, float32_roundings
from vllm.dcu.records.kernels import GEMV
from vllm.dcu.records.record import Contract, Record, RecordError, Verdict
from vllm.dcu.records.typed import dump, load

from scripts.common.paths import ROOT

HEADER = (ROOT / "csrc" / "dcu" / "gemv_variants.h").read_text(encoding="utf-8")


def rows_of(macro: str) -> list[tuple[int, ...]]:
    body = re.search(rf"#define {macro}\(X\)((?:[^\n]*\\\n)*[^\n]*)", HEADER)
    assert body
    return [tuple(int(word) for word in row.split(",")) for row in re.findall(r"X\(([^)]*)\)", body[1])]


def test_both_languages_state_the_same_variants() -> None:
    ours = [(v.number, v.rows, v.loads, v.share, v.waves, int(v.spread)) for v in VARIANTS.values()]
    assert ours == rows_of("VLLM_DCU_GEMV_VARIANTS")
    assert {(rows, loads): most for rows, loads, most in rows_of("VLLM_DCU_GEMV_BODIES")} == MOST_N
    assert f"#define VLLM_DCU_GEMV_MAX_N {MAX_N}\n" in HEADER


def test_every_variant_can_be_launched_and_no_kernel_is_compiled_for_nothing() -> None:
    assert {(v.rows, v.loads) for v in VARIANTS.values()} == set(MOST_N)
    assert len({replace(v, number=0) for v in VARIANTS.values()}) == len(VARIANTS)
    for v in VARIANTS.values():
        assert v.share in (1, 2, 4, 8)
        assert v.waves in (4, 8)
        assert v.waves % v.share == 0
        assert 3 <= v.most_n <= MAX_N


@pytest.mark.parametrize(
    ("k", "share", "sums"),
    [(8, 1, 8 + 6), (512, 1, 8 + 6), (520, 1, 16 + 6), (5120, 1, 80 + 6), (5120, 4, 24 + 6 + 3), (17408, 8, 40 + 6 + 7)],
)
def test_the_roundings_of_a_product(k: int, share: int, sums: int) -> None:
    assert float32_roundings(k, share) == sums


def a_record(n: int = 2, variant: int = 11) -> Record:
    built_in = next(r for r in CATALOG if r.verdict is Verdict.OPEN)
    contract = Contract("bfloat16", n, 5120, 17408, args={"variant": variant})
    ident = f"site-gemv-gfx936-bfloat16-n{n}-m5120-k17408-v{variant}"
    return replace(built_in, id=ident, kernel="GEMV", contract=contract, semantics=semantics_of(GEMV))


def test_a_record_names_kernel_rows_and_variant() -> None:
    data = dump(a_record())
    assert (data["kernel"], data["contract"]["n"], data["contract"]["args"]) == ("GEMV", 2, {"variant": 11})
    assert load(Record, data) == a_record()


@pytest.mark.parametrize(("n", "variant", "field"), [(6, 11, "contract.n"), (4, 3, "contract.n"), (2, 99, "contract.args")])
def test_a_record_of_what_was_not_compiled_is_refused(n: int, variant: int, field: str) -> None:
    with pytest.raises(RecordError) as refused:
        a_record(n, variant)
    assert refused.value.field == field


def test_the_catalogue_has_no_positive_record_of_it() -> None:
    assert [r.id for r in CATALOG if r.kernel == "GEMV" and r.verdict is Verdict.OPEN] == []
