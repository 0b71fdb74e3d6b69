"""Kernels of an AMDGPU code object: code, descriptor and what the descriptor asks of the hardware (ELF64, standard library)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["Kernel", "ObjectError", "read_kernels"]


class ObjectError(Exception):
    """The code object is not one this interpreter may execute."""


@dataclass(frozen=True)
class Kernel:
    """One kernel. Sizes in bytes; `user_sgprs` before the workgroup id; `start` is the address of `code`."""

    name: str
    code: bytes
    start: int
    lds: int
    scratch: int
    kernarg: int
    user_sgprs: int
    private_buffer: bool
    scratch_offset: bool


@dataclass(frozen=True)
class _Section:
    name: int
    kind: int
    address: int
    offset: int
    size: int


def _sections(data: bytes) -> list[_Section]:
    if data[:4] != b"\x7fELF" or data[4] != 2:
        raise ObjectError("not an ELF64 file: extract the code object from its bundle first")
    if struct.unpack_from("<H", data, 18)[0] != 224:
        raise ObjectError("not an AMDGPU code object")
    start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    rows = [struct.unpack_from("<IIQQQQ", data, start + 64 * i) for i in range(count)]
    return [_Section(name, kind, address, offset, size) for name, kind, _flags, address, offset, size in rows]


def _at(data: bytes, sections: list[_Section], address: int, size: int) -> bytes:
    for s in sections:
        if s.kind == 1 and s.address <= address and address + size <= s.address + s.size:
            return data[s.offset + address - s.address :][:size]
    raise ObjectError(f"address {address:#x} is in no section of the code object")


def read_kernels(data: bytes) -> dict[str, Kernel]:
    """Every kernel of a code object, by mangled name.

    Raises ObjectError where the object needs what the interpreter does not model: another rounding or denormal mode.
    """
    sections = _sections(data)
    index = next((i for i, s in enumerate(sections) if s.kind == 11), None)  # .dynsym
    strings = next((s for s in sections if s.kind == 3), None)
    if index is None or strings is None:
        raise ObjectError("the code object has no dynamic symbols")
    table, symbols = sections[index], {}
    for i in range(0, table.size, 24):
        name, _info, _other, _section, value, size = struct.unpack_from("<IBBHQQ", data, table.offset + i)
        end = data.index(b"\0", strings.offset + name)
        symbols[data[strings.offset + name : end].decode()] = (value, size)
    return {
        name.removesuffix(".kd"): _kernel(data, sections, name.removesuffix(".kd"), value, symbols)
        for name, (value, _size) in symbols.items()
        if name.endswith(".kd")
    }


def _kernel(data: bytes, sections: list[_Section], name: str, address: int, symbols: dict[str, tuple[int, int]]) -> Kernel:
    raw = _at(data, sections, address, 64)
    lds, scratch, kernarg = struct.unpack_from("<III", raw, 0)
    entry = address + struct.unpack_from("<q", raw, 16)[0]
    mode, more, properties = struct.unpack_from("<IIH", raw, 48)
    if (mode >> 12) & 0xF or (mode >> 16) & 0xF != 0xF:
        raise ObjectError(f"{name} wants a rounding or denormal mode other than nearest-even with subnormals kept")
    if properties & 0b1110110:
        raise ObjectError(f"{name} wants dispatch, queue or flat-scratch registers (properties {properties:#x})")
    value, size = symbols[name]
    if value != entry or not properties & 8:
        raise ObjectError(f"{name} does not start where its symbol says, or takes no arguments")
    user = (more >> 1) & 31
    if (more >> 7) & 7 != 1 or (more >> 11) & 3:
        raise ObjectError(f"{name} wants more than the workgroup's and the work item's x")
    return Kernel(name, _at(data, sections, entry, size), entry, lds, scratch, kernarg, user, bool(properties & 1), bool(more & 1))
