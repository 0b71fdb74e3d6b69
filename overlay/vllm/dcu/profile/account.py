# SPDX-License-Identifier: Apache-2.0
"""Every microsecond of a step on exactly one line.  Standard library only.

With a device, a moment belongs to the kernel that runs then (of several, to the one that began first); where none runs, to the operator that
computes on the host, or else it is a gap. Without one, a moment belongs to the operator that the stepping thread is in, or is a gap.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vllm.dcu.profile.groups import group_of
from vllm.dcu.profile.report import Group, Line, Linear, Place
from vllm.dcu.profile.trace import Frame, Kernel, Shape, Trace, linear_of, segments, size_of
from vllm.dcu.records.kernels import KERNELS
from vllm.dcu.records.strict import plain

__all__ = ["GENERIC", "Names", "Table", "account", "names_of", "shapes_of"]

GENERIC = "F.linear"
_ON_HOST_US = 20.0
"""An operator without a call of the runtime below it that takes longer than this while the device waits computes; others only prepare."""
_END = "the end of the step"
Segment = tuple[float, float, tuple[Frame, ...]]


@dataclass(frozen=True)
class _Label:
    group: Group
    place: Place
    operator: str
    kernel: str = ""
    shape: Shape | None = None
    ran: str = ""


@dataclass(frozen=True)
class _Piece:
    """Some microseconds: whose, of which call (its bytes count once a call), and where in a flame graph."""

    us: float
    label: _Label
    kernel: str
    call: int
    owner: int = 0
    bytes: int = 0
    stack: tuple[str, ...] = ()


@dataclass
class Table:
    """The lines of the mean step, what each of its steps lasted under the profiler, and microseconds by stack for a flame graph."""

    lines: tuple[Line, ...]
    profiled: tuple[float, ...]
    stacks: dict[tuple[str, ...], float] = field(default_factory=dict)


_Origin = tuple[_Label, int, int, tuple[str, ...]]
Names = Mapping[str, Sequence[_Origin]]
"""Kernel name -> for each time that it runs in a step: label, call, bytes and stack, as an eager run shows them."""


def shapes_of(trace: Trace) -> tuple[Shape, ...]:
    """Every distinct Linear that was called."""
    found = (linear_of(frame) for frame in trace.host)
    return tuple(dict.fromkeys(shape for shape in found if shape is not None))


def names_of(trace: Trace) -> Names:
    """What an eager trace says of its kernels, by their order in its last step."""
    begin, end = trace.steps[-1]
    found: dict[str, list[_Origin]] = {}
    for kernel in trace.device:
        if begin <= kernel.begin < end:
            piece = _of_kernel(kernel, 0.0, None)
            found.setdefault(kernel.name, []).append((piece.label, piece.owner or piece.call, piece.bytes, piece.stack))
    return found


def account(trace: Trace, choices: Mapping[Shape, Linear], names: Names | None = None) -> Table:
    """The account of the mean step, without the quarters of the fastest and the slowest steps.

    Args:
        choices: for each Linear, what the gate's rules say.
        names: of an eager run, for kernels that a graph replays.
    """
    steps = [list(_cut(trace, begin, end, names)) for begin, end in trace.steps]
    lasted = [end - begin for begin, end in trace.steps]
    cut = len(steps) // 4
    kept = sorted(range(len(steps)), key=lambda i: lasted[i])[cut : len(steps) - cut]
    lines: dict[_Label, _Sum] = {}
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

    def add(self, piece: _Piece, step: int) -> None:
        self.us[step] += piece.us
        self.calls.add((step, piece.call))
        self.kernels[piece.kernel] = self.kernels.get(piece.kernel, 0.0) + piece.us
        if piece.bytes:
            self.bytes[step, piece.owner] = piece.bytes


def _line(label: _Label, total: _Sum, choices: Mapping[Shape, Linear]) -> Line:
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


def _cut(trace: Trace, begin: float, end: float, names: Names | None) -> Iterator[_Piece]:
    """The pieces of the step from `begin` to `end`: they add up to it."""
    inside = [frame for frame in trace.host if frame.begin < end and frame.end > begin]
    host = list(_within(segments(inside), begin, end))
    if not trace.device:
        yield from _on_host(host, inside)
        return
    waits = _Waits(host, [frame.begin for frame in inside if frame.kind == "call"])
    at, runs = begin, _Runs(names, trace.device, begin, end)
    for kernel in trace.device:
        since, until = max(kernel.begin, at), min(kernel.end, end)
        if until <= since:
            continue
        piece = _of_kernel(kernel, until - since, runs.origin(kernel))
        if since > at:
            yield from waits.pieces(at, since, piece.label.operator or piece.kernel)
        yield piece
        at = until
    if at < end:
        yield from waits.pieces(at, end, _END)


def _within(found: Iterator[Segment], begin: float, end: float) -> Iterator[Segment]:
    """The segments from `begin` to `end`, without a hole."""
    at = begin
    for since, until, stack in found:
        if until > at and since < end:
            if since > at:
                yield at, since, ()
            yield max(since, at), min(until, end), stack
            at = min(until, end)
    if at < end:
        yield at, end, ()


def _on_host(host: Sequence[Segment], inside: Sequence[Frame]) -> Iterator[_Piece]:
    operators = [frame for frame in inside if frame.kind == "op"]
    next_op = 0
    for since, until, stack in host:
        if ops := [frame for frame in stack if frame.kind == "op"]:
            yield _of_operator(stack, ops, until - since, Place.DEVICE)
            continue
        while next_op < len(operators) and operators[next_op].begin < until:
            next_op += 1
        yield _gap(stack, until - since, operators[next_op].name if next_op < len(operators) else _END)


class _Waits:
    """What the host did while the device had nothing to do; `calls`: when it called the runtime."""

    def __init__(self, host: Sequence[Segment], calls: Sequence[float]) -> None:
        self.host, self.ends, self.calls = host, [until for _, until, _ in host], calls

    def pieces(self, begin: float, end: float, before: str) -> Iterator[_Piece]:
        """The pieces from `begin` to `end`, which is when `before` begins on the device."""
        index = bisect_right(self.ends, begin)
        while index < len(self.host) and self.host[index][0] < end:
            since, until, stack = self.host[index]
            us = min(until, end) - max(since, begin)
            ops = [frame for frame in stack if frame.kind == "op"]
            if ops and stack[-1] is ops[-1] and self._computes(ops[-1]):
                yield _of_operator(stack, ops, us, Place.HOST)
            else:
                yield _gap(stack, us, before)
            index += 1

    def _computes(self, frame: Frame) -> bool:
        return frame.end - frame.begin >= _ON_HOST_US and bisect_left(self.calls, frame.begin) == bisect_left(self.calls, frame.end)


def _of_operator(stack: Sequence[Frame], ops: Sequence[Frame], us: float, place: Place) -> _Piece:
    names, scopes = [frame.name for frame in ops], [frame.name for frame in stack if frame.kind == "scope"]
    linear = next((frame for frame in ops if linear_of(frame)), None)
    group = group_of(scopes, names, names[-1], linear is not None)
    outer = linear or ops[0]
    if linear is not None and group is Group.LINEAR:
        label = _Label(group, place, linear.name, shape=linear_of(linear), ran=_ran(names, ""))
        return _Piece(us, label, names[-1], id(linear), id(linear), size_of(linear), (*scopes, *names))
    return _Piece(us, _Label(group, place, outer.name, names[-1]), names[-1], id(ops[-1]), id(outer), size_of(outer), (*scopes, *names))


def _of_kernel(kernel: Kernel, us: float, origin: _Origin | None) -> _Piece:
    if origin is not None:
        label, call, size, stack = origin
        return _Piece(us, label, kernel.name, call if label.shape else id(kernel), call, size, stack)
    ops = [frame for frame in kernel.chain if frame.kind == "op"]
    names, scopes = [frame.name for frame in ops], [frame.name for frame in kernel.chain if frame.kind == "scope"]
    linear = next((frame for frame in ops if linear_of(frame)), None)
    group = group_of(scopes, names, kernel.name, linear is not None)
    stack = (*scopes, *names, kernel.name)
    if linear is not None and group is Group.LINEAR:
        label = _Label(group, Place.DEVICE, linear.name, shape=linear_of(linear), ran=_ran(names, kernel.name))
        return _Piece(us, label, kernel.name, id(linear), id(linear), size_of(linear), stack)
    label = _Label(group, Place.DEVICE, ops[0].name if ops else "", kernel.name)
    owner, size = (id(ops[0]), size_of(ops[0])) if ops else (0, 0)
    return _Piece(us, label, kernel.name, id(kernel), owner, size, stack)


def _gap(stack: Sequence[Frame], us: float, before: str) -> _Piece:
    scopes = [frame.name for frame in stack if frame.kind == "scope"]
    where = scopes[-1] if scopes else "the engine"
    label = _Label(Group.GAP, Place.GAP, where, f"before {before}")
    return _Piece(us, label, label.kernel, 0, stack=(*scopes, f"(nothing runs, before {before})"))


def _ran(operators: Sequence[str], kernel: str) -> str:
    """Which kernel computed a Linear: one of ours by its operator or its mark, or the generic one."""
    for known in KERNELS.values():
        if known.op in operators or (known.mark and known.mark in kernel):
            return known.name
    return GENERIC


class _Runs:
    """Whose each kernel of a step is that no operator launched: by the order in which an eager step runs the kernels of that name."""

    def __init__(self, names: Names | None, device: Sequence[Kernel], begin: float, end: float) -> None:
        self.names = names or {}
        self.place: dict[int, int] = {}
        self.times: dict[str, int] = {}
        for kernel in device:
            if begin <= kernel.begin < end:
                self.place[id(kernel)] = self.times.get(kernel.name, 0)
                self.times[kernel.name] = self.place[id(kernel)] + 1

    def origin(self, kernel: Kernel) -> _Origin | None:
        known = self.names.get(kernel.name, ())
        if not known or any(frame.kind == "op" for frame in kernel.chain):
            return None
        if len(known) == self.times.get(kernel.name) and id(kernel) in self.place:
            return known[self.place[id(kernel)]]
        # Run another number of times: named only where there is but one that it can be.
        label, _, size, stack = known[0]
        return (label, id(kernel), size, stack) if len({entry[0] for entry in known}) == 1 else None
