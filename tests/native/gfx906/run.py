"""Launch a gfx906 kernel on the interpreter: blocks in chunks, waves in lockstep as far as their branches allow."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tests.native.gfx906 import isa
from tests.native.gfx906.machine import EXEC, LANES, VCC, Buffer, Fault, Machine
from tests.native.gfx906.objectfile import Kernel

__all__ = ["Program", "launch", "launch_with", "program"]

Program = dict[int, isa.Op]
_KERNARG, _FIRST, _APART = 0x7000_0000_0000, 0x1000_0000_0000, 0x0100_0000_0000
_PRIVATE = (0x5A5A0000, 0x00805A5A, 0xFFFFFFFF, 0x00E8F000)
_STEPS = 200_000
_MAX_THREADS = 1024


def program(kernel: Kernel) -> Program:
    """Every instruction by its offset, up to the first s_endpgm: what lies behind it is padding, and a jump there a fault.

    Raises isa.Refusal for an instruction that is not known.
    """
    ops: Program = {}
    at = 0
    while at < len(kernel.code):
        op = ops[at] = isa.decode(kernel.code[at : at + 16].ljust(16, b"\0"))
        at += op.size
        if op.name == "S_ENDPGM":
            break
    return ops


def launch(
    kernel: Kernel, blocks: int, threads: int, inputs: Sequence[NDArray[np.uint16]], out: NDArray[np.uint16], k: int, chunk: int = 0
) -> None:
    """Run LLGemm1(a, x, out, K): every block, `chunk` of them at a time. `out` is filled in place.

    Raises Fault, isa.Refusal.
    """

    def arguments(pointers: Sequence[int]) -> bytes:
        return struct.pack("<3Qi4x3I3H", *pointers, k, blocks, 1, 1, threads, 1, 1).ljust(56, b"\0")

    launch_with(kernel, blocks, threads, inputs, out, arguments, chunk=chunk)


def launch_with(
    kernel: Kernel,
    blocks: int,
    threads: int,
    inputs: Sequence[NDArray[np.uint16]],
    out: NDArray[np.uint16],
    arguments: Callable[[Sequence[int]], bytes],
    counters: Sequence[NDArray[np.uint64]] = (),
    chunk: int = 0,
) -> None:
    """Run a kernel: every block, `chunk` of them at a time. `out` is filled in place; `counters` are memory that it counts in.

    `arguments` makes its argument block from the addresses of inputs, output and counters, in that order.

    Raises Fault, isa.Refusal.
    """
    if threads > _MAX_THREADS:
        raise Fault(f"a block of {threads} threads cannot be launched: HIP's limit is {_MAX_THREADS}")
    ops = program(kernel)
    words = [np.ascontiguousarray(part).reshape(-1).view(np.uint32) for part in inputs]
    result = np.concatenate([out.reshape(-1), np.zeros(out.size % 2, np.uint16)]).view(np.uint32)
    buffers = [Buffer(f"input {i}", _FIRST + i * _APART, part) for i, part in enumerate(words)]
    target = Buffer("the output", _FIRST + len(words) * _APART, result, np.zeros(2 * result.size, np.uint8))
    buffers.append(target)
    for i, part in enumerate(counters):
        buffers.append(Buffer(f"counter {i}", _FIRST + len(buffers) * _APART, part.view(np.uint32), counter=True))
    block = arguments([buffer.base for buffer in buffers])
    size = -(-max(kernel.kernarg, len(block)) // 4) * 4
    kernarg = Buffer("the arguments", _KERNARG, np.frombuffer(block.ljust(size, b"\0"), np.uint32))
    waves = (threads + LANES - 1) // LANES
    step = chunk or max(1, 640 // waves)
    for first in range(0, blocks, step):
        count = min(step, blocks - first)
        _run(_start(kernel, [kernarg, *buffers], first, count, waves, threads), ops)
    assert target.written is not None
    missing = int((target.written[: out.size] == 0).sum())
    if missing or target.written[out.size :].any():
        raise Fault(f"{missing} words of the output were never written" if missing else "something is written behind the output")
    out.reshape(-1)[:] = result.view(np.uint16)[: out.size]


def _start(kernel: Kernel, buffers: list[Buffer], first: int, blocks: int, waves: int, threads: int) -> Machine:
    n = blocks * waves
    m = Machine(n, waves, kernel.lds, kernel.scratch, buffers)
    thread = (np.arange(n) % waves)[:, None] * LANES + np.arange(LANES)
    m.set_vector(256, thread.astype(np.uint32), None)
    at = 0
    private = [np.full(n, word, np.uint32) for word in _PRIVATE]
    if kernel.private_buffer:
        for i, word in enumerate(private):
            m.set_scalar(i, word)
        at = 4
    m.set_scalar(at, np.uint32(_KERNARG & 0xFFFFFFFF))
    m.set_scalar(at + 1, np.uint32(_KERNARG >> 32))
    if kernel.user_sgprs != at + 2:
        raise Fault(f"{kernel.name} takes {kernel.user_sgprs} scalars at its start, not {at + 2}")
    m.set_scalar(kernel.user_sgprs, (first + np.arange(n) // waves).astype(np.uint32))
    offset = (np.arange(n) * 0x400).astype(np.uint32)
    if kernel.scratch_offset:
        m.set_scalar(kernel.user_sgprs + 1, offset)
    m.private_resource = [private[0] + offset, *private[1:]]  # type: ignore[attr-defined]
    m.set_mask(EXEC, thread < threads, None, 0)
    return m


def _taken(m: Machine, name: str) -> NDArray[np.bool_]:
    """Which waves a branch moves."""
    if name == "S_BRANCH":
        return np.ones(m.n, bool)
    if "SCC" in name:
        return m.scc() == (name[-1] == "1")
    mask, poison, _tag = m.mask(VCC if "VCC" in name else EXEC)
    if "VCC" in name and poison is not None and poison[m.active].any():
        raise Fault("a wave branches on a mask of which lanes are undefined")
    possible = mask if poison is None else mask | poison
    return possible.any(axis=1) == name.endswith("NZ")


def _run(m: Machine, ops: Program) -> None:
    pcs = np.zeros(m.n, np.int64)
    alive, waiting = np.ones(m.n, bool), np.zeros(m.n, bool)
    for _ in range(_STEPS):
        if not alive.any():
            return
        moving = alive & ~waiting
        if not moving.any():
            raise Fault("a barrier that not all waves of a block reach")
        # The lowest counter first: waves that took a branch wait for the others where their paths meet again.
        pc = int(pcs[moving].min())
        here = moving & (pcs == pc)
        m.set_active(None if here.all() else here)
        op = ops.get(pc)
        if op is None:
            raise Fault(f"the program counter is at {pc:#x}, where no instruction begins")
        following = pc + op.size
        pcs[here] = following
        if op.name in isa.BRANCHES:
            pcs[here & _taken(m, op.name)] = following + 4 * ((op.num["simm16"] ^ 0x8000) - 0x8000)
        elif op.name == "S_ENDPGM":
            alive &= ~here
        elif op.name == "S_BARRIER":
            waiting |= here
            # A block goes on when every wave of it waits behind the same barrier.
            arrived = np.bincount(m.block, waiting & (pcs == following), minlength=m.block[-1] + 1)
            free = waiting & (arrived == np.bincount(m.block))[m.block]
            waiting &= ~free
            m.epoch[free] += 1
        else:
            isa.execute(m, op)
    raise Fault(f"no end after {_STEPS} instructions")
