"""What each instruction does that the gfx906 objects of LLMM1 and of GEMV hold. Any other instruction, form or modifier is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.native.gfx906.machine import EXEC, LANES, VCC, Fault, Machine, Poison, either

__all__ = ["BRANCHES", "Op", "Refusal", "decode", "execute"]


BRANCHES = ("S_BRANCH", "S_CBRANCH_SCC0", "S_CBRANCH_SCC1", "S_CBRANCH_VCCZ", "S_CBRANCH_VCCNZ", "S_CBRANCH_EXECZ", "S_CBRANCH_EXECNZ")


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
_FORMS = {"SOP1", "SOP1_LIT", "SOP2", "SOP2_LIT", "SOPC", "SOPC_LIT", "SOPK", "SOPP", "SMEM", "VOP1", "VOP1_SDWA", "VOP2", "VOP2_LIT", "VOP2_SDWA", "VOP3", "VOP3SD",
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
    # One opcode: a fused multiply-add from gfx906 on, as the compiler's own disassembler says; the decoder has gfx900's name for it.
    name = {"V_MAD_MIX_F32": "V_FMA_MIX_F32"}.get(name, name)
    for field, plain in _PLAIN.items():
        if num.get(field, plain) != plain and not (name == "V_FMA_MIX_F32" and field.startswith("opsel")):
            raise Refusal(f"{name} with {field}={num[field]} is not modelled")
    if form not in _FORMS or name not in _TABLE:
        raise Refusal(f"{name} ({form}) is not one of the instructions that the kernels' gfx906 objects hold")
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


def _s32(word: Any) -> Any:
    return np.asarray(word, np.uint32).view(np.int32)


def _bfe_signed(a: Any, b: Any, c: Any) -> Any:
    width = np.asarray(c & 31, np.uint32)
    lifted = (a >> (b & 31)) << (np.uint32(32) - width)
    return np.where(width == 0, 0, _s32(lifted) >> (np.uint32(32) - width).astype(np.int32)).astype(np.int32).view(np.uint32)


_ONE = {
    "V_MOV_B32": lambda a: a,
    "V_CVT_F32_F16": lambda a: _u(_low_half(a).astype(np.float32)),
    "V_CVT_F16_F32": lambda a: _f(a).astype(np.float16).view(np.uint16).astype(np.uint32),
}
_TWO = {
    "V_LSHLREV_B32": lambda a, b: b << (a & 31),
    "V_LSHRREV_B32": lambda a, b: b >> (a & 31),
    "V_ASHRREV_I32": lambda a, b: (_s32(b) >> (_s32(a) & 31)).view(np.uint32),
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
    "V_FMA_F32": lambda a, b, c: _fma32(a, b, c),
    "V_BFE_I32": lambda a, b, c: _bfe_signed(a, b, c),
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
            if "SDWA" in op.form:
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


def _fma_mix(m: Machine, op: Op) -> None:
    """fma in float32 of sources that are each float32 or a half of a register."""
    if _idle(m):
        return
    values, poisons = [], []
    for i, field in enumerate(("src0", "src1", "src2")):
        value, poison = m.vector(op[field], op.num["literal"])
        if (op.num["opsel_hi"] | op.num["opsel_hi2"] << 2) >> i & 1:
            value = _ONE["V_CVT_F32_F16"](value >> np.uint32(16) if op.num["opsel"] >> i & 1 else value)
        values.append(value)
        poisons.append(poison)
    with np.errstate(all="ignore"):
        m.set_vector(op["vdst"], _fma32(*values), either(*poisons))


def _pair(m: Machine, code: int) -> tuple[Any, Poison]:
    """A 64-bit operand of a vector instruction."""
    if code < 256:
        value = m.scalar64(code)
        return (value[:, None] if value.ndim else value), None
    low, p0 = m.vector(code)
    high, p1 = m.vector(code + 1)
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32)), either(p0, p1)


def _mad64(m: Machine, op: Op) -> None:
    if _idle(m):
        return
    (a, b), poison = _sources(m, op, "src0", "src1")
    c, more = _pair(m, op["src2"])
    total = np.asarray(a, np.uint64) * np.asarray(b, np.uint64) + c  # modulo 2**64; the carry out is not modelled
    m.set_vector(op["vdst"], total.astype(np.uint32), either(poison, more))
    m.set_vector(op["vdst"] + 1, (total >> np.uint64(32)).astype(np.uint32), either(poison, more))


def _compare64(function: Callable[..., Any]) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        (a, p), (b, q) = _pair(m, op["src0"]), _pair(m, op[_second(op)])
        result = np.broadcast_to(function(np.asarray(a).view(np.int64), np.asarray(b).view(np.int64)), m.m.shape)
        _set_lanes(m, op.reg.get("vdst", VCC), result, either(p, q))

    return run


def _readfirstlane(m: Machine, op: Op) -> None:
    value, poison = m.vector(op["src0"])
    m.defined("what a wave takes for all its lanes", poison)
    first = np.where(m.m.any(axis=1), m.m.argmax(axis=1), 0)
    # The field is a vector register to the decoder, and names a scalar one.
    m.set_scalar(op["vdst"] - 256, np.broadcast_to(value, m.m.shape)[np.arange(m.n), first])


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
            m.set_scc(None)

    return run


def _sets_nonzero(function: Callable[..., Any]) -> Callable[[Machine, Op], None]:
    """A scalar instruction whose SCC is `result != 0`."""

    def run(m: Machine, op: Op) -> None:
        result = function(*(m.scalar(op[f], op.num["literal"]) for f in ("ssrc0", "ssrc1") if f in op.reg))
        m.set_scalar(op["sdst"], result)
        m.set_scc(np.asarray(result) != 0)

    return run


def _s_compare(function: Callable[..., Any], signed: bool) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        a, b = (m.scalar(op[f], op.num["literal"]) for f in ("ssrc0", "ssrc1"))
        m.set_scc(function(_s32(a), _s32(b)) if signed else function(a, b))

    return run


def _s_select(m: Machine, op: Op) -> None:
    a, b = (m.scalar(op[f], op.num["literal"]) for f in ("ssrc0", "ssrc1"))
    m.set_scalar(op["sdst"], np.where(m.scc(), a, b))


def _s_select64(m: Machine, op: Op) -> None:
    _set64(m, op["sdst"], np.where(m.scc(), m.scalar64(op["ssrc0"]), m.scalar64(op["ssrc1"])))


def _s_compare64(m: Machine, op: Op) -> None:
    m.set_scc(m.scalar64(op["ssrc0"]) != m.scalar64(op["ssrc1"]))


def _s_subtract(with_borrow: bool) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        a, b = (m.scalar(op[f], op.num["literal"]).astype(np.int64) for f in ("ssrc0", "ssrc1"))
        total = a - b - (m.scc() if with_borrow else 0)
        m.set_scalar(op["sdst"], (total & 0xFFFFFFFF).astype(np.uint32))
        m.set_scc(total < 0)

    return run


def _s_count_bits(m: Machine, op: Op) -> None:
    result = np.bitwise_count(m.scalar64(op["ssrc0"])).astype(np.uint32)
    m.set_scalar(op["sdst"], result)
    m.set_scc(result != 0)


def _signed(function: Callable[..., Any]) -> Callable[[Machine, Op], None]:
    """A scalar sum or difference whose SCC is signed overflow."""

    def run(m: Machine, op: Op) -> None:
        exact = function(*(_s32(m.scalar(op[f], op.num["literal"])).astype(np.int64) for f in ("ssrc0", "ssrc1")))
        m.set_scalar(op["sdst"], (exact & 0xFFFFFFFF).astype(np.uint32))
        m.set_scc((exact < -(2**31)) | (exact >= 2**31))

    return run


def _s_immediate(function: Callable[[Any, int], Any], sets_scc: bool) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        m.set_scalar(op["sdst"], function(m.scalar(op["sdst"]), ((op.num["simm16"] ^ 0x8000) - 0x8000) & 0xFFFFFFFF))
        if sets_scc:
            m.set_scc(None)

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
            total = total + m.scc()
        m.set_scalar(op["sdst"], (total & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        m.set_scc(total >> np.uint64(32) != 0)

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
    value = m.scalar64(op["ssrc0"]) << (m.scalar(op["ssrc1"]).astype(np.uint64) & np.uint64(63))
    _set64(m, op["sdst"], value)
    m.set_scc(value != 0)


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
        value, poison, tag = _logic(name, m.mask(op["ssrc0"]), m.mask(op["ssrc1"]))
        m.set_mask(op["sdst"], value, poison, tag)
        m.set_scc(value.any(axis=1) if poison is None else None)

    return run


def _saveexec(name: str) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        new, old = m.mask(op["ssrc0"]), m.mask(EXEC)
        m.set_mask(op["sdst"], *old)
        m.set_mask(EXEC, *_logic(name, new, old))
        m.set_scc(None)

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
        if buffer.written is not None or buffer.counter:
            raise Fault(f"{buffer.name} is read: it holds nothing yet")
        if not (offset % 16).any():
            rows = buffer.data[: buffer.data.size // 4 * 4].reshape(-1, 4)[offset // 16]
            parts = [np.ascontiguousarray(rows[..., i]) for i in range(4)]
        else:
            parts = [buffer.data[offset // 4 + i] for i in range(4)]
        for target, part in zip(targets, parts, strict=True):
            m.set_vector(target, part, None)
    m.vm.append(set(targets))


def _global_store(halves: int) -> Callable[[Machine, Op], None]:
    def run(m: Machine, op: Op) -> None:
        m.vm.append(set())
        if _idle(m):
            return
        address, poison = _address(m, op)
        data, more = m.vector(op["data"])
        m.defined("the address of a store", poison)
        m.defined("what a store writes", more)
        buffer, offset = m.locate(address, 2 * halves)
        if buffer.written is None:
            raise Fault(f"{buffer.name} is written: it is an input")
        at = offset[m.m] // 2
        stored = np.bincount(at, minlength=buffer.written.size)
        if halves == 2:
            stored = stored + np.bincount(at + 1, minlength=buffer.written.size)
        if (stored + buffer.written > 1).any():
            raise Fault(f"a word of {buffer.name} is written twice")
        value = np.broadcast_to(data, m.m.shape)[m.m]
        if halves == 2:
            buffer.data[at // 2] = value
        else:
            buffer.data.view(np.uint16)[at] = value.astype(np.uint16)
        buffer.written += stored.astype(np.uint8)

    return run


def _counter_word(m: Machine, op: Op) -> tuple[Any, Any, Any]:
    """(64-bit words of the counter, index of each acting lane's, its data)."""
    address, poison = _address(m, op)
    low, p0 = m.vector(op["data"])
    high, p1 = m.vector(op["data"] + 1)
    m.defined("an access of the counter", either(poison, p0, p1))
    buffer, offset = m.locate(address, 8)
    if not buffer.counter or (offset[m.m] % 8).any():
        raise Fault(f"64 bits are stored to {buffer.name}")
    value = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
    return buffer.data.view(np.uint64), offset[m.m] // 8, np.broadcast_to(value, m.m.shape)[m.m]


def _counter_store(m: Machine, op: Op) -> None:
    m.vm.append(set())
    if not _idle(m):
        words, at, value = _counter_word(m, op)
        words[at] = value


def _counter_add(m: Machine, op: Op) -> None:
    """With the old value returned (the bit that is glc on gfx906 and sc0 to the decoder); one lane at a time."""
    targets = {op["vdst"], op["vdst"] + 1}
    if not op.num["sc0"]:
        raise Refusal("an atomic whose old value is not asked for is not modelled")
    if not _idle(m):
        words, at, value = _counter_word(m, op)
        before = np.zeros(m.m.shape, np.uint64)
        for wave, lane, word, more in zip(*np.nonzero(m.m), at, value, strict=True):
            before[wave, lane] = words[word]
            words[word] += more
        m.set_vector(op["vdst"], before.astype(np.uint32), None)
        m.set_vector(op["vdst"] + 1, (before >> np.uint64(32)).astype(np.uint32), None)
    m.vm.append(targets)


def _lds_index(m: Machine, op: Op, at: int | None = None) -> tuple[Any, Any, Any]:
    address, poison = m.vector(op["addr"])
    m.defined("an address in LDS", poison)
    byte = np.broadcast_to(address, m.m.shape).astype(np.int64) + (op.num["offset0"] + (op.num["offset1"] << 8) if at is None else at)
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
        m.set_vector(op["vdst"], _lds_value(m, op, None), None)
    m.lgkm.append(("lds", {op["vdst"]}))


def _ds_read2(m: Machine, op: Op) -> None:
    if not _idle(m):
        values = [_lds_value(m, op, 4 * op.num[field]) for field in ("offset0", "offset1")]
        for i, value in enumerate(values):
            m.set_vector(op["vdst"] + i, value, None)
    m.lgkm.append(("lds", {op["vdst"], op["vdst"] + 1}))


def _lds_value(m: Machine, op: Op, at: int | None) -> Any:
    waves, block, word = _lds_index(m, op, at)
    writer = m.lds_writer[block, word]
    if (writer < 0).any():
        raise Fault(f"LDS is read at byte {int(word[writer < 0][0]) * 4}, where nothing was written")
    if ((writer != waves) & (m.lds_epoch[block, word] >= m.epoch[waves])).any():
        raise Fault("LDS is read that another wave wrote, with no barrier between")
    value = np.zeros(m.m.shape, np.uint32)
    value[m.m] = m.lds[block, word]
    return value


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
    "V_FMA_MIX_F32": _fma_mix,
    "V_MAD_U64_U32": _mad64,
    "V_CMP_LT_I64": _compare64(lambda a, b: a < b),
    "V_CMP_GT_I64": _compare64(lambda a, b: a > b),
    "V_READFIRSTLANE_B32": _readfirstlane,
    "V_CNDMASK_B32": _cndmask,
    "V_LSHLREV_B64": _shift64,
    "V_ADD_CO_U32": _add_carry(False),
    "V_ADDC_CO_U32": _add_carry(True),
    "S_MOV_B32": _scalar(lambda a: a, sets_scc=False),
    "S_MOVK_I32": lambda m, op: m.set_scalar(op["sdst"], np.uint32(((op.num["simm16"] ^ 0x8000) - 0x8000) & 0xFFFFFFFF)),
    "S_ASHR_I32": _sets_nonzero(lambda a, b: (_s32(a) >> (_s32(b) & 31)).view(np.uint32)),
    "S_MUL_HI_U32": _scalar(lambda a, b: ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32), sets_scc=False),
    "S_MUL_HI_I32": _scalar(
        lambda a, b: ((_s32(a).astype(np.int64) * _s32(b).astype(np.int64)) >> 32).astype(np.int32).view(np.uint32), sets_scc=False
    ),
    "S_SUB_I32": _signed(lambda a, b: a - b),
    "S_SUB_U32": _s_subtract(False),
    "S_SUBB_U32": _s_subtract(True),
    "S_BFM_B32": _scalar(lambda a, b: ((np.uint32(1) << (a & 31)) - np.uint32(1)) << (b & 31), sets_scc=False),
    "S_BCNT1_I32_B64": _s_count_bits,
    "S_ADDK_I32": _s_immediate(lambda a, k: a + np.uint32(k), sets_scc=True),
    "S_MULK_I32": _s_immediate(lambda a, k: a * np.uint32(k), sets_scc=False),
    "S_CSELECT_B32": _s_select,
    "S_CSELECT_B64": _s_select64,
    "S_CMP_EQ_U32": _s_compare(lambda a, b: a == b, signed=False),
    "S_CMP_LG_U32": _s_compare(lambda a, b: a != b, signed=False),
    "S_CMP_LT_U32": _s_compare(lambda a, b: a < b, signed=False),
    "S_CMP_GT_U32": _s_compare(lambda a, b: a > b, signed=False),
    "S_CMP_LT_I32": _s_compare(lambda a, b: a < b, signed=True),
    "S_CMP_GT_I32": _s_compare(lambda a, b: a > b, signed=True),
    "S_CMP_LG_U64": _s_compare64,
    "S_MUL_I32": _scalar(lambda a, b: a * b, sets_scc=False),
    "S_BFE_U32": _sets_nonzero(_bfe),
    "S_LSHR_B32": _sets_nonzero(lambda a, b: a >> (b & 31)),
    "S_LSHL_B32": _sets_nonzero(lambda a, b: a << (b & 31)),
    "S_AND_B32": _sets_nonzero(lambda a, b: a & b),
    "S_ADD_I32": _signed(lambda a, b: a + b),
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
    "S_LOAD_DWORDX8": _s_load(8),
    "GLOBAL_STORE_DWORD": _global_store(2),
    "GLOBAL_STORE_SHORT": _global_store(1),
    "GLOBAL_STORE_DWORDX2": _counter_store,
    "GLOBAL_ATOMIC_ADD_X2": _counter_add,
    "DS_WRITE_B32": _ds_write,
    "DS_READ_B32": _ds_read,
    "DS_READ2_B32": _ds_read2,
    "DS_BPERMUTE_B32": _bpermute,
    "BUFFER_STORE_DWORD": _scratch_store,
    "BUFFER_LOAD_DWORD": _scratch_load,
    "S_WAITCNT": _waitcnt,
    "S_NOP": _nothing,
    # These move the program counter or wait for other waves: run.py does them.
    **dict.fromkeys(BRANCHES, _nothing),
    "S_BARRIER": _nothing,
    "S_ENDPGM": _nothing,
}
