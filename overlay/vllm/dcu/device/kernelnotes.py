# SPDX-License-Identifier: Apache-2.0
"""What a code object says of its kernels, and the rules for LLMM1's: 64 lanes, its LDS, no scratch.  Needs msgspec, as vLLM does.

A HIP code object is an ELF file with a note of type NT_AMDGPU_METADATA (32), owner "AMDGPU", whose content is MessagePack
(LLVM's AMDGPUUsage, "Code Object V3 and Above Metadata").
"""

import struct

import msgspec
from vllm.dcu.arch import WAVEFRONT_SIZE

__all__ = ["KernelNote", "NoteError", "kernel_notes", "wave_faults"]

_NT_AMDGPU_METADATA = 32
_PT_NOTE = 4
_FLOAT = 4


class NoteError(ValueError):
    """The code object has no metadata that can be read."""


class KernelNote(msgspec.Struct, frozen=True):
    """One kernel: its mangled name, lanes a wave, bytes of static LDS, bytes of scratch per work item, and spilled registers."""

    name: str = msgspec.field(name=".name")
    wavefront: int = msgspec.field(name=".wavefront_size")
    lds: int = msgspec.field(name=".group_segment_fixed_size")
    scratch: int = msgspec.field(name=".private_segment_fixed_size")
    vgpr_spills: int = msgspec.field(name=".vgpr_spill_count", default=0)
    sgpr_spills: int = msgspec.field(name=".sgpr_spill_count", default=0)


class _Metadata(msgspec.Struct):
    kernels: tuple[KernelNote, ...] = msgspec.field(name="amdhsa.kernels", default=())  # a unit without kernels has none


def kernel_notes(elf: bytes) -> tuple[KernelNote, ...]:
    """Every kernel that the code object `elf` describes.

    Raises:
        NoteError: it is no 64-bit little-endian ELF, or its metadata is missing or damaged.
    """
    try:
        return msgspec.msgpack.decode(_metadata(elf), type=_Metadata).kernels
    except (struct.error, msgspec.MsgspecError, RecursionError) as error:
        raise NoteError(f"the code object's metadata is damaged ({type(error).__name__}: {error})") from None


def wave_faults(kernel: KernelNote, rows: int | None) -> list[str]:
    """Why `kernel` is not LLMM1 for `rows` rows a block at 64 lanes, one sentence a fault; None: not LLMM1's, only its lanes are judged.

    LDS of rows x WARP_SIZE floats is the one trace in an object of the wave size that its source believed in.
    """
    faults = []
    if kernel.wavefront != WAVEFRONT_SIZE:
        faults.append(f"{kernel.name} was compiled for {kernel.wavefront} lanes, not {WAVEFRONT_SIZE}")
    if rows is not None and kernel.lds != rows * WAVEFRONT_SIZE * _FLOAT:
        faults.append(
            f"{kernel.name} has {kernel.lds} bytes of LDS, not {rows} x {WAVEFRONT_SIZE} x {_FLOAT}: "
            f"its source believed in {kernel.lds // (rows * _FLOAT)} lanes"
        )
    return faults


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
