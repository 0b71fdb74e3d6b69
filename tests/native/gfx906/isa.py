"""What each instruction does that the gfx906 objects of LLMM1 hold. Any other instruction, form or modifier is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.native.gfx906.machine import EXEC, LANES, VCC, Fault, Machine, Poison, either

__all__ = ["Op", "Refusal", "decode", "execute"]


class Refusal(Exception):
    """An instruction, or a form of one, that this interpreter does not know: it stops instead of guessing."""


@dataclass(frozen=True)
class Op:
    """One decoded instruction: name without encoding suffix, operand codes (vector registers from 256), plain numbers."""

    name: str
    form: str
    size: int
    reg: dict[str, int]
    num: dict[str, int]

    def __getitem__(self, field: str) -> int:
        return self.reg[field]


# Fields that must hold these values: everything else would change the meaning.
_PLAIN = {"omod": 0, "neg": 0, "neg_hi": 0, "abs": 0, "clmp": 0, "opsel": 0, "opsel_hi": 3, "opsel_hi2": 1, "src0_neg": 0, "src0_abs": 0,
          "src1_neg": 0, "src1_abs": 0, "src0_sext": 0, "src1_sext": 0, "s0": 0, "s1": 0, "dst_unused": 0, "lds": 0, "gds": 0, "acc": 0,
          "sve": 0, "soffset_en": 0, "idxen": 0}  # fmt: skip
_FORMS = {"SOP1", "SOP1_LIT", "SOP2", "SOP2_LIT", "SOPK", "SOPP", "SMEM", "VOP1", "VOP1_SDWA", "VOP2", "VOP2_LIT", "VOP3", "VOP3SD",
          "VOP3_SDST", "VOP3P", "VOPC", "VOPC_SDWA_SDST", "DS", "GLOBAL", "MUBUF"}  # fmt: skip


def decode(code: bytes) -> Op:
    """Decode the instruction at the start of `code` (16 bytes).

    Raises Refusal for what is not known.
    """
    from tinygrad.renderer.amd import decode_inst

    try:
        inst = decode_inst(code, "cdna")
    except Exception as error:
        raise Refusal(f"the bytes {code[:8].hex()} are no instruction: {error}") from error
    form, reg, num = type(inst).__name__, {}, {}
    for field, _bits in inst._fields:
        value = getattr(inst, field)
        if field in ("encoding", "op"):
            continue
        if hasattr(value, "offset"):
            reg[field] = int(value.offset)
        else:
            num[field] = int(value)
    num["literal"] = int(getattr(inst, "literal", None) or 0)
    name = inst.op_name if isinstance(inst.op_name, str) else inst.op_name()
    name = name.removesuffix("_E32").removesuffix("_E64")
    for field, plain in _PLAIN.items():
        if num.get(field, plain) != plain:
            raise Refusal(f"{name} with {field}={num[field]} is not modelled")
    if form not in _FORMS or name not in _TABLE:
        raise Refusal(f"{name} ({form}) is not one of the instructions that LLMM1's gfx906 objects hold")
    if "SDWA" in form and (reg["src0"] != 249 or num.get("dst_sel", 6) != 6):
        raise Refusal(f"{name}: this SDWA form is not modelled")
    return Op(name, form, inst.size(), reg, num)


def execute(m: Machine, op: Op) -> None:
    """Run one instruction (no branch) on the waves that are active."""
    _TABLE[op.name](m, op)


# Floating point


def _f(word: Any) -> Any:
    return word.view(np.float32)


def _u(value: Any) -> Any:
    return np.asarray(value, np.float32).view(np.uint32)


def _fma32(a: Any, b: Any, c: Any) -> Any:
    """float32 fma, one rounding: the product is exact in float64, the sum is rounded to odd there and to nearest after."""
    p, c = _f(a).astype(np.float64) * _f(b), _f(c).astype(np.float64)
    total = p + c
    back = total - p
    lost = (p - (total - back)) + (c - back)
    inexact = (lost != 0) & np.isfinite(total)
    if inexact.any():
        bits = total.view(np.int64)
        even = inexact & (bits & 1 == 0)
        bits += np.where(even, np.where((lost > 0) == (total > 0), 1, -1), 0)
    return _u(total.astype(np.float32))


def _halves(word: Any) -> Any:
    """(..., 2) float64 of the two halves."""
    return np.ascontiguousarray(np.broadcast_to(word, np.broadcast_shapes(np.shape(word), (1, 1)))).view(np.float16).astype(np.float64)


def _pack_halves(value: Any) -> Any:
    return np.ascontiguousarray(value.astype(np.float16)).view(np.uint32)


def _low_half(word: Any) -> Any:
    return (word & 0xFFFF).astype(np.uint16).view(np.float16)


def _perm(a: Any, b: Any, selector: Any) -> Any:
    both = (np.asarray(a, np.uint64) << np.uint64(32)) | np.asarray(b, np.uint64)
    result: Any = np.uint32(0)
    for byte in range(4):
        pick = (selector >> np.uint32(8 * byte)) & np.uint32(0xFF)
        part = ((both >> (pick.astype(np.uint64) % np.uint64(8) * np.uint64(8))) & np.uint64(0xFF)).astype(np.uint32)
        sign = ((both >> ((pick.astype(np.uint64) & np.uint64(3)) * np.uint64(16) + np.uint64(15))) & np.uint64(1)).astype(np.uint32)
        part = np.select([pick < 8, pick < 12, pick == 12], [part, sign * np.uint32(0xFF), np.uint32(0)], np.uint32(0xFF))
        result = result | (part << np.uint32(8 * byte))
    return result


_ONE = {
    "V_MOV_B32": lambda a: a,
    "V_CVT_F32_F16": lambda a: _u(_low_half(a).astype(np.float32)),
    "V_CVT_F16_F32": lambda a: _f(a).astype(np.float16).view(np.uint16).astype(np.uint32),
}
_TWO = {
    "V_LSHLREV_B32": lambda a, b: b << (a & 31),
    "V_LSHRREV_B32": lambda a, b: b >> (a & 31),
    "V_AND_B32": lambda a, b: a & b,
    "V_OR_B32": lambda a, b: a | b,
    "V_XOR_B32": lambda a, b: a ^ b,
    "V_ADD_U32": lambda a, b: a + b,
    "V_ADD_F32": lambda a, b: _u(_f(a) + _f(b)),
    "V_MUL_F32": lambda a, b: _u(_f(a) * _f(b)),
    "V_PACK_B32_F16": lambda a, b: (a & 0xFFFF) | (b << 16),
    "V_PK_MUL_F16": lambda a, b: _pack_halves(_halves(a) * _halves(b)),
    "V_MBCNT_LO_U32_B32": lambda a, b: np.bitwise_count(a & _below(0)).astype(np.uint32) + b,
    "V_MBCNT_HI_U32_B32": lambda a, b: np.bitwise_count(a & _below(32)).astype(np.uint32) + b,
}
_THREE = {
    "V_BFE_U32": lambda a, b, c: (a >> (b & 31)) & ((np.uint32(1) << (c & 31)) - np.uint32(1)),
    "V_ADD3_U32": lambda a, b, c: a + b + c,
    "V_LSHL_OR_B32": lambda a, b, c: (a << (b & 31)) | c,
    "V_LSHL_ADD_U32": lambda a, b, c: (a << (b & 31)) + c,
    "V_AND_OR_B32": lambda a, b, c: (a & b) | c,
    "V_PERM_B32": _perm,
    # The float64 sum is exact or far from any midpoint of halves (docs/llmm1-numerics.md), so this is one rounding.
    "V_PK_FMA_F16": lambda a, b, c: _pack_halves(_halves(a) * _halves(b) + _halves(c)),
}
_COMPARE = {
    "V_CMP_EQ_U32": lambda a, b: a == b,
    "V_CMP_NE_U32": lambda a, b: a != b,
    "V_CMP_GT_U32": lambda a, b: a > b,
    "V_CMP_GT_I32": lambda a, b: a.view(np.int32) > b.view(np.int32),
    "V_CMP_LT_I32": lambda a, b: a.view(np.int32) < b.view(np.int32),
}


def _below(first: int) -> Any:
    """For each lane, the bits of lanes first..first+31 that are below it."""
    lanes = np.arange(LANES) - first
    return ((np.uint64(1) << np.clip(lanes, 0, 32).astype(np.uint64)) - np.uint64(1)).astype(np.uint32)


# Operands


def _sources(m: Machine, op: Op, *fields: str) -> tuple[list[Any], Poison]:
    values, poisons = [], []
    for field in fields:
        if field == "src0" and "SDWA" in op.form:
            value, poison = m.vector(op["vsrc0"])
            value = _selected(value, op.num["src0_sel"])
        else:
            value, poison = m.vector(op[field], op.num["literal"])
            if "SDWA" in op.form and op.form.startswith("VOPC"):
                value = _selected(value, op.num["src1_sel"])
        values.append(value)
        poisons.append(poison)
    return values, either(*poisons)


def _selected(value: Any, select: int) -> Any:
    if select not in (4, 5, 6):
        raise Refusal(f"SDWA selection {select} is not modelled")
    return value if select == 6 else value & np.uint32(0xFFFF) if select == 4 else value >> np.uint32(16)


def _second(op: Op) -> str:
    return "vsrc1" if "vsrc1" in op.reg else "src1"


def _idle(m: Machine) -> bool:
    """No lane acts and none may: a vector instruction changes nothing."""
    return m.none and m.exec_p is None


def _pure(function: Callable[..., Any], count: int) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        if _idle(m):
            return
        fields = ("src0", _second(op), "src2")[:count]
        values, poison = _sources(m, op, *fields)
        with np.errstate(all="ignore"):
            m.set_vector(op["vdst"], function(*values), poison)

    return run


def _fmac(m: Machine, op: Op) -> None:
    if _idle(m):
        return
    (a, b), poison = _sources(m, op, "src0", "vsrc1")
    c, more = m.vector(op["vdst"])
    with np.errstate(all="ignore"):
        m.set_vector(op["vdst"], _fma32(a, b, c), either(poison, more))


def _compare(function: Callable[..., Any]) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        (a, b), poison = _sources(m, op, "src0", _second(op))
        result = np.broadcast_to(function(*np.broadcast_arrays(a, b)), m.m.shape)
        target = op.reg.get("vdst", VCC)
        if "sd" in op.num:
            target = op["sdst"] if op.num["sd"] else VCC
        _set_lanes(m, target, result, poison)

    return run


def _set_lanes(m: Machine, target: int, result: Any, poison: Poison) -> None:
    """A lane mask from a vector instruction: idle lanes get 0, doubtful ones poison."""
    if not m.full:
        result = result & m.m
        poison = None if poison is None else poison & m.m
    poison = either(poison, m.exec_p)
    m.set_mask(target, result, poison, 0 if poison is None else m.new_tag())


def _cndmask(m: Machine, op: Op) -> None:
    if _idle(m):
        return
    a, pa = m.vector(op["src0"], op.num["literal"])
    b, pb = m.vector(op[_second(op)])
    take, pt, _tag = m.mask(op["src2"] if op.form == "VOP3" else VCC)
    poison = pt
    if pa is not None:
        poison = either(poison, pa & ~take)
    if pb is not None:
        poison = either(poison, pb & take)
    m.set_vector(op["vdst"], np.where(take, b, a), poison)


def _shift64(m: Machine, op: Op) -> None:
    (count,), p0 = _sources(m, op, "src0")
    low, p1 = m.vector(op["src1"])
    high, p2 = m.vector(op["src1"] + 1)
    value = (low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))) << (count.astype(np.uint64) & np.uint64(63))
    poison = either(p0, p1, p2)
    m.set_vector(op["vdst"], value.astype(np.uint32), poison)
    m.set_vector(op["vdst"] + 1, (value >> np.uint64(32)).astype(np.uint32), poison)


def _add_carry(with_carry: bool) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        (a, b), poison = _sources(m, op, "src0", _second(op))
        total = np.asarray(a, np.uint64) + np.asarray(b, np.uint64)
        if with_carry:
            carry, more, _tag = m.mask(op["src2"] if op.form == "VOP3SD" else VCC)
            total, poison = total + carry.astype(np.uint64), either(poison, more)
        total = np.broadcast_to(total, m.m.shape)
        _set_lanes(m, op["sdst"] if op.form == "VOP3SD" else VCC, total >> np.uint64(32) != 0, poison)
        m.set_vector(op["vdst"], total.astype(np.uint32), poison)

    return run


# Scalars


def _scalar(function: Callable[..., Any], sets_scc: bool = True) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        values = [m.scalar(op[f], op.num["literal"]) for f in ("ssrc0", "ssrc1") if f in op.reg]
        m.set_scalar(op["sdst"], function(*values))
        if sets_scc:
            m.scc = None  # not computed: whoever reads it next is refused

    return run


def _bfe(a: Any, b: Any) -> Any:
    width = (b >> np.uint32(16)) & np.uint32(0x7F)
    return np.where(
        width == 0, 0, (a >> (b & np.uint32(31))) & ((np.uint64(1) << width.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)
    )


def _s_add(with_carry: bool) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        total = m.scalar(op["ssrc0"], op.num["literal"]).astype(np.uint64) + m.scalar(op["ssrc1"], op.num["literal"]).astype(np.uint64)
        if with_carry:
            if m.scc is None:
                raise Refusal("S_ADDC_U32 after an instruction whose SCC is not modelled")
            total = total + m.scc
        m.set_scalar(op["sdst"], (total & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        m.scc = np.broadcast_to(total >> np.uint64(32) != 0, (m.n,))

    return run


def _s_mov64(m: Machine, op: Op) -> None:
    source = op["ssrc0"]
    if source == EXEC or source in m.masks:
        m.set_mask(op["sdst"], *m.mask(source))
        return
    value = m.scalar64(source, op.num["literal"])
    _set64(m, op["sdst"], value)


def _set64(m: Machine, target: int, value: Any) -> None:
    m.set_scalar(target, (value & np.uint64(0xFFFFFFFF)).astype(np.uint32))
    m.set_scalar(target + 1, (value >> np.uint64(32)).astype(np.uint32))


def _s_shift64(m: Machine, op: Op) -> None:
    _set64(m, op["sdst"], m.scalar64(op["ssrc0"]) << (m.scalar(op["ssrc1"]).astype(np.uint64) & np.uint64(63)))
    m.scc = None


_LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    "AND": lambda a, b: a & b,
    "ANDN2": lambda a, b: a & ~b,
    "OR": lambda a, b: a | b,
    "XOR": lambda a, b: a ^ b,
}
_LaneBits = tuple[Any, Poison, int]


def _logic(name: str, left: _LaneBits, right: _LaneBits) -> _LaneBits:
    (a, pa, ta), (b, pb, tb) = left, right
    value = _LOGIC[name](a, b)
    if pa is None and pb is None:
        return value, None, 0
    if pa is not None and pb is not None and (ta != tb or ta < 0) and (pa & pb).any():
        raise Refusal("a lane mask from two undefined comparisons is not modelled")
    other = _LOGIC[name](a if pa is None else a ^ pa, b if pb is None else b ^ pb)
    return value, value ^ other, (tb if pa is None else ta if pb is None or ta == tb else -1)


def _lanes(name: str) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        m.set_mask(op["sdst"], *_logic(name, m.mask(op["ssrc0"]), m.mask(op["ssrc1"])))
        m.scc = None

    return run


def _saveexec(name: str) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        new, old = m.mask(op["ssrc0"]), m.mask(EXEC)
        m.set_mask(op["sdst"], *old)
        m.set_mask(EXEC, *_logic(name, new, old))
        m.scc = None

    return run


# Memory


def _s_load(words: int) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        address = m.scalar64(op["sbase"]) + np.uint64(op.num["offset"])
        buffer = m.buffers[0]
        offset = address.astype(np.int64) - buffer.base
        if not op.num["imm"] or (offset < 0).any() or (offset + 4 * words > buffer.data.nbytes).any() or (offset % 4).any():
            raise Fault("a scalar load outside the kernel's arguments")
        for i in range(words):
            m.set_scalar(op["sdata"] + i, buffer.data[offset // 4 + i])
        m.lgkm.append(("smem", {op["sdata"] + i for i in range(words)}))

    return run


def _address(m: Machine, op: Op) -> tuple[Any, Poison]:
    low, p0 = m.vector(op["addr"])
    offset = np.int64(((op.num["offset"] & 0x1FFF) ^ 0x1000) - 0x1000)
    if op["saddr"] == 127:  # off: the address is a pair of vector registers
        high, p1 = m.vector(op["addr"] + 1)
        return (low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))) + offset.astype(np.uint64), either(p0, p1)
    return m.scalar64(op["saddr"])[:, None] + low.astype(np.uint64) + offset.astype(np.uint64), p0


def _global_load4(m: Machine, op: Op) -> None:
    targets = [op["vdst"] + i for i in range(4)]
    if not _idle(m):
        address, poison = _address(m, op)
        m.defined("the address of a load", poison)
        buffer, offset = m.locate(address, 16)
        if buffer.written is not None:
            raise Fault(f"{buffer.name} is read: it holds nothing yet")
        if not (offset % 16).any():
            rows = buffer.data[: buffer.data.size // 4 * 4].reshape(-1, 4)[offset // 16]
            parts = [np.ascontiguousarray(rows[..., i]) for i in range(4)]
        else:
            parts = [buffer.data[offset // 4 + i] for i in range(4)]
        for target, part in zip(targets, parts, strict=True):
            m.set_vector(target, part, None)
    m.vm.append(set(targets))


def _global_store(m: Machine, op: Op) -> None:
    m.vm.append(set())
    if _idle(m):
        return
    address, poison = _address(m, op)
    data, more = m.vector(op["data"])
    m.defined("the address of a store", poison)
    m.defined("what a store writes", more)
    buffer, offset = m.locate(address, 4)
    if buffer.written is None:
        raise Fault(f"{buffer.name} is written: it is an input")
    words = offset[m.m] // 4
    if (np.bincount(words, minlength=buffer.data.size) + buffer.written > 1).any():
        raise Fault(f"a word of {buffer.name} is written twice")
    buffer.data[words] = np.broadcast_to(data, m.m.shape)[m.m]
    buffer.written[words] = 1


def _lds_index(m: Machine, op: Op) -> tuple[Any, Any, Any]:
    address, poison = m.vector(op["addr"])
    m.defined("an address in LDS", poison)
    byte = np.broadcast_to(address, m.m.shape).astype(np.int64) + op.num["offset0"] + (op.num["offset1"] << 8)
    wrong = m.m & ((byte % 4 != 0) | (byte + 4 > m.lds_bytes))
    if wrong.any():
        raise Fault(f"LDS is accessed at byte {int(byte[wrong][0])} of {m.lds_bytes}")
    waves, lanes = np.nonzero(m.m)
    return waves, m.block[waves], byte[waves, lanes] // 4


def _ds_write(m: Machine, op: Op) -> None:
    m.lgkm.append(("lds", set()))
    if _idle(m):
        return
    data, poison = m.vector(op["data0"])
    m.defined("what is written to LDS", poison)
    waves, block, word = _lds_index(m, op)
    if np.unique(block * m.lds.shape[1] + word).size != word.size:
        raise Fault("two lanes write one word of LDS at once")
    m.lds[block, word] = np.broadcast_to(data, m.m.shape)[m.m]
    m.lds_writer[block, word], m.lds_epoch[block, word] = waves, m.epoch[waves]


def _ds_read(m: Machine, op: Op) -> None:
    if not _idle(m):
        waves, block, word = _lds_index(m, op)
        writer = m.lds_writer[block, word]
        if (writer < 0).any():
            raise Fault(f"LDS is read at byte {int(word[writer < 0][0]) * 4}, where nothing was written")
        if ((writer != waves) & (m.lds_epoch[block, word] >= m.epoch[waves])).any():
            raise Fault("LDS is read that another wave wrote, with no barrier between")
        value = np.zeros(m.m.shape, np.uint32)
        value[m.m] = m.lds[block, word]
        m.set_vector(op["vdst"], value, None)
    m.lgkm.append(("lds", {op["vdst"]}))


def _bpermute(m: Machine, op: Op) -> None:
    if op.num["offset0"] or op.num["offset1"]:
        raise Refusal("DS_BPERMUTE_B32 with an offset is not modelled")
    if not _idle(m):
        address, poison = m.vector(op["addr"])
        m.defined("the lane that a shuffle reads", poison)
        data, more = m.vector(op["data0"])
        source = (np.broadcast_to(address, m.m.shape) >> np.uint32(2)).astype(np.int64) & 63
        if not m.full and (m.m & ~np.take_along_axis(m.m, source, 1)).any():
            raise Fault("a shuffle reads a lane that is not active")
        value = np.take_along_axis(np.broadcast_to(data, m.m.shape), source, 1)
        m.set_vector(op["vdst"], value, None if more is None else np.take_along_axis(more, source, 1))
    m.lgkm.append(("lds", {op["vdst"]}))


def _scratch_word(m: Machine, op: Op) -> Any:
    """Index of the private word of each lane. The resource must be the one of the dispatch, moved by the wave's offset."""
    rsrc = [m.scalar(op["srsrc"] + i) for i in range(4)]
    expected = m.private_resource  # type: ignore[attr-defined]
    if any((have != want).any() for have, want in zip(rsrc, expected, strict=True)) or (m.scalar(op["soffset"]) != 0).any():
        raise Fault("a buffer access through another resource than the wave's private memory")
    byte: Any = np.full(m.m.shape, op.num["offset"], np.int64)
    if op.num["offen"]:
        address, poison = m.vector(op["vaddr"])
        m.defined("an address in private memory", poison)
        byte = byte + address
    wrong = m.m & ((byte % 4 != 0) | (byte + 4 > m.scratch_bytes))
    if wrong.any():
        raise Fault(f"private memory is accessed at byte {int(byte[wrong][0])} of {m.scratch_bytes}")
    return np.where(m.m, byte // 4, 0)


def _scratch_store(m: Machine, op: Op) -> None:
    m.vm.append(set())
    if _idle(m):
        return
    m.defined("a private store", None)
    data, poison = m.vector(op["vdata"])
    word, waves, lanes = _scratch_word(m, op)[m.m], *np.nonzero(m.m)
    m.scratch[word, waves, lanes] = np.broadcast_to(data, m.m.shape)[m.m]
    # Spilling what was never written is no use of it.
    m.scratch_p[word, waves, lanes] = False if poison is None else poison[m.m]


def _scratch_load(m: Machine, op: Op) -> None:
    if not _idle(m):
        word, waves, lanes = _scratch_word(m, op), *np.indices(m.m.shape)
        poison = m.scratch_p[word, waves, lanes]
        m.set_vector(op["vdata"], m.scratch[word, waves, lanes], poison if poison.any() else None)
    m.vm.append({op["vdata"]})


def _waitcnt(m: Machine, op: Op) -> None:
    simm = op.num["simm16"]
    vm, lgkm = (simm & 15) | (simm >> 10 & 0x30), simm >> 8 & 15
    while len(m.vm) > vm:
        m.vm.pop(0)
    if lgkm == 0:
        m.lgkm.clear()
    while len(m.lgkm) > lgkm and all(kind == "lds" for kind, _ in m.lgkm):  # scalar loads return in any order
        m.lgkm.pop(0)


def _nothing(m: Machine, op: Op) -> None:
    pass


_TABLE: dict[str, Callable[[Machine, Op], None]] = {
    **{name: _pure(function, 1) for name, function in _ONE.items()},
    **{name: _pure(function, 2) for name, function in _TWO.items()},
    **{name: _pure(function, 3) for name, function in _THREE.items()},
    **{name: _compare(function) for name, function in _COMPARE.items()},
    "V_FMAC_F32": _fmac,
    "V_CNDMASK_B32": _cndmask,
    "V_LSHLREV_B64": _shift64,
    "V_ADD_CO_U32": _add_carry(False),
    "V_ADDC_CO_U32": _add_carry(True),
    "S_MOV_B32": _scalar(lambda a: a, sets_scc=False),
    "S_MOVK_I32": lambda m, op: m.set_scalar(op["sdst"], np.uint32(((op.num["simm16"] ^ 0x8000) - 0x8000) & 0xFFFFFFFF)),
    "S_MUL_I32": _scalar(lambda a, b: a * b, sets_scc=False),
    "S_BFE_U32": _scalar(_bfe),
    "S_LSHR_B32": _scalar(lambda a, b: a >> (b & 31)),
    "S_LSHL_B32": _scalar(lambda a, b: a << (b & 31)),
    "S_AND_B32": _scalar(lambda a, b: a & b),
    "S_ADD_I32": _scalar(lambda a, b: a + b),
    "S_ADD_U32": _s_add(False),
    "S_ADDC_U32": _s_add(True),
    "S_MOV_B64": _s_mov64,
    "S_LSHL_B64": _s_shift64,
    "S_AND_B64": _lanes("AND"),
    "S_OR_B64": _lanes("OR"),
    "S_XOR_B64": _lanes("XOR"),
    "S_AND_SAVEEXEC_B64": _saveexec("AND"),
    "S_ANDN2_SAVEEXEC_B64": _saveexec("ANDN2"),
    "S_LOAD_DWORD": _s_load(1),
    "S_LOAD_DWORDX2": _s_load(2),
    "S_LOAD_DWORDX4": _s_load(4),
    "GLOBAL_LOAD_DWORDX4": _global_load4,
    "GLOBAL_STORE_DWORD": _global_store,
    "DS_WRITE_B32": _ds_write,
    "DS_READ_B32": _ds_read,
    "DS_BPERMUTE_B32": _bpermute,
    "BUFFER_STORE_DWORD": _scratch_store,
    "BUFFER_LOAD_DWORD": _scratch_load,
    "S_WAITCNT": _waitcnt,
    "S_NOP": _nothing,
    # These move the program counter or wait for other waves: run.py does them.
    "S_CBRANCH_EXECZ": _nothing,
    "S_BARRIER": _nothing,
    "S_ENDPGM": _nothing,
}
