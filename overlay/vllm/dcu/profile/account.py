# SPDX-License-Identifier: Apache-2.0
"""The account of a step: its pieces added up, line by line.  Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm.dcu.profile.pieces import Label, Names, Piece, cut, ran_by
from vllm.dcu.profile.report import Line, Linear
from vllm.dcu.profile.trace import Shape, Trace, linear_of
from vllm.dcu.records.strict import plain

__all__ = ["Table", "account", "shapes_of"]


@dataclass
class Table:
    """The lines of the mean step, what each of its steps lasted under the profiler, and microseconds by stack for a flame graph."""

    lines: tuple[Line, ...]
    profiled: tuple[float, ...]
    stacks: dict[tuple[str, ...], float] = field(default_factory=dict)


def shapes_of(trace: Trace) -> tuple[Shape, ...]:
    """Every distinct Linear that was called."""
    found = (linear_of(frame) for frame in trace.host)
    return tuple(dict.fromkeys(shape for shape in found if shape is not None))


def account(trace: Trace, choices: Mapping[Shape, Linear], names: Names | None = None) -> Table:
    """The account of the mean step, without the quarters of the fastest and the slowest steps.

    Args:
        choices: for each Linear, what the gate's rules say.
        names: of an eager run, for kernels that a graph replays.
    """
    ran = ran_by(trace)
    steps = [list(cut(trace, begin, end, names, ran)) for begin, end in trace.steps]
    lasted = [end - begin for begin, end in trace.steps]
    quarter = len(steps) // 4
    kept = sorted(range(len(steps)), key=lambda i: lasted[i])[quarter : len(steps) - quarter]
    lines: dict[Label, _Sum] = {}
    stacks: dict[tuple[str, ...], float] = {}
    for place, index in enumerate(kept):
        for piece in steps[index]:
            lines.setdefault(piece.label, _Sum(len(kept))).add(piece, place)
            stacks[piece.stack] = stacks.get(piece.stack, 0.0) + piece.us / len(kept)
    found = sorted((_line(label, total, choices) for label, total in lines.items()), key=lambda line: -line.us)
    return Table(tuple(found), tuple(lasted[i] for i in kept), stacks)


class _Sum:
    """What the pieces of one label add up to, step by step."""

    def __init__(self, steps: int) -> None:
        self.us = [0.0] * steps
        self.calls: set[tuple[int, int]] = set()
        self.bytes: dict[tuple[int, int], int] = {}
        self.kernels: dict[str, float] = {}

    def add(self, piece: Piece, step: int) -> None:
        self.us[step] += piece.us
        self.calls.add((step, piece.call))
        self.kernels[piece.kernel] = self.kernels.get(piece.kernel, 0.0) + piece.us
        if piece.bytes:
            self.bytes[step, piece.owner] = piece.bytes


def _line(label: Label, total: _Sum, choices: Mapping[Shape, Linear]) -> Line:
    steps = len(total.us)
    linear = None
    if label.shape is not None:
        said = choices.get(label.shape)
        shape = label.shape
        choice, reasons = (said.choice, said.reasons) if said else ("not known", ())
        linear = Linear(shape.dtype, shape.n, shape.m, shape.k, label.ran, choice, reasons)
    kernel = label.kernel or max(total.kernels, key=lambda name: total.kernels[name])
    return Line(
        label.group, label.place, plain(label.operator, 300), plain(kernel, 300), len(total.calls) / steps, sum(total.us) / steps,
        min(total.us), max(total.us), sum(total.bytes.values()) / steps, linear,
    )  # fmt: skip
