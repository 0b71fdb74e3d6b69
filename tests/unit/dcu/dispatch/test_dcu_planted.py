"""Planted one-line changes of the rules, the kernel's limits, the record's validation and the grammar of switches: each is caught."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from vllm.dcu import env
from vllm.dcu.dispatch import rules
from vllm.dcu.evidence.site import Site, State, Status
from vllm.dcu.records import kernels, record, typed
from vllm.dcu.records.catalog import CATALOG
from vllm.dcu.records.kernels import GEMV, KERNELS, LLMM1
from vllm.dcu.records.strict import StrictError

from tests.mutate import Mutant, load, mutants
from tests.unit.dcu import test_dcu_env
from tests.unit.dcu.dispatch import test_dcu_rules
from tests.unit.dcu.records import test_dcu_record


def kernel_limits(module: types.ModuleType) -> None:
    """`broken_limit` against limits written from the kernel's source, at every edge."""
    args = {"rows_per_block": 4}
    table: list[tuple[tuple[object, ...], str | None]] = [
        (("bfloat16", 1, 34816, 5120, args), None),
        (("float16", 1, 4, 8, args), None),
        (("bfloat16", 1, 4, 8192, args), None),
        (("bfloat16", 1, 262140, 8192, args), None),
        (("bfloat16", 1, 262144, 8192, args), "m"),
        (("bfloat16", 1, 4, 8200, args), "k"),
        (("bfloat16", 1, 4, 12, args), "k"),
        (("bfloat16", 1, 4, 0, args), "k"),
        (("bfloat16", 1, 4, -8, args), "k"),
        (("bfloat16", 1, 0, 8, args), "m"),
        (("bfloat16", 1, -4, 8, args), "m"),
        (("bfloat16", 1, 6, 8, args), "m"),
        (("float32", 1, 4, 8, args), "dtype"),
        (("bfloat16", 0, 4, 8, args), "n"),
        (("bfloat16", 2, 4, 8, args), "n"),
        (("bfloat16", 1, 12, 8, {"rows_per_block": 3}), "args"),
        (("bfloat16", 1, 4, 8, {}), "args"),
        (("bfloat16", 1, 4, 8, {"rows_per_block": 4, "x": 1}), "args"),
    ]
    four_rows, one_row = {"variant": 9}, {"variant": 3}
    ours: list[tuple[tuple[object, ...], str | None]] = [
        (("bfloat16", 5, 1, 8, four_rows), None),
        (("float16", 3, 2**23 - 1, 2**31 - 8, one_row), None),
        (("bfloat16", 1, 262144, 8192, four_rows), None),
        (("bfloat16", 4, 1, 8, one_row), "n"),
        (("bfloat16", 6, 1, 8, four_rows), "n"),
        (("bfloat16", 0, 1, 8, four_rows), "n"),
        (("bfloat16", 1, 0, 8, four_rows), "m"),
        (("bfloat16", 1, 2**23, 8, four_rows), "m"),
        (("bfloat16", 1, 1, 2**31, four_rows), "k"),
        (("bfloat16", 1, 1, 12, four_rows), "k"),
        (("bfloat16", 1, 1, 0, four_rows), "k"),
        (("float32", 1, 1, 8, four_rows), "dtype"),
        (("bfloat16", 1, 1, 8, {"variant": 99}), "args"),
        (("bfloat16", 1, 1, 8, {"rows_per_block": 4}), "args"),
    ]
    for kernel, calls in ((LLMM1, table), (GEMV, ours)):
        for call, field in calls:
            broken = module.broken_limit(kernel, *call)
            assert (broken and broken[0]) == field, (kernel.name, call)
    assert module.broken_limit(KERNELS["wvSplitK"], "bfloat16", 1, 4, 8, args)[0] == "kernel"


def record_validation(module: types.ModuleType) -> None:
    """Every wrong record of the record tests is refused with its field, and every built-in one is accepted."""
    read = partial(typed.load, module.Record)
    for good in CATALOG:
        assert typed.dump(read(typed.dump(good))) == typed.dump(good)
    for part, fields, field in test_dcu_record.WRONG:
        with pytest.raises(StrictError) as refusal:
            read(test_dcu_record.changed(part, **fields))
        assert refusal.value.field == field
    for name in ("rung", "date", "claim", "source", "device", "toolchain"):
        data = typed.dump(test_dcu_record.FIRST)
        data["evidence"][0][name] = " "
        with pytest.raises(StrictError, match=rf"evidence\.{name}"):
            read(data)
    for fields in ({"wavefront": 16}, {"wavefront": 31}, {"wavefront": 65}):
        with pytest.raises(StrictError, match="wavefront"):
            read(negative(target=fields))
    assert read(negative(target={"wavefront": 32})).target.wavefront == 32
    with pytest.raises(StrictError, match="even a refusal has a source"):
        read(negative() | {"evidence": []})
    with pytest.raises(StrictError, match="not a kernel that the gate can call") as refusal:
        read(test_dcu_record.changed("", kernel="wvSplitK"))
    assert refusal.value.field == "kernel"
    assert read(negative()).key == ("bfloat16", 5120, 17408)
    for name in ("dtype", "m", "k"):
        assert read(negative(contract={name: None})).key is None
    data = typed.dump(test_dcu_record.FIRST)
    for entry in data["evidence"]:
        entry["on_hardware"] = False
    with pytest.raises(StrictError, match="rehearsal"):
        read(data)
    assert read(data | {"simulated": "a CPU"}).simulated == "a CPU"
    with pytest.raises(StrictError, match="not seen on hardware"):
        read(typed.dump(test_dcu_record.FIRST) | {"simulated": "a CPU"})


def negative(**parts: dict[str, object]) -> dict[str, object]:
    """The negative record of MLP down as data, with fields of its parts changed."""
    data = typed.dump(test_dcu_rules.DOWN)
    for part, fields in parts.items():
        data[part].update(fields)
    return data


def toolchains(module: types.ModuleType) -> None:
    """`_fits` by whole components."""
    for want, have, fits in (
        ("2.10", "2.10.0+das", True), ("2.10", "2.1.0", False), ("2.10", "2.100", False), ("6.2", "6.2", True), ("6.2", "6", False),
        ("6.2", "", False), ("6.2", "dev", False), ("0.18.1", "0.18.1+gfx936.2", True),
    ):  # fmt: skip
        assert module._fits(want, have) is fits, (want, have)


def standing_and_call_rules(module: types.ModuleType) -> None:
    """Each standing reason and each call reason alone, all together, and force."""
    first = test_dcu_rules.FIRST
    assert module.standing_reasons(first, test_dcu_rules.OPEN) == ()
    for context, reason in test_dcu_rules.STANDING:
        assert module.standing_reasons(first, context) == (reason,)
    for negative in CATALOG:
        if negative.id != first.id:
            assert module.standing_reasons(negative, test_dcu_rules.OPEN) == (test_dcu_rules.Reason.NEGATIVE_RECORD,)
    assert module.call_reasons(first, test_dcu_rules.FIT, "cuda") == ()
    for call, reason in test_dcu_rules.CALLS:
        assert module.call_reasons(first, call, "cuda") == (reason,)
    said = test_dcu_rules.replace(test_dcu_rules.FIT, x_k=5120, x_dtype="bfloat16", device_type="cuda")
    assert module.call_reasons(first, said, "cuda") == ()
    assert module.call_reasons(test_dcu_rules.records_by_id()["wvsplitk-gfx936"], test_dcu_rules.FIT, "cuda") == ()
    force = test_dcu_rules.Switches(capabilities={first.id: test_dcu_rules.Mode.FORCE})
    old = test_dcu_rules.Toolchain("1", "1", "1")
    other = test_dcu_rules.replace(test_dcu_rules.OPEN, toolchain=old)
    assert module.standing_reasons(first, test_dcu_rules.replace(other, switches=force)) == ()
    unknown = test_dcu_rules.replace(test_dcu_rules.OPEN, footing=test_dcu_rules.Footing(unknown="no manifest"))
    assert module.standing_reasons(first, test_dcu_rules.replace(unknown, switches=force)) == ()
    beside = test_dcu_rules.replace(test_dcu_rules.OPEN, beside="hcu.Platform of vllm-hcu 1")
    assert module.standing_reasons(first, test_dcu_rules.replace(beside, switches=force)) == ()
    for state, told in (
        (State.VERIFIED, ()),
        (State.UNFINISHED, (test_dcu_rules.Reason.SITE_UNFINISHED,)),
        (State.LAPSED, (test_dcu_rules.Reason.SITE_LAPSED,)),
        (State.FAILED, (test_dcu_rules.Reason.SITE_FAILED,)),
    ):
        seen = Site(status={first.id: Status(state)})
        assert module.standing_reasons(first, test_dcu_rules.replace(beside, site=seen)) == told
    assert (
        module.standing_reasons(first, test_dcu_rules.replace(test_dcu_rules.OPEN, site=Site(status={first.id: Status(State.UNFINISHED)})))
        == ()
    )
    evidence = tuple(replace(seen, on_hardware=False) for seen in first.evidence)
    of_a_simulation = replace(first, simulated="a CPU", evidence=evidence)
    assert module.standing_reasons(of_a_simulation, test_dcu_rules.OPEN) == (test_dcu_rules.Reason.ARCH,)
    assert module.standing_reasons(of_a_simulation, replace(test_dcu_rules.OPEN, simulated="a CPU")) == ()
    verified = Site(status={first.id: Status(State.VERIFIED)})
    assert module.standing_reasons(first, test_dcu_rules.replace(other, site=verified)) == ()


def choosing(module: types.ModuleType) -> None:
    """Which records are about a shape, and which of them decides it."""
    first, down, reason = test_dcu_rules.FIRST, test_dcu_rules.DOWN, test_dcu_rules.Reason
    for dtype, m, k, about in (
        ("bfloat16", 34816, 5120, True), ("float16", 34816, 5120, False), ("bfloat16", 34815, 5120, False), ("bfloat16", 34816, 5128, False),
    ):  # fmt: skip
        assert module.covers(first, dtype, m, k) is about
        assert (first in module.candidates(CATALOG, dtype, m, k)) is about
    everywhere = [r for r in CATALOG if r.key is None]
    assert all(module.covers(r, "int8", 1, 1) for r in everywhere)
    assert module.choose(everywhere, {}) is None
    assert module.choose([down, first], {down.id: (reason.NEGATIVE_RECORD,), first.id: (reason.TOOLCHAIN,)}) is first
    assert module.choose([down, first], {down.id: (), first.id: (reason.TOOLCHAIN,)}) is down
    other, two = replace(first, id="other"), replace(down, id="two", contract=replace(down.contract, n=2))
    standing = {first.id: (), other.id: (), two.id: (reason.NEGATIVE_RECORD,)}
    for n, times, wanted in (
        (None, None, first), (1, {}, first), (1, {"other": 3.0}, other), (None, {"other": 3.0, first.id: 2.0}, first),
        (2, None, two), (4, {"other": 3.0}, other),
    ):  # fmt: skip
        assert module.choose([first, other, two], standing, n, times) is wanted
    for modes, told in (({first.id: "FORCE"}, 0), ({down.id: "FORCE"}, 1), ({down.id: "OFF"}, 0), ({"x": "OFF"}, 1)):
        switches = test_dcu_rules.Switches(capabilities={ident: test_dcu_rules.Mode[mode] for ident, mode in modes.items()})
        assert len(module.unknown_capabilities(test_dcu_rules.replace(test_dcu_rules.OPEN, switches=switches), CATALOG)) == told


def grammar(module: types.ModuleType) -> None:
    """Switches, capability lists and batch-invariant mode."""
    for value, on in (("1", True), (" YES ", True), ("0", False), (" No ", False), ("", None), (None, None)):
        for default in (True, False):
            assert module.parse_switch("X", value, default) is (default if on is None else on)
    for value in ("nonsense", "2"):
        with pytest.raises(module.EnvError):
            module.parse_switch("X", value, True)
    ident = test_dcu_env.ID
    read = {key: mode.value for key, mode in module.parse_capabilities(f" {ident}=Force, a=0 ,, b=on").items()}
    assert read == {ident: "force", "a": "off", "b": "auto"}
    assert module.parse_capabilities(None) == {}
    with pytest.raises(module.EnvError, match="not of the form"):
        module.parse_capabilities("off")
    for value in ("A B=off", f"{ident}=maybe", f"{ident}=off,{ident}=off"):
        with pytest.raises(module.EnvError):
            module.parse_capabilities(value)
    for value, on in ((None, False), ("", False), ("0", False), ("off", False), ("1", True), ("7", True), ("?", True)):
        assert module._batch_invariant(value) is on


PLANTS: list[tuple[types.ModuleType, list[str], Callable[[types.ModuleType], None]]] = [
    (kernels, ["broken_limit", "_llmm1_limit", "_gemv_limit"], kernel_limits),
    (record, ["__post_init__", "_check_target", "_check_evidence", "_check_open", "key"], record_validation),
    (record, ["_fits"], toolchains),
    (rules, ["standing_reasons", "_build_reasons", "call_reasons", "is_forced"], standing_and_call_rules),
    (rules, ["covers", "choose", "unknown_capabilities"], choosing),
    (env, ["parse_switch", "parse_capabilities", "_mode", "_batch_invariant"], grammar),
]

EQUIVALENT = {
    "kernels._llmm1_limit: 0: one more": "M=1 is no multiple of any rows_per_block either",
    "kernels.broken_limit: 0: one more": "K=1 is no multiple of 8 either",
    "kernels._llmm1_limit: m * k: another operation (2)": "the number in the sentence, not the limit",
}
"""Planted changes that change no answer, each with the reason."""


def planted() -> list[tuple[str, Mutant, Callable[[types.ModuleType], None]]]:
    return [
        (f"{module.__name__.rpartition('.')[2]}.{mutant.name}", mutant, oracle)
        for module, functions, oracle in PLANTS
        for mutant in mutants(Path(module.__file__ or ""), functions)
    ]


PLANTED = planted()


@pytest.mark.parametrize("module_and_oracle", PLANTS, ids=lambda plant: plant[2].__name__)
def test_the_unchanged_module_is_right(module_and_oracle: tuple[types.ModuleType, list[str], Callable[[types.ModuleType], None]]) -> None:
    module, _, oracle = module_and_oracle
    oracle(module)


@pytest.mark.parametrize(("mutant", "oracle"), [(m, o) for _, m, o in PLANTED], ids=[name for name, _, _ in PLANTED])
def test_a_planted_change_is_caught(mutant: Mutant, oracle: Callable[[types.ModuleType], None], request: pytest.FixtureRequest) -> None:
    if any(request.node.name == f"test_a_planted_change_is_caught[{name}]" for name in EQUIVALENT):
        oracle(load(mutant, "tests_dcu_mutant"))
        return
    with pytest.raises((Exception, pytest.fail.Exception)):
        oracle(load(mutant, "tests_dcu_mutant"))
