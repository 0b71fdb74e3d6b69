# SPDX-License-Identifier: Apache-2.0
"""What a code object says of its kernels: wave size, LDS, scratch.  Standard library only.

A HIP code object is an ELF file with a note of type NT_AMDGPU_METADATA (32), owner "AMDGPU", whose content is MessagePack
(LLVM's AMDGPUUsage, "Code Object V3 and Above Metadata"). Only what such a note may hold is read; anything else is an error.
"""

import struct
from dataclasses import dataclass
from typing import Any

__all__ = ["KernelNote", "NoteError", "kernel_notes"]

_NT_AMDGPU_METADATA = 32
_PT_NOTE = 4
_MAX_DEPTH = 16


class NoteError(ValueError):
    """The code object has no metadata that can be read."""


@dataclass(frozen=True)
class KernelNote:
    """One kernel: its mangled name, lanes a wave, bytes of static LDS, and bytes of scratch per work item."""

    name: str
    wavefront: int
    lds: int
    scratch: int


def kernel_notes(elf: bytes) -> tuple[KernelNote, ...]:
    """Every kernel that the code object `elf` describes.

    Raises:
        NoteError: it is no 64-bit little-endian ELF, or its metadata is missing or damaged.
    """
    try:
        data = _unpack(_metadata(elf))
        return tuple(
            KernelNote(
                name=str(kernel[".name"]),
                wavefront=int(kernel[".wavefront_size"]),
                lds=int(kernel[".group_segment_fixed_size"]),
                scratch=int(kernel[".private_segment_fixed_size"]),
            )
            for kernel in data["amdhsa.kernels"]
        )
    except NoteError:
        raise
    except (struct.error, KeyError, TypeError, ValueError, IndexError, UnicodeDecodeError) as error:
        raise NoteError(f"the code object's metadata is damaged ({type(error).__name__}: {error})") from None


def _metadata(elf: bytes) -> bytes:
    if elf[:6] != b"\x7fELF\x02\x01":
        raise NoteError("it is not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for index in range(count):
        kind, _, begin, _, _, length = struct.unpack_from("<IIQQQQ", elf, offset + index * size)
        if kind == _PT_NOTE and (found := _note(elf[begin : begin + length])) is not None:
            return found
    raise NoteError("it has no AMDGPU metadata note")


def _note(segment: bytes) -> bytes | None:
    position = 0
    while position + 12 <= len(segment):
        name_size, size, kind = struct.unpack_from("<III", segment, position)
        name_at = position + 12
        content_at = name_at + (name_size + 3) // 4 * 4
        if kind == _NT_AMDGPU_METADATA and segment[name_at : name_at + 6] == b"AMDGPU":
            return segment[content_at : content_at + size]
        position = content_at + (size + 3) // 4 * 4
    return None


def _unpack(data: bytes) -> Any:
    value, _ = _item(data, 0, 0)
    return value


def _item(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """One MessagePack value at `at`, and where the next begins."""
    if depth > _MAX_DEPTH:
        raise NoteError("the code object's metadata is nested too deep")
    tag = data[at]
    if tag < 0x80:
        return tag, at + 1
    if tag >= 0xE0:
        return tag - 256, at + 1
    if tag < 0x90:
        return _map(data, at + 1, tag & 0x0F, depth)
    if tag < 0xA0:
        return _array(data, at + 1, tag & 0x0F, depth)
    if tag < 0xC0:
        return _text(data, at + 1, tag & 0x1F)
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at + 1
    if tag in _NUMBERS:
        form = _NUMBERS[tag]
        return struct.unpack_from(form, data, at + 1)[0], at + 1 + struct.calcsize(form)
    if tag in _LENGTHS:
        form, read = _LENGTHS[tag]
        (length,) = struct.unpack_from(form, data, at + 1)
        begin = at + 1 + struct.calcsize(form)
        return _text(data, begin, length) if read == "text" else (_map if read == "map" else _array)(data, begin, length, depth)
    raise NoteError(f"the code object's metadata holds a value of unknown kind 0x{tag:02x}")


_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_LENGTHS = {
    0xD9: (">B", "text"),
    0xDA: (">H", "text"),
    0xDB: (">I", "text"),
    0xDC: (">H", "array"),
    0xDD: (">I", "array"),
    0xDE: (">H", "map"),
    0xDF: (">I", "map"),
}


def _text(data: bytes, at: int, length: int) -> tuple[str, int]:
    if at + length > len(data):
        raise NoteError("the code object's metadata ends inside a string")
    return data[at : at + length].decode(), at + length


def _array(data: bytes, at: int, length: int, depth: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(length):
        value, at = _item(data, at, depth + 1)
        items.append(value)
    return items, at


def _map(data: bytes, at: int, length: int, depth: int) -> tuple[dict[Any, Any], int]:
    found = {}
    for _ in range(length):
        key, at = _item(data, at, depth + 1)
        found[key], at = _item(data, at, depth + 1)
    return found, at
