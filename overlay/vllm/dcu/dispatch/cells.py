# SPDX-License-Identifier: Apache-2.0
"""The memory that a process counts in: cells, and the names of what they count.  Standard library only.

It is a System V shared memory segment where the machine gives one: it belongs to no file, so that no full disk, no truncated file and no
hung mount can reach an addition in it, and it outlives its process, so that a killed process's counts can still be read. Elsewhere it is
ordinary memory, and a killed process loses what was not yet written to its file.

Layout: the name of the counter file (a reused segment number is noticed by it), the number of bytes of text, `CELLS` signed 64-bit integers,
and the text: lines of JSON that are only ever appended, each before the cell that it names is used.
"""

import ctypes
from typing import Any

__all__ = ["CELLS", "CELL_BYTES", "Image", "attached", "new_image", "remove_segment"]

CELLS = 8192
CELL_BYTES = CELLS * 8
_NAME_BYTES = 120
_CELLS_AT = _NAME_BYTES + 8
_TEXT_AT = _CELLS_AT + CELL_BYTES
_SIZE = _TEXT_AT + CELLS * 256
_PRIVATE, _CREATE, _READ_ONLY, _REMOVE, _STATUS = 0, 0o1000, 0o10000, 0, 2
_SIZE_AT = 48
"""Where `shmid_ds` has the size on 64-bit Linux: behind the permissions."""


class Image:
    """Cells and text in one buffer. `segment` is the segment's number, or -1 for ordinary memory."""

    def __init__(self, buffer: Any, name: str, segment: int = -1) -> None:
        self._bytes = memoryview(buffer).cast("B")
        self._bytes[:_NAME_BYTES] = name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
        self._length = self._bytes[_NAME_BYTES:_CELLS_AT].cast("q")
        self.cells = self._bytes[_CELLS_AT:_TEXT_AT].cast("q")
        self.segment = segment

    def append(self, text: bytes) -> bool:
        """Add lines. False, and nothing is added, where there is no room."""
        start = _TEXT_AT + self._length[0]
        if start + len(text) > _SIZE:
            return False
        self._bytes[start : start + len(text)] = text
        self._length[0] += len(text)
        return True

    def copy(self) -> tuple[bytes, bytes]:
        """The cells and, read after them, the text, so that no count is without its name."""
        cells = bytes(self._bytes[_CELLS_AT:_TEXT_AT])
        return cells, bytes(self._bytes[_TEXT_AT : _TEXT_AT + self._length[0]])


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmget.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_int)
    libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    libc.shmat.restype = ctypes.c_void_p
    libc.shmdt.argtypes = (ctypes.c_void_p,)
    libc.shmctl.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    return libc


def _attach(segment: int, flags: int) -> int | None:
    address = _libc().shmat(segment, None, flags)
    return None if address in (None, ctypes.c_void_p(-1).value) else int(address)


def _bytes_of(segment: int) -> int:
    """How large a segment is, whoever made it: a file may name any; 0 where there is none."""
    about = ctypes.create_string_buffer(512)
    if _libc().shmctl(segment, _STATUS, about):
        return 0
    return ctypes.c_size_t.from_buffer(about, _SIZE_AT).value


def remove_segment(segment: int) -> None:
    """Let a segment go as soon as nobody has it mapped. Nothing happens where it is gone, another user's, or not one (-1)."""
    if segment >= 0:
        _libc().shmctl(segment, _REMOVE, None)


def new_image(name: str) -> Image:
    """Zeroed memory for the counter file called `name`: a segment, or ordinary memory where the machine has none to give."""
    try:
        segment = int(_libc().shmget(_PRIVATE, _SIZE, _CREATE | 0o644))
        if segment >= 0:
            address = _attach(segment, 0)
            if address is not None:
                return Image((ctypes.c_char * _SIZE).from_address(address), name, segment)
            remove_segment(segment)
    except (OSError, AttributeError):
        pass  # a C library without System V memory
    return Image(bytearray(_SIZE), name)


def attached(segment: int, name: str) -> tuple[bytes, bytes] | None:
    """A copy of the cells and text behind counter file `name`, its process living or dead; None where `segment` is not that file's."""
    try:
        if _bytes_of(segment) < _SIZE:
            return None
        address = _attach(segment, _READ_ONLY)
    except (OSError, AttributeError, ctypes.ArgumentError):
        return None
    if address is None:
        return None
    try:
        if ctypes.string_at(address, _NAME_BYTES).rstrip(b"\0") != name.encode():
            return None
        cells = ctypes.string_at(address + _CELLS_AT, CELL_BYTES)
        length = ctypes.c_int64.from_address(address + _NAME_BYTES).value
        return cells, ctypes.string_at(address + _TEXT_AT, max(0, min(length, _SIZE - _TEXT_AT)))
    finally:
        _libc().shmdt(address)
