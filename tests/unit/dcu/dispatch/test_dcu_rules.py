"""Why a record takes a call or does not: each reason alone, all of them together, and the order in which they are told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm.dcu.ask.explain import as_json, as_text, explain
from vllm.dcu.device.footing import Footing
from vllm.dcu.dispatch.context import Context, NativeOp, assumed_context
from vllm.dcu.dispatch.reasons import CALL_REASONS, STANDING_REASONS, Reason, as_markdown
from vllm.dcu.dispatch.rules import Call, call_reasons, candidates, choose, standing_reasons, unknown_capabilities
from vllm.dcu.env import Mode, Switches
from vllm.dcu.records.catalog import CATALOG, MISSION, records_by_id
from vllm.dcu.records.kernels import LLMM1
from vllm.dcu.records.record import Toolchain

FIRST = MISSION
DOWN = records_by_id()["llmm1-gfx936-bf16-n1-m5120-k17408"]
OPEN = Context(
    arch="gfx936",
    device_type="cuda",
    toolchain=Toolchain("2.10.0", "6.2.0", "0.18.1"),
    ops={LLMM1.op: NativeOp(LLMM1.schema, print)},
    code_objects=frozenset({"gfx936"}),
    simulated="unit test",
)
FIT = Call("bfloat16", 1, 34816, 5120)


def switched(**fields: object) -> Context:
    return replace(OPEN, switches=Switches(**fields))  # type: ignore[arg-type]


def test_with_everything_in_place_nothing_stands_against_the_record() -> None:
    assert standing_reasons(FIRST, OPEN) == ()


STANDING = [
    (replace(OPEN, arch="gfx928"), Reason.ARCH),
    (replace(OPEN, footing=Footing("1", ("rocm.py is not the file that was built",))), Reason.BUILD_EDITED),
    (replace(OPEN, footing=Footing(unknown="there is no manifest")), Reason.BUILD_UNKNOWN),
    (switched(skinny_gemm=False), Reason.SKINNY_GEMM_OFF),
    (switched(capabilities={FIRST.id: Mode.OFF}), Reason.CAPABILITY_OFF),
    (switched(batch_invariant=True), Reason.BATCH_INVARIANT),
    (replace(OPEN, ops={}), Reason.OP_MISSING),
    (replace(OPEN, ops={LLMM1.op: NativeOp("_rocm_C::LLMM1(Tensor a, Tensor b) -> Tensor", print)}), Reason.OP_SCHEMA),
    (replace(OPEN, code_objects=None), Reason.CODE_OBJECT_UNKNOWN),
    (replace(OPEN, code_objects=frozenset()), Reason.CODE_OBJECT_MISSING),
    (replace(OPEN, code_objects=frozenset({"gfx90a"})), Reason.CODE_OBJECT_MISSING),
    (replace(OPEN, toolchain=Toolchain("2.9.1", "6.2.0", "0.18.1")), Reason.TOOLCHAIN),
    (replace(OPEN, toolchain=Toolchain("2.10.0", "6.3.26093", "0.18.1")), Reason.TOOLCHAIN),
    (replace(OPEN, toolchain=Toolchain("2.10.0", "6.2.0", "0.19.0")), Reason.TOOLCHAIN),
    (replace(OPEN, beside="hcu.Platform of vllm-hcu 1"), Reason.BESIDE_UNVERIFIED),
]


@pytest.mark.parametrize(("context", "reason"), STANDING, ids=[f"{r.value}-{i}" for i, (_, r) in enumerate(STANDING)])
def test_each_missing_fact_closes_the_record_with_its_own_reason(context: Context, reason: Reason) -> None:
    assert standing_reasons(FIRST, context) == (reason,)


def test_every_standing_reason_can_be_reached() -> None:
    """Those about the site's own evidence have tests of their own (test_site.py)."""
    of_the_site = {Reason.SITE_LAPSED, Reason.SITE_UNFINISHED, Reason.SITE_FAILED, Reason.SITE_REFUSED}
    assert {reason for _, reason in STANDING} | of_the_site | {Reason.NO_RECORD, Reason.NEGATIVE_RECORD} == set(STANDING_REASONS)


def test_all_standing_reasons_are_told_in_the_catalogues_order() -> None:
    worst = Context(
        "gfx90a", "cuda", Toolchain("1.0", "5.0", "0.1"), switches=Switches(False, True, {FIRST.id: Mode.OFF}), code_objects=None
    )
    told = standing_reasons(FIRST, worst)
    assert list(told) == [r for r in STANDING_REASONS if r in told]
    assert len(told) == 7


FORCEABLE = (Reason.TOOLCHAIN, Reason.BUILD_UNKNOWN, Reason.BESIDE_UNVERIFIED)


def test_force_opens_against_what_was_not_shown_and_nothing_else() -> None:
    for context, reason in STANDING:
        if reason is not Reason.CAPABILITY_OFF:
            forced = replace(context, switches=replace(context.switches, capabilities={FIRST.id: Mode.FORCE}))
            assert standing_reasons(FIRST, forced) == (() if reason in FORCEABLE else (reason,))


def test_a_negative_record_is_never_open() -> None:
    for record in CATALOG:
        if record.id != FIRST.id:
            assert standing_reasons(record, OPEN) == (Reason.NEGATIVE_RECORD,)


CALLS = [
    (replace(FIT, bias=True), Reason.BIAS),
    (replace(FIT, n=2), Reason.ROWS),
    (replace(FIT, n=0), Reason.ROWS),
    (replace(FIT, x_k=2560), Reason.INNER),
    (replace(FIT, x_dtype="float16"), Reason.DTYPE),
    (replace(FIT, strided=False), Reason.LAYOUT),
    (replace(FIT, x_contiguous=False), Reason.ACTIVATION_STRIDES),
    (replace(FIT, weight_contiguous=False), Reason.WEIGHT_STRIDES),
    (replace(FIT, x_offset=8), Reason.ACTIVATION_ALIGNMENT),
    (replace(FIT, weight_offset=2), Reason.WEIGHT_ALIGNMENT),
    (replace(FIT, device_type="cpu"), Reason.DEVICE),
]


def test_a_call_that_fits_is_taken() -> None:
    found = explain(FIT, OPEN)
    assert (found.taken, found.reasons) == (FIRST.id, ())
    assert call_reasons(FIRST, FIT, "cuda") == ()


@pytest.mark.parametrize(("call", "reason"), CALLS, ids=[f"{r.value}-{i}" for i, (_, r) in enumerate(CALLS)])
def test_each_condition_of_a_call_refuses_with_its_own_reason(call: Call, reason: Reason) -> None:
    found = explain(call, OPEN)
    assert (found.taken, found.reasons) == (None, (reason,))


def test_every_call_reason_is_reached_here_or_is_about_failure() -> None:
    assert {reason for _, reason in CALLS} == set(CALL_REASONS) - {Reason.UNDECIDABLE, Reason.KERNEL_RAISED}


def test_all_reasons_of_a_call_are_told_in_the_order_of_the_questions() -> None:
    worst = Call("bfloat16", 7, 34816, 5120, True, "float16", 2560, False, False, False, 2, 2, "cpu")
    assert call_reasons(FIRST, worst, "cuda") == tuple(r for r, _ in zip(CALL_REASONS, range(10), strict=False))


@pytest.mark.parametrize(
    ("dtype", "m", "k", "reason"),
    [
        ("bfloat16", 5120, 17408, Reason.NEGATIVE_RECORD),
        ("bfloat16", 14336, 5120, Reason.NEGATIVE_RECORD),
        ("bfloat16", 17408, 5120, Reason.NO_RECORD),  # the halves of tensor parallelism
        ("bfloat16", 34816, 2560, Reason.NO_RECORD),
        ("bfloat16", 34815, 5120, Reason.NO_RECORD),
        ("bfloat16", 34818, 5120, Reason.NO_RECORD),
        ("bfloat16", 5120, 34816, Reason.NO_RECORD),
        ("float16", 34816, 5120, Reason.NO_RECORD),
        ("float32", 34816, 5120, Reason.NO_RECORD),
    ],
)
def test_every_other_weight_goes_to_the_generic_operator(dtype: str, m: int, k: int, reason: Reason) -> None:
    assert explain(Call(dtype, 1, m, k), OPEN).reasons == (reason,)


def test_an_open_record_is_chosen_before_a_closed_one_and_a_positive_before_a_negative() -> None:
    found = candidates(CATALOG, "bfloat16", 34816, 5120)
    assert choose(found, {r.id: standing_reasons(r, OPEN) for r in found}) is FIRST
    closed = replace(FIRST, id="closed")
    assert choose([closed, FIRST], {"closed": (Reason.TOOLCHAIN,), FIRST.id: ()}) is FIRST
    assert choose([DOWN, FIRST], {DOWN.id: (Reason.NEGATIVE_RECORD,), FIRST.id: (Reason.TOOLCHAIN,)}) is FIRST
    assert choose([], {}) is None


def test_a_capability_nobody_knows_is_named_with_the_known_ones() -> None:
    (sentence,) = unknown_capabilities(switched(capabilities={"llmm9": Mode.OFF}), CATALOG)
    assert "'llmm9'" in sentence
    assert FIRST.id in sentence


def test_a_negative_record_cannot_be_forced_but_may_be_named() -> None:
    assert unknown_capabilities(switched(capabilities={DOWN.id: Mode.OFF, FIRST.id: Mode.FORCE}), CATALOG) == ()
    (sentence,) = unknown_capabilities(switched(capabilities={DOWN.id: Mode.FORCE}), CATALOG)
    assert "cannot be forced" in sentence


def test_an_explanation_names_every_candidate_and_what_runs() -> None:
    text = as_text(explain(replace(FIT, n=2, bias=True), OPEN))
    for part in ("[bias]", "[rows]", "wvsplitk-gfx936", "wvsplitkrc-gfx936", "wvsplitkq-gfx936", "runs      F.linear", "unit test"):
        assert part in text
    assert text.count("not taken") == 4


def test_an_explanation_as_data_has_the_same_answer() -> None:
    data = as_json(explain(FIT, OPEN))
    assert (data["taken"], data["runs"], data["simulated"]) == (FIRST.id, "LLMM1", "unit test")
    assert [c["id"] for c in data["candidates"] if c["taken"]] == [FIRST.id]
    refused = as_json(explain(replace(FIT, x_offset=4), OPEN))
    assert (refused["runs"], refused["reasons"]) == ("F.linear", ["activation-alignment"])


def test_on_another_arch_the_gate_is_not_in_place() -> None:
    found = explain(FIT, assumed_context("gfx928", FIRST))
    assert (found.taken, found.reasons) == (None, (Reason.ARCH,))
    assert as_json(found)["runs"].startswith("upstream's own choice")


def test_an_assumed_device_says_that_it_is_assumed() -> None:
    assert "assumed" in assumed_context("gfx936:sramecc+:xnack-", FIRST).label
    assert explain(FIT, assumed_context("gfx936:sramecc+:xnack-", FIRST)).taken == FIRST.id


def test_the_catalogue_of_reasons_is_documented_whole() -> None:
    table = as_markdown()
    assert all(f"| `{reason.value}` |" in table for reason in Reason)
    assert len({reason.value for reason in Reason}) == len(Reason)
    assert all(reason.sentence.endswith(".") and reason.todo.endswith(".") for reason in Reason)
