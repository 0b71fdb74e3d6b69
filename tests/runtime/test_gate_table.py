"""Each condition of the gate alone, and each planted one-line change of the gate caught by the same table."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import pytest
import torch
from vllm.dcu import gate
from vllm.dcu.dispatch.countfiles import CELLS
from vllm.dcu.dispatch.reasons import CALL_REASONS
from vllm.dcu.env import Mode, Switches
from vllm.dcu.records.record import Verdict

from tests.mutate import Mutant, load, mutants
from tests.runtime.dcu import SMALL, K, M, Native, context, gemv_record, tallied
from tests.runtime.gate_table import FAILING, TABLE, Case, check, same, w_, x_

SOURCE = Path(gate.__file__)

EQUIVALENT = {
    "_decide: n is not None and record is not default: without its part 1": "None was taken out just before; it is said for the type checker",
    "_refusal: shape != slot.x_shape: always": "what is asked inside holds for [N, K] too",
    "rocm_unquantized_gemm_dcu: out if x.dim() == 2 else out.view(*x.shape[:-1], slot.m): never": "viewing [1, M] as [1, M] is no change",
    "rocm_unquantized_gemm_dcu: x if x.dim() == 2 else x.view(slot.rows, slot.k): never": "viewing [1, K] as [1, K] is no change",
}
"""Planted changes that change nothing, each with the reason: all are shortcuts."""


@pytest.mark.parametrize("case", TABLE + FAILING, ids=lambda case: case.name)
def test_each_condition_alone(case: Case) -> None:
    check(gate, (case,))


def test_every_reason_of_a_call_is_in_the_table() -> None:
    told = {case.answer for case in TABLE + FAILING}
    assert {reason.value for reason in CALL_REASONS} - told == {"undecidable", "kernel-raised"}


def behaves(module: ModuleType) -> None:
    """All that is asked of a gate: the table, then what a table of single calls cannot ask."""
    check(module)
    native = Native()
    built = module.build(context(native), (SMALL,))
    for _ in range(3):
        built.gemm(x_(1, K), w_())
        built.gemm(x_(2, K), w_())
        built.gemm(x_(1, M), w_(K, M))
        built.gemm(x_(3, M), w_(K, M))
        built.gemm(x_(4, M), w_(K, M))
    assert len(native.calls) == 3
    counts = built.tally.snapshot()
    assert tallied(counts) == {"hit": 3, "rows": 3, "no-record": 9}
    assert {(c.key.rows, c.key.m, c.key.k, c.value) for c in counts if c.key.record is None} == {("1", K, M, 3), ("other", K, M, 6)}
    doubt_is_generic(module)
    closed_stays_closed(module)
    raises_once(module)
    survives_what_linear_refuses_too(module)
    counts_without_room(module)
    reports_a_frequent_miss_once(module)
    stands_side_by_side(module)


class Odd(torch.Tensor):
    """A tensor that cannot say how it is laid out."""

    def is_contiguous(self, *args: object, **kwargs: object) -> bool:
        raise RuntimeError("it depends")


def doubt_is_generic(module: ModuleType) -> None:
    """A condition that cannot be read is no exception: it is `F.linear`."""
    native = Native()
    built = module.build(context(native), (SMALL,))
    assert same(built.gemm(x_(1, K).as_subclass(Odd), w_()).as_subclass(torch.Tensor), torch.nn.functional.linear(x_(1, K), w_()))
    assert native.calls == []
    assert tallied(built.tally.snapshot()) == {"undecidable": 1}


def closed_stays_closed(module: ModuleType) -> None:
    """A switch, batch-invariant mode and every standing reason: no native call, the generic result, the first reason counted under the record."""
    native = Native()
    switches = Switches(batch_invariant=True, capabilities={"small": Mode.OFF})
    built = module.build(context(native, switches=switches), (SMALL,))
    assert same(built.gemm(x_(1, K), w_()), torch.nn.functional.linear(x_(1, K), w_()))
    built.gemm(x_(2, 2, K), w_())
    built.gemm(x_(1, K), w_(1, K).view(K))
    assert native.calls == []
    told = {(c.key.m, c.key.k, c.key.record, c.key.reason, c.key.rows) for c in built.tally.snapshot()}
    assert told == {
        (M, K, "small", "capability-off", "1"),
        (M, K, "small", "capability-off", "other"),
        (-1, -1, None, "no-record", "other"),
    }


def reports_a_frequent_miss_once(module: ModuleType) -> None:
    """However often a call is refused, one line for each shape and reason, and only when it is frequent."""
    said: list[str] = []
    known = {name: getattr(module, name) for name in ("FREQUENT", "_report_frequent")}
    try:
        module.FREQUENT = 5  # type: ignore[attr-defined]
        module._report_frequent = lambda slot, refused: said.append(CALL_REASONS[refused].value)  # type: ignore[attr-defined]
        built = module.build(context(Native()), (SMALL,))
        for times, expected in ((4, []), (1, ["rows"]), (20, ["rows"])):
            for _ in range(times):
                built.gemm(x_(2, K), w_())
                built.gemm(x_(2, M), w_(K, M))
            assert said == expected
    finally:
        for name, value in known.items():
            setattr(module, name, value)


def raises_once(module: ModuleType) -> None:
    """A native operator that raises is never called again, and its calls get the generic result."""

    def broken(*args: object) -> torch.Tensor:
        calls.append(args)
        raise RuntimeError("no kernel image")

    calls: list[object] = []
    built = module.build(context(broken), (SMALL,))
    for rows in (1, 1, 2):
        assert torch.equal(built.gemm(x_(rows, K), w_()), torch.nn.functional.linear(x_(rows, K), w_()))
    assert len(calls) == 1
    assert tallied(built.tally.snapshot()) == {"kernel-raised": 3}


def survives_what_linear_refuses_too(module: ModuleType) -> None:
    """Only an error of the kernel's own shuts it: after freed storages, and after an error that `F.linear` raises as well, it still hits."""
    real, lost = torch.nn.functional.linear, [False]

    def linear(*args: object) -> torch.Tensor:
        if lost[0]:
            raise RuntimeError("the device is lost")
        return real(*args)  # type: ignore[arg-type]

    native = Native()

    def kernel(weight: torch.Tensor, x: torch.Tensor, *args: int) -> torch.Tensor:
        if lost[0]:
            raise RuntimeError("the kernel's words for it")
        return native(weight, x, *args)

    torch.nn.functional.linear = linear  # type: ignore[assignment]
    try:
        built = module.build(context(kernel), (SMALL,))
        gemm = built.gemm
    finally:
        torch.nn.functional.linear = real
    for freed in (0, 1):
        pair = (x_(1, K).clone(), w_().clone())
        pair[freed].untyped_storage().resize_(0)
        with pytest.raises(RuntimeError):
            gemm(*pair)
    assert not native.calls, "a kernel is never given a null pointer"
    lost[0] = True
    with pytest.raises(RuntimeError, match="the device is lost"):
        gemm(x_(1, K), w_())
    lost[0] = False
    gemm(x_(1, K), w_())
    assert tallied(built.tally.snapshot()) == {"undecidable": 2, "hit": 1}


def stands_side_by_side(module: ModuleType) -> None:
    """Another kernel for each N of a weight, that N exactly; a raise closes them all, and without cells for each none is kept."""
    native, broken = Native(), []
    records = (SMALL, gemv_record(2, 9), gemv_record(4, 13), gemv_record(5, 1, Verdict.CLOSED))
    built = module.build(context(native), records)
    for _ in range(2):
        for n in (1, 2, 3, 4, 5):
            built.gemm(x_(n, K), w_())
    built.gemm(x_(2, K), w_(), x_(M))
    built.gemm(x_(1, 2, K), w_())
    assert native.calls == [((M, K), (1, K), (4,)), ((M, K), (2, K), (9,)), ((M, K), (4, K), (13,))] * 2 + [((M, K), (2, K), (9,))]
    counts = {(c.key.record, c.key.reason or "hit", c.key.rows): c.value for c in built.tally.snapshot()}
    assert counts == {
        ("small", "hit", "1"): 2, ("small", "rows", "any"): 2, ("n2-v9", "hit", "other"): 3, ("n2-v9", "bias", "any"): 1,
        ("n4-v13", "hit", "other"): 2, ("n5-v1", "negative-record", "other"): 2,
    }  # fmt: skip

    def raising(weight: torch.Tensor, x: torch.Tensor, *args: int) -> torch.Tensor:
        broken.append(len(x))
        raise RuntimeError("planted")

    built = module.build(context(raising), records)
    for n in (2, 1, 4):
        built.gemm(x_(n, K), w_())
    assert broken == [2]
    built = module.build(context(native), records)
    built.tally.allocate(built.tally.keys * ((CELLS - 2 * len(CALL_REASONS)) // 2 - 1))
    assert torch.equal(built.gemm(x_(2, K), w_()), torch.nn.functional.linear(x_(2, K), w_()))
    assert inspect.getclosurevars(built.gemm).nonlocals["slots"] == {}, "all of them have cells, or none is kept"
    built = module.build(context(native), (SMALL,))
    built.gemm(x_(1, K), w_())
    (alone,) = inspect.getclosurevars(built.gemm).nonlocals["slots"].values()
    assert alone.others is None, "a weight with one record pays for no second look-up"


def counts_without_room(module: ModuleType) -> None:
    """When the counter cells are used up calls go to the generic operator and are still counted."""
    native = Native()
    built = module.build(context(native), (SMALL,))
    built.tally.allocate(built.tally.keys * (CELLS // 2 - 1))
    assert torch.equal(built.gemm(x_(1, K), w_()), torch.nn.functional.linear(x_(1, K), w_()))
    built.gemm(x_(1, M), w_(K, M))
    built.gemm(x_(2, M), w_(K, M))
    built.gemm(x_(2, M), w_(M, M))
    assert native.calls == []
    assert inspect.getclosurevars(built.gemm).nonlocals["slots"] == {}, "what is kept for each shape has to stay bounded"
    assert sum(count.value for count in built.tally.snapshot()) == 4


def test_the_gate_behaves() -> None:
    behaves(gate)


@pytest.mark.parametrize(
    "mutant",
    mutants(SOURCE, ["_refusal", "rocm_unquantized_gemm_dcu", "__call__", "_decide", "_made", "_opened", "_closed", "close"]),
    ids=lambda mutant: mutant.name,
)
def test_a_planted_change_is_caught(mutant: Mutant) -> None:
    module = load(mutant, "tests_gate_mutant")
    if mutant.name in EQUIVALENT:
        behaves(module)
        return
    with pytest.raises(Exception):  # noqa: B017, PT011  (an assertion of the table, or whatever the change breaks)
        behaves(module)
