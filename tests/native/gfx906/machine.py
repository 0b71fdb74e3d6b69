"""The state of many waves of gfx906 code at once, every lane in a numpy array. gfx906, not gfx936.

Shapes: n waves of 64 lanes. A vector register is (n, 64) uint32, a scalar register (n,), a lane mask (n, 64) bool.

A register that was never written is *poison*, lane by lane. Arithmetic on poison gives poison; that is allowed, because the
compiled kernel computes on registers that lanes beyond K never loaded and then selects 0. Using poison is an error: as an
address, as data for memory or LDS, as a scalar. A branch on poison makes everything its lanes write poison.

A lane mask that came from poison keeps, as its poison, the bits that would be other ones had the comparison come out the other
way. Logic is done for both outcomes, so that `x or not x` is defined again: that is how both arms of such a branch meet.
The tag tells one undefined comparison from another; two of them in one lane of one mask are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["EXEC", "LANES", "VCC", "Buffer", "Fault", "Machine", "Mask", "Words", "either"]

LANES, VCC, EXEC = 64, 106, 126
Words = NDArray[np.uint32]
Mask = NDArray[np.bool_]
Poison = Mask | None  # None: clean in every lane


class Fault(Exception):
    """What real hardware would do silently wrong, or leave undefined."""


@dataclass
class Buffer:
    """Device memory. `data` in 32-bit words; `written` counts the stores to each half of a word of an output, None for an input.

    `counter`: both read and written by atomics and stores of 64 bits; nothing else may touch it.
    """

    name: str
    base: int
    data: Words
    written: NDArray[np.uint8] | None = None
    counter: bool = False


def either(*poisons: Poison) -> Poison:
    """Poison where any of them is."""
    found = [p for p in poisons if p is not None]
    if not found:
        return None
    result = found[0]
    for p in found[1:]:
        result = result | p
    return result


@dataclass
class Machine:
    """n waves: registers, LDS, scratch and what is still on its way from memory."""

    n: int
    waves_per_block: int
    lds_bytes: int
    scratch_bytes: int
    buffers: list[Buffer]
    v: dict[int, Words] = field(default_factory=dict)
    vp: dict[int, Poison] = field(default_factory=dict)
    s: dict[int, Words] = field(default_factory=dict)
    masks: dict[int, tuple[Mask, Poison, int]] = field(default_factory=dict)
    vm: list[set[int]] = field(default_factory=list)
    lgkm: list[tuple[str, set[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = self.n
        self._scc, self._scc_known = np.zeros(n, bool), np.zeros(n, bool)
        self.exec: Mask = np.ones((n, LANES), bool)
        self.exec_p: Poison = None
        self.exec_tag = 0
        self.tags = 0
        self.active: Mask = np.ones(n, bool)
        self.everyone = True
        self._refresh()
        blocks = (n + self.waves_per_block - 1) // self.waves_per_block
        self.block = np.arange(n) // self.waves_per_block
        self.lds: Words = np.zeros((blocks, self.lds_bytes // 4), np.uint32)
        self.lds_writer = np.full((blocks, self.lds_bytes // 4), -1, np.int64)
        self.lds_epoch = np.zeros((blocks, self.lds_bytes // 4), np.int64)
        self.epoch = np.zeros(n, np.int64)
        self.scratch: Words = np.zeros((self.scratch_bytes // 4, n, LANES), np.uint32)
        self.scratch_p: Mask = np.ones((self.scratch_bytes // 4, n, LANES), bool)

    # which lanes an instruction acts on

    def _refresh(self) -> None:
        self.m = self.exec if self.everyone else self.exec & self.active[:, None]
        self.full = bool(self.m.all())
        self.none = not self.full and not self.m.any()

    def set_active(self, active: Mask | None) -> None:
        """The waves that execute the next instruction; None for all."""
        if active is None and self.everyone:
            return
        self.everyone = active is None
        self.active = np.ones(self.n, bool) if active is None else active
        self._refresh()

    # scalars

    def _awaited(self, register: int) -> None:
        for pending in self.vm:
            if register in pending:
                raise Fault(f"{_name(register)} is used before s_waitcnt vmcnt says it has arrived")
        for _kind, pending in self.lgkm:
            if register in pending:
                raise Fault(f"{_name(register)} is used before s_waitcnt lgkmcnt says it has arrived")

    def scalar(self, code: int, literal: int = 0) -> Words:
        """(n,) or a 0-d constant: a 32-bit scalar operand."""
        constant: Words | None = _constant(code, literal)
        if constant is not None:
            return constant
        if self.vm or self.lgkm:
            self._awaited(code)
        pair = code & ~1
        if pair == EXEC or pair in self.masks:
            mask, poison, _tag = self.mask(pair)
            if poison is not None and poison[self.active].any():
                raise Fault(f"{_name(code)} is used as a number although lanes of it are undefined")
            return _pack(mask)[:, code & 1]
        if code not in self.s:
            raise Fault(f"{_name(code)} is read before it is written")
        return self.s[code]

    def scalar64(self, code: int, literal: int = 0) -> NDArray[np.uint64]:
        """A 64-bit scalar operand, as numbers."""
        constant: Words | None = _constant(code, literal)
        if constant is not None:  # sign-extended
            return constant.astype(np.int32).astype(np.int64).astype(np.uint64)
        low, high = self.scalar(code), self.scalar(code + 1)
        return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))

    def set_scalar(self, code: int, value: Any) -> None:
        value = np.broadcast_to(np.asarray(value, np.uint32), (self.n,))
        pair = code & ~1
        if pair == EXEC:
            raise Fault("half of EXEC is written: not modelled")
        if pair in self.masks:
            words = _pack(self.masks.pop(pair)[0])
            self.s[pair], self.s[pair + 1] = words[:, 0].copy(), words[:, 1].copy()
        self.s[code] = value if self.everyone or code not in self.s else np.where(self.active, value, self.s[code])

    def set_scc(self, value: Any) -> None:
        """SCC of the active waves; None where it is not computed: whoever reads it next is refused."""
        if value is None:
            self._scc_known = self._scc_known & ~self.active
        else:
            self._scc = np.where(self.active, value, self._scc)
            self._scc_known = self._scc_known | self.active

    def scc(self) -> Mask:
        """SCC of each wave."""
        if not self._scc_known[self.active].all():
            raise Fault("SCC is read after an instruction whose SCC is not modelled")
        return self._scc

    # lane masks

    def mask(self, code: int) -> tuple[Mask, Poison, int]:
        """A 64-bit scalar operand as one bit a lane, its poison and the tag of the comparison that the poison is from."""
        if code == EXEC:
            return self.exec, self.exec_p, self.exec_tag
        if self.vm or self.lgkm:
            self._awaited(code)
        if code in self.masks:
            return self.masks[code]
        constant = _constant(code, 0)
        low, high = (constant, constant) if constant is not None else (self.scalar(code), self.scalar(code + 1))
        if constant is not None and constant not in (0, 0xFFFFFFFF):
            raise Fault("a constant other than 0 and -1 as a lane mask: not modelled")
        words = np.stack(np.broadcast_arrays(np.atleast_1d(low), np.atleast_1d(high)), axis=1).astype("<u4")
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)
        return np.broadcast_to(bits, (self.n, LANES)), None, 0

    def new_tag(self) -> int:
        """The tag of a comparison that just came out undefined in some lane."""
        self.tags += 1
        return self.tags

    def set_mask(self, code: int, value: Mask, poison: Poison, tag: int) -> None:
        if not self.everyone:
            known = code == EXEC or code in self.masks or code in self.s
            old, old_p, old_tag = self.mask(code) if known else (np.zeros_like(value), None, 0)
            keep = ~self.active[:, None]
            value = np.where(keep, old, value)
            if poison is not None or old_p is not None:
                poison = np.where(keep, _or_none(old_p, self), _or_none(poison, self))
                tag = tag if tag == old_tag or old_p is None else -1  # of several comparisons: fits none
        if poison is not None and not poison.any():
            poison = None
        if code == EXEC:
            self.exec, self.exec_p, self.exec_tag = value, poison, tag
            self._refresh()
            return
        self.s.pop(code, None), self.s.pop(code + 1, None)
        self.masks[code] = (value, poison, tag)

    # vectors

    def vector(self, code: int, literal: int = 0) -> tuple[Any, Poison]:
        """An operand of a vector instruction, broadcastable to (n, 64), and where it is poison."""
        if code < 256:
            word = self.scalar(code, literal)
            return (word[:, None] if word.ndim else word), None
        if self.vm or self.lgkm:
            self._awaited(code)
        if code not in self.v:
            return np.full((self.n, LANES), 0xDEADBEEF, np.uint32), np.ones((self.n, LANES), bool)
        return self.v[code], self.vp[code]

    def set_vector(self, code: int, value: Any, poison: Poison) -> None:
        """Write the active lanes. A lane whose being active is undefined gets poison either way."""
        if self.vm or self.lgkm:
            self._awaited(code)
        if self.full and self.exec_p is None:
            self.v[code] = value if getattr(value, "shape", ()) == self.m.shape else np.broadcast_to(value, self.m.shape)
            self.vp[code] = poison
            return
        if self.none and self.exec_p is None:
            return
        old, old_p = (self.v[code], self.vp[code]) if code in self.v else (np.uint32(0xDEADBEEF), np.ones(self.m.shape, bool))
        self.v[code] = np.where(self.m, value, old).astype(np.uint32, copy=False)
        result = either(None if old_p is None else old_p & ~self.m, None if poison is None else poison & self.m)
        if self.exec_p is not None:
            result = either(result, self.exec_p & self.active[:, None])
        self.vp[code] = result if result is not None and result.any() else None

    # memory

    def defined(self, what: str, poison: Poison) -> None:
        """Raise unless every acting lane's value, and its acting at all, is defined."""
        if self.exec_p is not None and (self.exec_p & self.active[:, None]).any():
            raise Fault(f"{what} happens in lanes that an undefined value chose")
        if poison is not None and (poison & self.m).any():
            wave, lane = np.argwhere(poison & self.m)[0]
            raise Fault(f"{what} is a value that was never written (wave {wave}, lane {lane})")

    def locate(self, address: NDArray[np.uint64], size: int) -> tuple[Buffer, NDArray[np.int64]]:
        """The buffer that the acting lanes address and the byte offsets in it; idle lanes get 0."""
        acting = address[self.m]
        first = int(acting[0])
        for buffer in self.buffers:
            if buffer.base <= first < buffer.base + buffer.data.nbytes:
                offset = (address - np.uint64(buffer.base)).astype(np.int64)
                wrong = self.m & ((offset < 0) | (offset > buffer.data.nbytes - size) | (offset % min(size, 4) != 0))
                if wrong.any():
                    wave, lane = np.argwhere(wrong)[0]
                    raise Fault(
                        f"wave {wave}, lane {lane} accesses {size} bytes at offset {offset[wave, lane]} of {buffer.name}, "
                        f"which has {buffer.data.nbytes}"
                    )
                return buffer, offset if self.full else np.where(self.m, offset, 0)
        raise Fault(f"address {first:#x} is in no buffer")


def _or_none(poison: Poison, machine: Machine) -> Mask:
    return np.zeros((machine.n, LANES), bool) if poison is None else poison


def _pack(mask: Mask) -> Words:
    return np.ascontiguousarray(np.packbits(mask, axis=1, bitorder="little")).view("<u4")


def _name(code: int) -> str:
    return f"v{code - 256}" if code >= 256 else {VCC: "vcc", VCC + 1: "vcc_hi", EXEC: "exec", EXEC + 1: "exec_hi"}.get(code, f"s{code}")


_FLOATS = {
    240: 0x3F000000,
    241: 0xBF000000,
    242: 0x3F800000,
    243: 0xBF800000,
    244: 0x40000000,
    245: 0xC0000000,
    246: 0x40800000,
    247: 0xC0800000,
}


def _constant(code: int, literal: int) -> Any:
    if 128 <= code <= 192:
        return np.asarray(code - 128, np.uint32)
    if 193 <= code <= 208:
        return np.asarray((192 - code) & 0xFFFFFFFF, np.uint32)
    if code in _FLOATS:
        return np.asarray(_FLOATS[code], np.uint32)
    if code == 255:
        return np.asarray(literal, np.uint32)
    return None
