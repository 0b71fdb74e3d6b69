"""Kernels of an AMDGPU code object: code, descriptor and what the descriptor asks of the hardware."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

__all__ = ["Kernel", "ObjectError", "read_kernels"]

_EM_AMDGPU = 224


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


def read_kernels(data: bytes) -> dict[str, Kernel]:
    """Every kernel of a code object, by mangled name.

    Raises ObjectError where the object needs what the interpreter does not model: another rounding or denormal mode.
    """
    try:
        elf = ELFFile(io.BytesIO(data))
    except ELFError as error:
        raise ObjectError(f"not an ELF64 file ({error}): extract the code object from its bundle first") from error
    if elf.elfclass != 64 or elf["e_machine"] not in ("EM_AMDGPU", _EM_AMDGPU):
        raise ObjectError("not an AMDGPU code object")
    table = elf.get_section_by_name(".dynsym")
    if table is None:
        raise ObjectError("the code object has no dynamic symbols")
    symbols = {symbol.name: (symbol["st_value"], symbol["st_size"]) for symbol in table.iter_symbols()}
    names = [name.removesuffix(".kd") for name in symbols if name.endswith(".kd")]
    return {name: _kernel(elf, name, symbols) for name in names}


def _at(elf: Any, address: int, size: int) -> bytes:
    for section in elf.iter_sections("SHT_PROGBITS"):
        begin = section["sh_addr"]
        if begin <= address and address + size <= begin + section["sh_size"]:
            found: bytes = section.data()[address - begin :][:size]
            return found
    raise ObjectError(f"address {address:#x} is in no section of the code object")


def _kernel(elf: Any, name: str, symbols: dict[str, tuple[int, int]]) -> Kernel:
    address = symbols[f"{name}.kd"][0]
    raw = _at(elf, address, 64)
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
    return Kernel(name, _at(elf, entry, size), entry, lds, scratch, kernarg, user, bool(properties & 1), bool(more & 1))
