"""Launch a gfx906 kernel on the interpreter: blocks in chunks, waves in lockstep as far as their branches allow."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.native.gfx906 import isa
from tests.native.gfx906.machine import EXEC, LANES, Buffer, Fault, Machine
from tests.native.gfx906.objectfile import Kernel

__all__ = ["Program", "launch", "program"]

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
    if threads > _MAX_THREADS:
        raise Fault(f"a block of {threads} threads cannot be launched: HIP's limit is {_MAX_THREADS}")
    ops = program(kernel)
    words = [np.ascontiguousarray(part).reshape(-1).view(np.uint32) for part in inputs]
    result = out.reshape(-1).view(np.uint32)
    buffers = [Buffer(f"input {i}", _FIRST + i * _APART, part) for i, part in enumerate(words)]
    target = Buffer("the output", _FIRST + len(words) * _APART, result, np.zeros(result.size, np.uint8))
    buffers.append(target)
    pointers = [buffer.base for buffer in buffers]
    arguments = struct.pack("<3Qi4x3I3H", *pointers, k, blocks, 1, 1, threads, 1, 1)
    kernarg = Buffer("the arguments", _KERNARG, np.frombuffer(arguments.ljust(max(kernel.kernarg, 56), b"\0"), np.uint32))
    waves = (threads + LANES - 1) // LANES
    step = chunk or max(1, 640 // waves)
    for first in range(0, blocks, step):
        count = min(step, blocks - first)
        _run(_start(kernel, [kernarg, *buffers], first, count, waves, threads), ops)
    missing = int((target.written == 0).sum()) if target.written is not None else 0
    if missing:
        raise Fault(f"{missing} words of the output were never written")


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


def _run(m: Machine, ops: Program) -> None:
    pcs = np.zeros(m.n, np.int64)
    alive = np.ones(m.n, bool)
    for _ in range(_STEPS):
        if not alive.any():
            return
        # The lowest counter first: waves that took a branch wait for the others where their paths meet again.
        pc = int(pcs[alive].min())
        here = alive & (pcs == pc)
        m.set_active(None if here.all() else here)
        op = ops.get(pc)
        if op is None:
            raise Fault(f"the program counter is at {pc:#x}, where no instruction begins")
        following = pc + op.size
        pcs[here] = following
        if op.name == "S_CBRANCH_EXECZ":
            possible = m.exec if m.exec_p is None else m.exec | m.exec_p
            skip = here & ~possible.any(axis=1)
            pcs[skip] = following + 4 * ((op.num["simm16"] ^ 0x8000) - 0x8000)
        elif op.name == "S_ENDPGM":
            alive &= ~here
        elif op.name == "S_BARRIER":
            late = alive & ~here & np.isin(m.block, m.block[here])
            if late.any():
                raise Fault("a barrier that not all waves of a block reach")
            m.epoch[here] += 1
        else:
            isa.execute(m, op)
    raise Fault(f"no end after {_STEPS} instructions")
