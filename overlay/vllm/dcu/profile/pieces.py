# SPDX-License-Identifier: Apache-2.0
"""The pieces of a step: every microsecond of it once, with whose it is.  Standard library only.

With a device, a moment belongs to the kernel that runs then (of several, to the one that began first); where none runs, to the operator that
computes on the host, or else it is a gap. Without one, a moment belongs to the operator that the stepping thread is in, or is a gap.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm.dcu.profile.groups import group_of
from vllm.dcu.profile.report import Group, Place
from vllm.dcu.profile.trace import COMPILED, Frame, Kernel, Shape, Trace, linear_of, segments, size_of
from vllm.dcu.records.kernels import KERNELS

__all__ = ["GENERIC", "Label", "Names", "Piece", "cut", "names_of", "ran_by"]

GENERIC = "F.linear"
_ON_HOST_US = 20.0
"""An operator without a call of the runtime below it that takes longer than this while the device waits computes; others only prepare."""
_END = "the end of the step"
Segment = tuple[float, float, tuple[Frame, ...]]


@dataclass(frozen=True)
class Label:
    """Whose time it is: what is the same for every piece of one line."""

    group: Group
    place: Place
    operator: str
    kernel: str = ""
    shape: Shape | None = None
    ran: str = ""


@dataclass(frozen=True)
class Piece:
    """Some microseconds: whose, of which call (its bytes count once a call), and where in a flame graph."""

    us: float
    label: Label
    kernel: str
    call: int
    owner: int = 0
    bytes: int = 0
    stack: tuple[str, ...] = ()


_Origin = tuple[Label, int, int, tuple[str, ...]]
Names = Mapping[str, Sequence[_Origin]]
"""Kernel name -> for each time that it runs in a step: label, call, bytes and stack, as an eager run shows them."""


def names_of(trace: Trace) -> Names:
    """What an eager trace says of its kernels, by their order in its last step."""
    (begin, end), ran = trace.steps[-1], ran_by(trace)
    found: dict[str, list[_Origin]] = {}
    for kernel in trace.device:
        if begin <= kernel.begin < end:
            piece = _of_kernel(kernel, 0.0, None, ran)
            found.setdefault(kernel.name, []).append((piece.label, piece.owner or piece.call, piece.bytes, piece.stack))
    return found


def cut(trace: Trace, begin: float, end: float, names: Names | None, ran: Mapping[int, str]) -> Iterator[Piece]:
    """The pieces of the step from `begin` to `end`: they add up to it. `ran`: what `ran_by` says; `names`: of an eager run, for what a graph replays."""
    inside = [frame for frame in trace.host if frame.begin < end and frame.end > begin]
    host = list(_within(segments(inside), begin, end))
    if not trace.device:
        yield from _on_host(host, inside, ran)
        return
    waits = _Waits(host, [frame.begin for frame in inside if frame.kind == "call"], ran)
    at, runs = begin, _Runs(names, trace.device, begin, end)
    for kernel in trace.device:
        since, until = max(kernel.begin, at), min(kernel.end, end)
        if until <= since:
            continue
        piece = _of_kernel(kernel, until - since, runs.origin(kernel), ran)
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


def _on_host(host: Sequence[Segment], inside: Sequence[Frame], ran: Mapping[int, str]) -> Iterator[Piece]:
    operators = [frame for frame in inside if frame.kind == "op"]
    next_op = 0
    for since, until, stack in host:
        if ops := [frame for frame in stack if frame.kind == "op"]:
            yield _of_operator(stack, ops, until - since, Place.DEVICE, ran)
            continue
        if stack and stack[-1].name.startswith(COMPILED):
            label = Label(Group.OTHER, Place.DEVICE, COMPILED, "compiled code")
            yield Piece(until - since, label, label.kernel, id(stack[-1]), stack=(*(frame.name for frame in stack), label.kernel))
            continue
        while next_op < len(operators) and operators[next_op].begin < until:
            next_op += 1
        yield _gap(stack, until - since, operators[next_op].name if next_op < len(operators) else _END)


class _Waits:
    """What the host did while the device had nothing to do; `calls`: when it called the runtime."""

    def __init__(self, host: Sequence[Segment], calls: Sequence[float], ran: Mapping[int, str]) -> None:
        self.host, self.ends, self.calls, self.ran = host, [until for _, until, _ in host], calls, ran

    def pieces(self, begin: float, end: float, before: str) -> Iterator[Piece]:
        """The pieces from `begin` to `end`, which is when `before` begins on the device."""
        index = bisect_right(self.ends, begin)
        while index < len(self.host) and self.host[index][0] < end:
            since, until, stack = self.host[index]
            us = min(until, end) - max(since, begin)
            ops = [frame for frame in stack if frame.kind == "op"]
            if ops and stack[-1] is ops[-1] and self._computes(ops[-1]):
                yield _of_operator(stack, ops, us, Place.HOST, self.ran)
            else:
                yield _gap(stack, us, before)
            index += 1

    def _computes(self, frame: Frame) -> bool:
        return frame.end - frame.begin >= _ON_HOST_US and bisect_left(self.calls, frame.begin) == bisect_left(self.calls, frame.end)


def _of_operator(stack: Sequence[Frame], ops: Sequence[Frame], us: float, place: Place, ran: Mapping[int, str]) -> Piece:
    names, scopes = [frame.name for frame in ops], [frame.name for frame in stack if frame.kind == "scope"]
    linear = next((frame for frame in ops if linear_of(frame)), None)
    group = group_of(scopes, names, names[-1], linear is not None)
    outer = linear or ops[0]
    if linear is not None and group is Group.LINEAR:
        label = Label(group, place, linear.name, shape=linear_of(linear), ran=ran.get(id(linear), GENERIC))
        return Piece(us, label, names[-1], id(linear), id(linear), size_of(linear), (*scopes, *names))
    return Piece(us, Label(group, place, outer.name, names[-1]), names[-1], id(ops[-1]), id(outer), size_of(outer), (*scopes, *names))


def _of_kernel(kernel: Kernel, us: float, origin: _Origin | None, ran: Mapping[int, str]) -> Piece:
    if origin is not None:
        label, call, size, stack = origin
        return Piece(us, label, kernel.name, call if label.shape else id(kernel), call, size, stack)
    ops = [frame for frame in kernel.chain if frame.kind == "op"]
    names, scopes = [frame.name for frame in ops], [frame.name for frame in kernel.chain if frame.kind == "scope"]
    linear = next((frame for frame in ops if linear_of(frame)), None)
    group = group_of(scopes, names, kernel.name, linear is not None)
    stack = (*scopes, *names, kernel.name)
    if linear is not None and group is Group.LINEAR:
        label = Label(group, Place.DEVICE, linear.name, shape=linear_of(linear), ran=ran.get(id(linear), GENERIC))
        return Piece(us, label, kernel.name, id(linear), id(linear), size_of(linear), stack)
    label = Label(group, Place.DEVICE, ops[0].name if ops else "", kernel.name)
    owner, size = (id(ops[0]), size_of(ops[0])) if ops else (0, 0)
    return Piece(us, label, kernel.name, id(kernel), owner, size, stack)


def _gap(stack: Sequence[Frame], us: float, before: str) -> Piece:
    scopes = [frame.name for frame in stack if frame.kind == "scope"]
    where = scopes[-1] if scopes else "the engine"
    label = Label(Group.GAP, Place.GAP, where, f"before {before}")
    return Piece(us, label, label.kernel, 0, stack=(*scopes, f"(nothing runs, before {before})"))


def ran_by(trace: Trace) -> dict[int, str]:
    """For each Linear that one of our kernels computed, which: by its operator inside the Linear's, or by its mark on the device."""
    found: dict[int, str] = {}
    operators = {kernel.op: kernel.name for kernel in KERNELS.values()}
    for _, _, stack in segments(trace.host):
        if ours := next((operators[frame.name] for frame in stack if frame.name in operators), ""):
            found |= {id(frame): ours for frame in stack if linear_of(frame)}
    for launched in trace.device:
        if ours := next((known.name for known in KERNELS.values() if known.mark and known.mark in launched.name), ""):
            found |= {id(frame): ours for frame in launched.chain if linear_of(frame)}
    return found


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
