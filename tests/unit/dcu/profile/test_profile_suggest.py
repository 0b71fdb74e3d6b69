"""Each kind of suggestion is provoked: what was planted is named first, with the milliseconds that were planted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from vllm.dcu.profile.account import account
from vllm.dcu.profile.report import Kind, Linear, Suggestion
from vllm.dcu.profile.suggest import Facts, suggestions
from vllm.dcu.profile.trace import Shape, trace_of

from tests.unit.dcu.profile.built_traces import BF16, Built, linear, step_of

READ = 1000.0  # GB/s: 52 MB of the sample's Linears in 52 us
WAIT = ("", 0.0, (), {"wait": True})
SLOW = Shape("bfloat16", 1, 1024, 1024)


def suggested(*planted: Any, device: bool, choices: Mapping[Shape, Linear] | None = None, **changes: Any) -> tuple[Suggestion, ...]:
    """What is suggested for the sample step with something planted in it."""
    table = account(trace_of(Built().step(step_of(*planted, device=device), 4).events), choices or {})
    step = sum(table.profiled) / len(table.profiled)
    facts = Facts(
        table.lines, step, 0.0, READ, 0.0, eager=False, captured=device, model="M", arguments=("--dtype", "auto"), compare="again"
    )
    return suggestions(replace(facts, **changes))


def op(name: str, us: float, device: bool, size: int = 5120) -> Any:
    more = {"dims": [[1, size]], "types": [BF16]}
    return (name, 3.0, (), {**more, "launch": [(f"k_{name}", us)]}) if device else (name, us, (), more)


def slow(us: float, device: bool, inner: str = "") -> Any:
    return linear(1024, 1024, launch=[("Cijk", us)], inner=inner) if device else linear(1024, 1024, us=us, inner=inner)


def choice(name: str = "F.linear", *reasons: str) -> dict[Shape, Linear]:
    return {SLOW: Linear("bfloat16", 1, 1024, 1024, "", name, reasons)}


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize(
    ("kind", "words", "plant"),
    [
        (Kind.OPERATOR, "planted::slow", lambda d: ((op("planted::slow", 5000.0, d),), {})),
        (Kind.LINEAR, "1024 x 1024", lambda d: ((slow(5000.0, d),), {"choices": choice("F.linear", "no-record")})),
        (Kind.SHUT, "shut: capability-off", lambda d: ((slow(5000.0, d),), {"choices": choice("F.linear", "capability-off")})),
        (Kind.SHUT, "the rules would give it to llmm1", lambda d: ((slow(5000.0, d),), {"choices": choice("llmm1")})),
        (Kind.LINEAR, "LLMM1 is below", lambda d: ((slow(5000.0, d, "_rocm_C::LLMM1"),), {"choices": choice("llmm1")})),
        (Kind.LINEAR, "LLMM1 is below", lambda d: ((slow(5000.0, d, "_rocm_C::LLMM1"),), {"choices": choice("F.linear", "rows")})),
        (Kind.GAP, "gpu_model_runner: forward", lambda d: ((*([WAIT] if d else []), ("", 5000.0)), {})),
        (Kind.COPY, "aten::to", lambda d: ((("aten::to", 0, [op("aten::copy_", 5000.0, d)]),), {})),
        (Kind.FUSION, "normalisations", lambda d: (tuple(op(f"aten::{i % 25}", 20.0, d) for i in range(250)), {"eager": True})),
    ],
)
def test_what_was_planted_is_named_first_with_its_milliseconds(kind: Kind, words: str, plant: Any, device: bool) -> None:
    nodes, more = plant(device)
    first = suggested(*nodes, device=device, **more)[0]
    assert first.kind is kind, first
    assert words in first.subject
    assert first.ms == pytest.approx(5.0, rel=0.1)
    if kind is Kind.LINEAR:
        assert first.command == "python -m vllm.dcu tune --model M --rows 1 -- --dtype auto"


def test_an_operator_on_the_cpu_is_named_first() -> None:
    first = suggested(WAIT, ("aten::sort", 5000.0), device=True)[0]
    assert (first.kind, first.ms) == (Kind.CPU, pytest.approx(5.0, rel=0.1))
    assert first.subject.startswith("aten::sort computes on the CPU")


def test_many_small_gaps_are_the_device_idle_less_what_the_profiler_costs() -> None:
    planted = [node for i in range(50) for node in (WAIT, ("", 100.0), op(f"aten::op{i}", 5.0, True))]
    first = suggested(*planted, device=True, eager=True, captured=False, arguments=("--enforce-eager", "--seed", "0"))[0]
    assert (first.kind, first.ms) == (Kind.IDLE, pytest.approx(5.0, rel=0.1))
    assert first.command == "vllm serve M --seed 0"
    reduced = suggested(*planted, device=True, cost=3000.0)[0]
    assert (reduced.kind, reduced.ms) == (Kind.IDLE, pytest.approx(2.0, rel=0.25))
    assert "--async-scheduling" in reduced.command


def test_rotary_and_norm_kernels_name_the_pass_that_joins_them() -> None:
    planted = [op(name, 20.0, True) for name in ("_C::rotary_embedding", "q::rms_norm") for _ in range(50)]
    found = [one for one in suggested(*planted, device=True) if one.kind is Kind.FUSION]
    assert "enable_qk_norm_rope_fusion" in found[0].command
    assert found[0].ms == pytest.approx(1.0, rel=0.1)
    assert not [one for one in suggested(*planted[50:], device=True) if one.kind is Kind.FUSION]


def test_attention_is_held_against_the_cache_that_it_reads() -> None:
    slow_attention = op("vllm::unified_attention", 5000.0, True)
    assert Kind.OPERATOR not in [one.kind for one in suggested(slow_attention, device=True)], "its floor is not known"
    first = suggested(slow_attention, device=True, kv=1e9)[0]
    assert (first.kind, first.ms) == (Kind.OPERATOR, pytest.approx(4.0, rel=0.1))


def test_every_kind_has_a_figure_a_command_and_a_refutation_and_nothing_small_is_said() -> None:
    found = suggested(op("planted::slow", 5000.0, True), WAIT, ("aten::sort", 900.0), device=True)
    assert [one.ms for one in found] == sorted((one.ms for one in found), reverse=True)
    assert all(one.figures and one.command and one.wrong_if for one in found)
    assert all(one.ms >= 0.05 for one in found)
    with pytest.raises(ValueError, match="has figures"):
        replace(found[0], figures={})
    fast = suggested(device=True, read=10.0)
    assert Kind.LINEAR not in [one.kind for one in fast], "a Linear at its floor is no suggestion"
