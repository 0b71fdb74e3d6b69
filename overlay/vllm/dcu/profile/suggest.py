# SPDX-License-Identifier: Apache-2.0
"""What could be done about a decode step: a closed list of kinds, ranked by the milliseconds that each could save a token.

A step makes one token of every sequence: what a step loses, each of them waits for. Each figure is an upper bound, and says what it rests on.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from vllm.dcu.dispatch.reasons import Reason
from vllm.dcu.profile.pieces import GENERIC
from vllm.dcu.profile.report import Group, Kind, Line, Place, Suggestion

__all__ = ["Facts", "suggestions"]

_LEAST_SHARE = 0.01
"""Of the step: what would save less is not worth a line."""
_SMALL_US = 30.0
"""A kernel below this is more launch than work: joining it with its neighbours is what helps."""
_CONCENTRATED = 0.5
"""A gap that is this share of all gaps, or more, is one place's and not the host's as a whole."""
_NO_RECORD = Reason.NO_RECORD.value


@dataclass(frozen=True)
class Facts:
    """What a decode step's suggestions rest on.

    Attributes:
        step, cost: microseconds of the step without the profiler, and what the profiler adds.
        read: GB/s at which this device reads.
        kv: bytes of the KV cache that a step's attention reads; 0 where it is not known.
        eager, captured: how the model was served, with `arguments`.
        compare: the command that profiles again and says what changed.
    """

    lines: tuple[Line, ...]
    step: float
    cost: float
    read: float
    kv: float
    eager: bool
    captured: bool
    model: str
    arguments: tuple[str, ...]
    compare: str

    def floor(self, size: float) -> float:
        """Microseconds that reading `size` bytes takes."""
        return size / (self.read * 1e3)

    def serve(self, *more: str) -> str:
        """The command that serves the model as it was served, with graphs and compiled, and with `more`."""
        kept = [word for word in self.arguments if word != "--enforce-eager"]
        return shlex.join(["vllm", "serve", self.model, *kept, *more])

    def tune(self, rows: int) -> str:
        """The command that looks for a faster kernel for this model's Linears at `rows` rows."""
        words = ["python", "-m", "vllm.dcu", "tune", "--model", self.model, "--rows", str(rows)]
        return shlex.join([*words, *(["--", *self.arguments] if self.arguments else [])])


def suggestions(facts: Facts) -> tuple[Suggestion, ...]:
    """Every suggestion that is worth a line, the most milliseconds first."""
    found = [one for kind in Kind for one in _OF[kind](facts) if one.ms * 1e3 >= max(_LEAST_SHARE * facts.step, 1.0)]
    return tuple(sorted(found, key=lambda one: -one.ms))


def _linears(facts: Facts) -> Iterator[tuple[Line, float, bool]]:
    """(line, microseconds over its floor, whether the gate's rules or a record stand in its way)."""
    for line in facts.lines:
        if line.linear is not None:
            fell = line.linear.ran == GENERIC and line.linear.choice not in (GENERIC, "not known")
            shut = line.linear.ran == GENERIC and any(reason != _NO_RECORD for reason in line.linear.reasons)
            yield line, line.us - facts.floor(line.bytes), fell or shut


def _figures(line: Line, facts: Facts) -> dict[str, int | float | str]:
    return {
        "us a step": round(line.us, 3),
        "calls a step": round(line.calls, 3),
        "us a step at the read rate": round(facts.floor(line.bytes), 3),
        "GB/s": round(line.gbs, 3),
        "share of the read rate": round(line.gbs / facts.read, 4),
    }


def _shape(line: Line) -> str:
    assert line.linear is not None
    return f"{line.linear.m} x {line.linear.k} {line.linear.dtype}, N={line.linear.n}"


def _shut(facts: Facts) -> Iterator[Suggestion]:
    for line, over, stands in _linears(facts):
        if not stands or line.linear is None:
            continue
        linear = line.linear
        fell = linear.choice != GENERIC
        why = f"the rules would give it to {linear.choice}, and {GENERIC} ran" if fell else f"shut: {', '.join(linear.reasons)}"
        explain = f"python -m vllm.dcu explain --m {linear.m} --k {linear.k} --n {linear.n} --dtype {linear.dtype}"
        yield Suggestion(
            Kind.SHUT, f"Linear {_shape(line)}: {why}", over / 1e3, {**_figures(line, facts), "ran": linear.ran},
            "python -m vllm.dcu counters FOLDER" if fell else explain,
            f"with the capability open, {facts.compare} does not show this Linear faster",
        )  # fmt: skip


def _below(facts: Facts) -> Iterator[Suggestion]:
    for line, over, stands in _linears(facts):
        if not stands and line.linear is not None:
            linear = line.linear
            yield Suggestion(
                Kind.LINEAR, f"Linear {_shape(line)}: {linear.ran} is below what reading its weight takes", over / 1e3, _figures(line, facts),
                facts.tune(linear.n),
                "tune finds no kernel that is faster beyond its noise: then the read rate is out of reach for this shape",
            )  # fmt: skip


def _by_operator(lines: Iterable[Line]) -> Mapping[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.operator or line.kernel, []).append(line)
    return found


def _calls(lines: Iterable[Line]) -> float:
    return max(line.calls for line in lines)


def _operators(facts: Facts) -> Iterator[Suggestion]:
    kept = [s for s in facts.lines if s.place is Place.DEVICE and s.group not in (Group.LINEAR, Group.COPY, Group.DELTA_NET)]
    for name, lines in _by_operator(kept).items():
        us, size = sum(line.us for line in lines), sum(line.bytes for line in lines)
        attention = any(line.group is Group.ATTENTION for line in lines)
        size += facts.kv if attention else 0.0
        if not size or us / _calls(lines) < _SMALL_US or (attention and not facts.kv):
            continue
        figures: dict[str, int | float | str] = {
            "us a step": round(us, 3), "calls a step": round(_calls(lines), 3), "bytes a step": round(size),
            "us a step at the read rate": round(facts.floor(size), 3),
        }  # fmt: skip
        yield Suggestion(
            Kind.OPERATOR, f"{name}: far above what reading its tensors takes", (us - facts.floor(size)) / 1e3, figures,
            facts.compare, f"it computes more than it reads: {name} with the same tensors alone takes as long",
        )  # fmt: skip


def _on_the_cpu(facts: Facts) -> Iterator[Suggestion]:
    for name, lines in _by_operator(line for line in facts.lines if line.place is Place.HOST).items():
        us = sum(line.us for line in lines)
        figures: dict[str, int | float | str] = {"us a step with the device idle": round(us, 3), "calls a step": round(_calls(lines), 3)}
        yield Suggestion(
            Kind.CPU, f"{name} computes on the CPU, and the device waits for it", us / 1e3, figures, facts.compare,
            f"{name} is on a tensor of the device in the trace: it has a kernel below it there",
        )  # fmt: skip


def _gaps(facts: Facts) -> tuple[list[Line], float]:
    """The gaps that are one place's each, and the microseconds of all others together."""
    gaps = [line for line in facts.lines if line.place is Place.GAP]
    total = sum(line.us for line in gaps)
    places = [line for line in gaps if line.us >= _CONCENTRATED * total]
    return places, total - sum(line.us for line in places)


def _host_gap(facts: Facts) -> Iterator[Suggestion]:
    for line in _gaps(facts)[0]:
        figures: dict[str, int | float | str] = {"us a step": round(line.us, 3), "share of the step": round(line.us / facts.step, 4)}
        yield Suggestion(
            Kind.GAP, f"nothing runs in {line.operator!r}, {line.kernel}", line.us / 1e3, figures, facts.compare,
            "the step without the profiler is not longer than the rest of the account: then the profiler made the gap",
        )  # fmt: skip


def _idle(facts: Facts) -> Iterator[Suggestion]:
    rest = _gaps(facts)[1]
    us = rest - max(0.0, facts.cost)
    if us <= 0:
        return
    figures: dict[str, int | float | str] = {
        "us a step, many places": round(rest, 3), "the profiler's own cost": round(facts.cost, 3), "graphs": "on" if facts.captured else "off",
    }  # fmt: skip
    why = "graphs are off" if facts.eager else "the host is what it waits for"
    yield Suggestion(
        Kind.IDLE, f"nothing runs between kernels: {why}", us / 1e3, figures, facts.serve(*(() if facts.eager else ("--async-scheduling",))),
        f"{facts.compare}, with those arguments, does not show the gaps smaller",
    )  # fmt: skip


def _copies(facts: Facts) -> Iterator[Suggestion]:
    for name, lines in _by_operator(line for line in facts.lines if line.group is Group.COPY).items():
        us = sum(line.us for line in lines)
        figures: dict[str, int | float | str] = {
            "us a step": round(us, 3), "calls a step": round(_calls(lines), 3), "ran": ", ".join(line.kernel for line in lines[:3]),
        }  # fmt: skip
        yield Suggestion(
            Kind.COPY, f"copies or casts of {name}", us / 1e3, figures, facts.compare,
            "the copy is what the computation needs (another layout or type that no kernel takes directly)",
        )  # fmt: skip


@dataclass(frozen=True)
class _Fusion:
    """Small kernels that one flag of vLLM's joins: which (each pattern must be there), when, and how it is asked for (without a flag: by not being eager)."""

    what: str
    patterns: tuple[str, ...]
    eager: bool
    flag: tuple[str, ...]


_FUSIONS = (
    _Fusion("normalisations, activations and casts", (r".",), True, ()),
    _Fusion(
        "normalisation of Q and K, and the rotary embedding", (r"norm", r"rotary"), False,
        ("--compilation-config", '{"pass_config": {"enable_qk_norm_rope_fusion": true}}'),
    ),
)  # fmt: skip
"""Of vLLM 0.18.1's passes those that an unquantized model on one device can use."""


def _fusions(facts: Facts) -> Iterator[Suggestion]:
    small = [
        line for line in facts.lines
        if line.place is Place.DEVICE and line.group is not Group.LINEAR and line.calls and line.us / line.calls < _SMALL_US
    ]  # fmt: skip
    for fusion in _FUSIONS:
        matched = [[s for s in small if re.search(pattern, f"{s.operator} {s.kernel}")] for pattern in fusion.patterns]
        lines = list(dict.fromkeys(line for group in matched for line in group))
        if fusion.eager is not facts.eager or not all(matched) or len(lines) < 2:
            continue
        us, longest = sum(line.us for line in lines), max(line.us for line in lines)
        figures: dict[str, int | float | str] = {
            "kernels a step": round(sum(line.calls for line in lines), 3), "us a step": round(us, 3), "us of the longest": round(longest, 3),
        }  # fmt: skip
        yield Suggestion(
            Kind.FUSION, f"small kernels that one flag joins: {fusion.what}", (us - longest) / 1e3, figures,
            facts.serve(*fusion.flag), f"{facts.compare}, with those arguments, has as many of them",
        )  # fmt: skip


_OF: Mapping[Kind, Callable[[Facts], Iterator[Suggestion]]] = {
    Kind.SHUT: _shut, Kind.LINEAR: _below, Kind.OPERATOR: _operators, Kind.CPU: _on_the_cpu, Kind.GAP: _host_gap, Kind.IDLE: _idle,
    Kind.COPY: _copies, Kind.FUSION: _fusions,
}  # fmt: skip
