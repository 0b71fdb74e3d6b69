"""Records for several N of one weight stand side by side: each N is decided by its own, exactly, and what explains agrees with what runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.dcu import gate
from vllm.dcu.ask.explain import explain
from vllm.dcu.dispatch.rules import Call
from vllm.dcu.env import Mode, Switches
from vllm.dcu.evidence.site import Site, State, Status
from vllm.dcu.records.record import Verdict

from tests.runtime.dcu import K, M, Native, context, gemv_record
from tests.runtime.gate_table import same

LINEAR = torch.nn.functional.linear


def tensors(n: int, *, m: int = M, k: int = K) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, k).to(torch.bfloat16), torch.randn(m, k).to(torch.bfloat16)


@given(
    opened=st.dictionaries(st.integers(1, 4), st.sampled_from([0, 2, 9]), max_size=4),
    shut=st.sets(st.integers(1, 4), max_size=2),
    off=st.sets(st.integers(1, 4), max_size=2),
    lead=st.sampled_from([(1,), (2,), (3,), (4,), (5,), (0,), (64,), (1, 2), (2, 2), (4, 1)]),
    m=st.sampled_from([M, M, M, M + 2]),
    bias=st.booleans(),
)
@settings(max_examples=1500, deadline=None, derandomize=True)
def test_each_n_is_decided_by_its_own_gemv_record(
    opened: dict[int, int], shut: set[int], off: set[int], lead: tuple[int, ...], m: int, bias: bool
) -> None:
    records = (*(gemv_record(n, v) for n, v in opened.items()), *(gemv_record(n, 15, verdict=Verdict.CLOSED) for n in shut))
    modes = {gemv_record(n, opened[n]).id: Mode.OFF for n in off if n in opened}
    native = Native(mark=1000.0)
    around = context(native, switches=Switches(capabilities=modes))
    built = gate.build(around, records)
    x, weight = torch.randn(*lead, K).to(torch.bfloat16), torch.randn(m, K).to(torch.bfloat16)
    b = torch.zeros(m, dtype=torch.bfloat16) if bias else None
    n = x.numel() // K
    for _ in range(2):  # the first call makes the slot, the second finds it
        native.calls.clear()
        out = built.gemm(x, weight, b)
        taken = m == M and not bias and n in opened and n not in off
        assert native.calls == ([((M, K), (n, K), (opened[n],))] if taken else [])
        assert taken or same(out, LINEAR(x, weight, b))
    told = explain(Call("bfloat16", n, m, K, bias), around, records)
    (counted,) = built.tally.snapshot()
    assert counted.value == 2
    assert told.taken == (counted.key.record if counted.key.kind == "hit" else None)
    assert counted.key.reason == (None if told.taken else told.reasons[0].value)


@pytest.mark.parametrize(("times", "wanted"), [({}, 0), ({"n1-v9": 5.0}, 9), ({"n1-v9": 5.0, "n1-v0": 4.0}, 0)])
def test_of_several_open_ones_the_fastest_that_was_measured_decides(times: dict[str, float], wanted: int) -> None:
    native = Native()
    records = (gemv_record(1, 0), gemv_record(1, 9))
    site = Site(records, {r.id: Status(State.VERIFIED) for r in records}, times=times)
    built = gate.build(context(native, site=site), records)
    x, weight = tensors(1)
    built.gemm(x, weight, None)
    assert native.calls[0][2] == (wanted,)


def test_batch_invariant_mode_shuts_every_n() -> None:
    native = Native()
    built = gate.build(context(native, switches=Switches(batch_invariant=True)), (gemv_record(1), gemv_record(2)))
    for n in (1, 2):
        x, weight = tensors(n)
        assert same(built.gemm(x, weight, None), LINEAR(x, weight))
    assert native.calls == []
