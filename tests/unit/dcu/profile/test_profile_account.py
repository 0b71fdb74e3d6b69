"""The account: every microsecond of a step on exactly one line, and each on the right one."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm.dcu.profile.account import account, shapes_of
from vllm.dcu.profile.pieces import names_of
from vllm.dcu.profile.report import Group, Line, Linear, Place
from vllm.dcu.profile.trace import Shape, TraceError, read_trace, trace_of

from tests.unit.dcu.profile.built_traces import BF16, Built, linear, step_of


def lines_of(built: Built) -> tuple[Line, ...]:
    return account(trace_of(built.events), {}).lines


def only(lines: tuple[Line, ...], group: Group) -> Line:
    (found,) = [line for line in lines if line.group is group]
    return found


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_lines_add_up_to_the_step_whatever_ran(seed: int, device: bool) -> None:
    """Kernels that overlap, outlast their step, run beside the host or not at all; operators in operators, of any length."""
    dice, built = random.Random(seed), Built()
    for _ in range(9):
        begin = built.now
        for _ in range(dice.randrange(12)):
            inner = [("aten::copy_", dice.random() * 9)] if dice.random() < 0.5 else []
            launch = [("k", dice.random() * 90)] if device and dice.random() < 0.7 else []
            name = dice.choice(["", "aten::add", "[scope]", "vllm::rocm_unquantized_gemm"])
            built.node(name, dice.random() * 40, inner, {"launch": launch, "dims": [[1, 8], [4, 8]], "types": [BF16, BF16]})
        if device and dice.random() < 0.5:
            built.event("kernel", "other stream", begin + 5, dice.random() * 200, tid=98, correlation=-1)
        built.now += 1.0
        built.event("user_annotation", "vllm.dcu profile step", begin, built.now - begin)
    if device:
        built.event("gpu_memcpy", "Memcpy HtoD", 1000.5, 2.0, tid=97, correlation=-2)
    table = account(trace_of(built.events), {})
    assert all(line.us >= 0 for line in table.lines)
    lasted = sum(table.profiled) / len(table.profiled)
    assert sum(line.us for line in table.lines) == pytest.approx(lasted, rel=1e-9)
    assert sum(table.stacks.values()) == pytest.approx(lasted, rel=1e-9)


def test_on_a_device_time_belongs_to_kernels_and_the_rest_is_gaps() -> None:
    lines = lines_of(Built().step(step_of(device=True), 4))
    assert {line.group: round(line.us, 3) for line in lines if line.place is Place.DEVICE} == {
        Group.LINEAR: 120.0, Group.ATTENTION: 20.0, Group.NORM: 16.0, Group.SAMPLING: 10.0,
    }  # fmt: skip
    gemm = only(lines, Group.LINEAR)
    assert (gemm.calls, gemm.kernel, gemm.bytes) == (2.0, "Cijk_gemm", 2 * (5120 * 5120 + 5120 + 5120) * 2)
    assert gemm.gbs == pytest.approx(gemm.bytes / 120 / 1e3)
    first = next(line for line in lines if line.operator == "gpu_model_runner: preprocess")
    assert (first.place, first.kernel, first.us) == (Place.GAP, "before _C::rms_norm", 4.0)


def test_without_a_device_time_belongs_to_operators() -> None:
    lines = lines_of(Built().step(step_of(device=False), 4))
    assert only(lines, Group.LINEAR).us == 120.0
    assert sum(line.us for line in lines if line.group is Group.GAP) == 8.0


@pytest.mark.parametrize(
    ("node", "group", "kernel"),
    [
        (("aten::add", 0, [("aten::to", 0, [("aten::copy_", 30)])]), Group.COPY, "aten::copy_"),
        (("vllm::gdn_attention_core", 0, [("fused_recurrent_gated_delta_rule", 30)]), Group.DELTA_NET, "fused_recurrent_gated_delta_rule"),
        (("_C::rotary_embedding", 30), Group.ATTENTION, "_C::rotary_embedding"),
        (("_C::fused_add_rms_norm", 30), Group.NORM, "_C::fused_add_rms_norm"),
        (("[gpu_model_runner: sample]", 0, [("aten::div", 30)]), Group.SAMPLING, "aten::div"),
        (("aten::silu", 30), Group.OTHER, "aten::silu"),
    ],
)
def test_groups(node: tuple[object, ...], group: Group, kernel: str) -> None:
    line = only(lines_of(Built().step([node])), group)
    assert (line.us, line.kernel, line.calls) == (30, kernel, 1)


def test_an_operator_that_computes_on_the_host_is_told_from_one_that_launches() -> None:
    nodes = [("aten::sort", 400.0), ("aten::empty", 15.0), ("aten::mul", 50.0, (), {"launch": [("k", 10.0)]}), ("", 0, (), {"wait": True})]
    lines = lines_of(Built().step(nodes))
    assert {(line.operator, line.place): line.us for line in lines if line.group is Group.OTHER} == {
        ("aten::sort", Place.HOST): 400.0, ("aten::mul", Place.DEVICE): 10.0,
    }  # fmt: skip


def graph(*launches: tuple[str, float]) -> list[tuple[object, ...]]:
    return [("", 2.0, (), {"launch": launches, "graph": True}), ("", 0.0, (), {"wait": True})]


def test_a_graphs_kernels_take_their_names_from_the_eager_run_in_order() -> None:
    """One library kernel serves two shapes: only the order tells them apart."""
    eager = [
        linear(64, 32, launch=[("gemm", 9.0)]),
        linear(128, 32, launch=[("gemm", 9.0)]),
        ("_C::act", 1, (), {"launch": [("act", 4.0)]}),
    ]
    names = names_of(trace_of(Built().step(eager, 2).events))
    built = Built().step(graph(("gemm", 10.0), ("gemm", 20.0), ("act", 5.0), ("triton_fused", 7.0)), 3)
    lines = account(
        trace_of(built.events), {Shape("bfloat16", 1, 128, 32): Linear("bfloat16", 1, 128, 32, "", "some-record", ("bias",))}, names
    ).lines
    found = {line.linear.m if line.linear else line.operator or line.kernel: line for line in lines if line.place is Place.DEVICE}
    assert {name: (line.us, line.calls) for name, line in found.items()} == {
        64: (10.0, 1), 128: (20.0, 1), "_C::act": (5.0, 1), "triton_fused": (7.0, 1),
    }  # fmt: skip
    assert found[128].linear == Linear("bfloat16", 1, 128, 32, "F.linear", "some-record", ("bias",))
    assert found[128].bytes == 2 * (128 * 32 + 32 + 128)


def test_a_graph_that_runs_a_kernel_another_number_of_times_is_not_named_by_guess() -> None:
    eager = [linear(64, 32, launch=[("gemm", 9.0)]), linear(128, 32, launch=[("gemm", 9.0)])]
    names = names_of(trace_of(Built().step(eager).events))
    (line,) = [s for s in account(trace_of(Built().step(graph(("gemm", 10.0))).events), {}, names).lines if s.place is Place.DEVICE]
    assert (line.linear, line.kernel) == (None, "gemm")


@pytest.mark.parametrize(("inner", "launch", "ran"), [
    ("_rocm_C::LLMM1", [("LLGemm1_kernel<4>", 5.0)], "LLMM1"),
    ("_dcu_C::gemv", [("dcu_gemv", 5.0)], "GEMV"),
    ("aten::linear", [("Cijk", 5.0)], "F.linear"),
])  # fmt: skip
def test_what_ran_a_linear_is_seen_not_assumed(inner: str, launch: list[tuple[str, float]], ran: str) -> None:
    for on in (launch, []):
        line = only(lines_of(Built().step([linear(64, 32, us=30.0, launch=on, inner=inner), ("", 0, (), {"wait": True})])), Group.LINEAR)
        assert line.linear is not None
        assert line.linear.ran == ran


def test_a_linear_that_torch_compiles_is_found_by_its_transposed_weight() -> None:
    built = Built().step([("aten::addmm", 9.0, (), {"dims": [[64], [3, 32], [32, 64]], "types": [BF16] * 3})])
    assert shapes_of(trace_of(built.events)) == (Shape("bfloat16", 3, 64, 32),)


def test_compiled_code_of_a_cpu_is_no_gap_and_a_launch_of_it_on_a_device_is() -> None:
    region = [("[## Call CompiledFxGraph f ##]", 50.0, [("aten::mm", 10.0)])]
    lines = lines_of(Built().step(region))
    assert {(line.kernel, line.group): line.us for line in lines} == {("compiled code", Group.OTHER): 50.0, ("aten::mm", Group.OTHER): 10.0}
    beside = lines_of(Built().step([*region, ("aten::add", 1.0, (), {"launch": [("k", 5.0)]}), ("", 0, (), {"wait": True})]))
    assert sum(line.us for line in beside if line.group is Group.GAP) >= 50.0


def test_one_step_that_was_disturbed_does_not_count() -> None:
    built = Built().step([("aten::add", 10.0)], 8).step([("aten::add", 5000.0)])
    assert lines_of(built)[0].us == 10.0


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda p: None, "is no trace of torch's profiler"),
        (lambda p: p.write_bytes(b"\x1f\x8bnot gzip"), "is no trace of torch's profiler"),
        (lambda p: p.write_text('{"other": 1}'), "is no trace of torch's profiler"),
        (lambda p: p.write_text('{"traceEvents": []}'), "no step is marked"),
    ],
)
def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path: Path, write: Callable[[Path], object], words: str) -> None:
    write(tmp_path / "t")
    with pytest.raises(TraceError, match=words):
        read_trace(tmp_path / "t")


def test_a_gzipped_trace_is_read(tmp_path: Path) -> None:
    events = Built().step([("aten::add", 10.0)]).events
    (tmp_path / "t.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert read_trace(tmp_path / "t.gz").steps == ((1000.0, 1010.0),)
