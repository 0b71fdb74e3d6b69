"""Capability records: what the built-in ones claim, and what makes a record wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.dcu.records.catalog import CATALOG, check_catalog, records_by_id
from vllm.dcu.records.kernels import KERNELS, LLMM1, broken_limit
from vllm.dcu.records.record import Contract, Record, RecordError, Toolchain, Verdict
from vllm.dcu.records.strict import StrictError
from vllm.dcu.records.typed import dump, load

from scripts.common.paths import ROOT

FIRST = records_by_id()["llmm1-gfx936-bf16-n1-m34816-k5120"]


def changed(part: str, **fields: object) -> dict[str, object]:
    """The first record's data with `fields` of one part changed; part "" is the record itself."""
    data: dict[str, Any] = dump(FIRST)
    (data[part] if part else data).update(fields)
    return data


def test_exactly_one_record_opens_anything() -> None:
    assert [record.id for record in CATALOG if record.verdict is Verdict.OPEN] == [FIRST.id]


def test_the_first_record_states_the_report_exactly() -> None:
    assert FIRST.key == ("bfloat16", 34816, 5120)
    assert (FIRST.contract.n, FIRST.contract.alignment, FIRST.contract.args) == (1, 16, {"rows_per_block": 4})
    assert (FIRST.target.arch, FIRST.target.wavefront, FIRST.fallback) == ("gfx936", 64, "F.linear")


def test_the_first_record_claims_neither_throughput_nor_accuracy() -> None:
    hardware = [entry for entry in FIRST.evidence if entry.on_hardware]
    assert {entry.rung for entry in hardware} == {"service"}
    assert {entry.source for entry in hardware} == {"docs/evidence/field-report.md"}
    words = " ".join(entry.claim for entry in FIRST.evidence).lower()
    assert not any(word in words for word in ("token/s", "throughput", "faster", "accura", "speed", "ms"))


def unread(records: tuple[Record, ...]) -> list[str]:
    """What the catalogue claims about hardware that its source does not say: no such file, or a figure that is not in it."""
    found = []
    for record in records:
        for entry in (e for e in record.evidence if e.on_hardware):
            text = (ROOT / entry.source).read_text() if (ROOT / entry.source).is_file() else ""
            missing = [figure for figure in re.findall(r"\d+\.\d+", entry.claim) if figure not in text]
            if not text or missing:
                found.append(f"{record.id}: {entry.source} {missing}")
    return found


def test_a_claim_about_hardware_stands_in_the_file_that_it_names() -> None:
    assert unread(CATALOG) == []
    for planted in ({"source": "a public text"}, {"claim": "0.9999 ms"}):
        entry = replace(next(e for e in FIRST.evidence if e.on_hardware), **planted)
        assert unread((replace(FIRST, evidence=(entry,)),)) != []


def test_what_was_rehearsed_says_so_and_names_a_device_that_is_no_dcu() -> None:
    rehearsed = [entry for entry in FIRST.evidence if not entry.on_hardware]
    assert rehearsed
    for entry in rehearsed:
        assert entry.claim.startswith("rehearsal: ")
        assert "not gfx936" in entry.device or "simulated gfx936" in entry.device
        assert (ROOT / entry.source).is_file(), "the report it stands on is in this repository"


@pytest.mark.parametrize(("m", "k"), [(5120, 17408), (14336, 5120), (16384, 5120), (96, 5120), (5120, 6144), (248320, 5120)])
def test_the_other_decode_shapes_have_a_negative_record_with_a_time_to_look_again(m: int, k: int) -> None:
    (record,) = [r for r in CATALOG if r.key == ("bfloat16", m, k)]
    assert record.verdict is Verdict.CLOSED
    assert record.why
    assert record.revisit


@pytest.mark.parametrize("kernel", ["wvSplitK", "wvSplitKrc", "wvSplitKQ"])
def test_no_wvsplitk_can_be_opened_by_any_record(kernel: str) -> None:
    assert any(r.kernel == kernel and r.verdict is Verdict.CLOSED for r in CATALOG)
    with pytest.raises(StrictError, match="field 'kernel'"):
        load(Record, changed("", kernel=kernel))


@pytest.mark.parametrize("record", CATALOG, ids=lambda r: r.id)
def test_every_record_survives_being_written_and_read(record: Record) -> None:
    assert load(Record, json.loads(json.dumps(dump(record)))) == record


WRONG = [
    ("contract", {"k": 17408}, "contract.k"),  # LLMM1 sums no longer K
    ("contract", {"k": 8200}, "contract.k"),
    ("contract", {"k": 5124}, "contract.k"),
    ("contract", {"k": 0}, "contract.k"),
    ("contract", {"m": 34815}, "contract.m"),  # rows a block
    ("contract", {"m": 34818}, "contract.m"),
    ("contract", {"m": 0}, "contract.m"),
    ("contract", {"m": 262144, "k": 8192}, "contract.m"),  # exactly 2**31 elements
    ("contract", {"n": 2}, "contract.n"),
    ("contract", {"n": None}, "contract"),
    ("contract", {"m": None}, "contract"),
    ("contract", {"k": None}, "contract"),
    ("contract", {"dtype": None}, "contract"),
    ("contract", {"dtype": "float32"}, "contract.dtype"),
    ("contract", {"dtype": "float8_e4m3fn"}, "contract.dtype"),
    ("contract", {"alignment": 8}, "contract.alignment"),
    ("contract", {"args": {}}, "contract.args"),
    ("contract", {"args": {"rows_per_block": 3}}, "contract.args"),
    ("contract", {"args": {"rows_per_block": 4, "more": 1}}, "contract.args"),
    ("contract", {"n": 1.0}, "contract.n"),
    ("contract", {"n": True}, "contract.n"),
    ("contract", {"m": "34816"}, "contract.m"),
    ("contract", {"extra": 1}, "contract.extra"),
    ("target", {"arch": "gfx936:xnack-"}, "target.arch"),
    ("target", {"arch": "GFX936"}, "target.arch"),
    ("target", {"wavefront": 32}, "target.wavefront"),
    ("target", {"wavefront": 16}, "target.wavefront"),
    ("target", {"toolchain": {"torch": "2.10", "hip": "", "vllm": "0.18.1", "python": ""}}, "target.toolchain.hip"),
    ("target", {"toolchain": {"torch": "any", "hip": "6.2", "vllm": "0.18.1", "python": ""}}, "target.toolchain.torch"),
    ("target", {"toolchain": {"torch": "2.10", "hip": "6.2"}}, "target.toolchain.vllm"),
    ("semantics", {"schema": "_rocm_C::LLMM1(Tensor a) -> Tensor"}, "semantics.schema"),
    ("semantics", {"op": "_C::LLMM1"}, "semantics.schema"),
    ("semantics", {"mutates": ["in_a"]}, "semantics.mutates"),
    ("", {"semantics": None}, "semantics"),
    ("", {"id": "Not An Id"}, "id"),
    ("", {"kernel": "LLMM2"}, "kernel"),
    ("", {"verdict": "maybe"}, "verdict"),
    ("", {"fallback": "wvSplitK"}, "fallback"),
    ("", {"fallback": ""}, "fallback"),
    ("", {"why": " "}, "why"),
    ("", {"revisit": ""}, "revisit"),
    ("", {"evidence": []}, "evidence"),
    ("", {"evidence": "seen"}, "evidence"),
    ("", {"contract": 1}, "contract"),
    ("", {"surprise": 1}, "surprise"),
]


@pytest.mark.parametrize(("part", "fields", "field"), WRONG, ids=[f"{p}-{f}" for p, f, _ in WRONG])
def test_a_wrong_record_is_refused_with_the_name_of_its_field(part: str, fields: dict[str, object], field: str) -> None:
    with pytest.raises(StrictError) as refusal:
        load(Record, changed(part, **fields))
    assert refusal.value.field == field
    assert f"field {field!r}" in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rung": "hope"}, "evidence.rung"),
        ({"date": "last week"}, "evidence.date"),
        ({"claim": ""}, "evidence.claim"),
        ({"source": ""}, "evidence.source"),
        ({"device": ""}, "evidence.device"),
        ({"toolchain": ""}, "evidence.toolchain"),
        ({"on_hardware": 1}, "evidence[0].on_hardware"),
    ],
)
def test_wrong_evidence_is_refused_with_the_name_of_its_field(fields: dict[str, object], field: str) -> None:
    data: dict[str, Any] = dump(FIRST)
    data["evidence"][0].update(fields)
    with pytest.raises(StrictError) as refusal:
        load(Record, data)
    assert refusal.value.field == field


def test_a_rehearsal_opens_nothing() -> None:
    rehearsed = tuple(replace(entry, on_hardware=False) for entry in FIRST.evidence)
    with pytest.raises(RecordError, match="a rehearsal opens nothing"):
        replace(FIRST, evidence=rehearsed)


def test_data_that_is_no_object_is_refused() -> None:
    with pytest.raises(StrictError, match="not an object"):
        load(Record, [])


def test_a_field_left_out_is_refused() -> None:
    data: dict[str, Any] = dump(FIRST)
    del data["target"]
    with pytest.raises(StrictError, match="field 'target': is missing"):
        load(Record, data)


def test_one_id_cannot_stand_twice() -> None:
    with pytest.raises(RecordError, match="stands twice"):
        check_catalog((*CATALOG, FIRST))


def test_two_records_cannot_open_one_shape() -> None:
    with pytest.raises(RecordError, match="claims the same shape"):
        check_catalog((*CATALOG, replace(FIRST, id="another")))


@given(
    m=st.one_of(st.integers(-4, 300_000), st.sampled_from([34816, 262143, 262144, 262148])),
    k=st.one_of(st.integers(-8, 9000), st.sampled_from([8184, 8192, 8200])),
    rows=st.integers(0, 20),
)
def test_llmm1_computes_exactly_what_its_source_allows(m: int, k: int, rows: int) -> None:
    """The oracle is written from the kernel's source: row groups, 8-element reads, 16 waves of 64 lanes, a 32-bit row offset."""
    right = rows in {2, 4, 8, 16} and m > 0 and m % rows == 0 and k > 0 and k % 8 == 0 and k <= 16 * 64 * 8 and m * k < 2**31
    assert (broken_limit(LLMM1, "bfloat16", 1, m, k, {"rows_per_block": rows}) is None) == right


def test_a_kernel_that_the_gate_cannot_call_fits_nothing() -> None:
    assert broken_limit(KERNELS["wvSplitK"], "bfloat16", 1, 64, 64, {}) is not None


@pytest.mark.parametrize(
    ("running", "phrases"),
    [
        (Toolchain("2.10.0+das.opt1", "6.2.41133-dd7f95766", "0.18.1+gfx936.3"), ()),
        (Toolchain("2.10", "6.2", "0.18.1"), ()),
        (Toolchain("2.1.0", "6.2", "0.18.1"), ("torch is 2.1.0, verified with 2.10",)),
        (Toolchain("2.100.0", "6.2", "0.18.1"), ("torch is 2.100.0, verified with 2.10",)),
        (Toolchain("2.10.0", "6.3.26093", "0.18.1"), ("hip is 6.3.26093, verified with 6.2",)),
        (Toolchain("2.10.0", "6.20", "0.18.1"), ("hip is 6.20, verified with 6.2",)),
        (Toolchain("2.10.0", "", "0.18.1"), ("hip is unknown, verified with 6.2",)),
        (Toolchain("2.10.0", "6.2", "0.18.10"), ("vllm is 0.18.10, verified with 0.18.1",)),
        (Toolchain("2.10.0", "6.2", "0.18"), ("vllm is 0.18, verified with 0.18.1",)),
        (
            Toolchain("2.9", "5.7", "dev"),
            ("torch is 2.9, verified with 2.10", "hip is 5.7, verified with 6.2", "vllm is dev, verified with 0.18.1"),
        ),
    ],
)
def test_a_toolchain_fits_by_whole_components(running: Toolchain, phrases: tuple[str, ...]) -> None:
    assert FIRST.target.toolchain.mismatches(running) == phrases


def test_a_negative_record_may_be_about_any_shape() -> None:
    record = records_by_id()["wvsplitk-gfx936"]
    assert record.contract == Contract(None, None, None, None)
    assert record.key is None
