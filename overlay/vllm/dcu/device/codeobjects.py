# SPDX-License-Identifier: Apache-2.0
"""Which device code a compiled library holds, read from the file itself and nothing else.

A HIP extension module is linked from several translation units, and each brings its own offload bundle: the linked
file holds *concatenated* bundles. Tools that look at the first one only (``clang-offload-bundler --list``) are blind to
the rest, so this module walks every bundle in the file. Standard library only: the dispatch gate asks it in the serving
process, where no LLVM tool exists.

Layout of an uncompressed bundle (LLVM's ClangOffloadBundler documentation): 24 bytes of magic, u64 entry count, then
per entry u64 offset (from the magic), u64 size, u64 id length and the id itself, little-endian throughout.
"""

from __future__ import annotations

import mmap
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CodeObject", "CodeObjectError", "code_object_targets", "code_objects"]

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
_MAX_ENTRIES = 256
_MAX_ID_BYTES = 512
_ELF = b"\x7fELF"


class CodeObjectError(ValueError):
    """The file's device code cannot be listed, and no guess is made about what it holds."""


@dataclass(frozen=True)
class CodeObject:
    """One entry of one bundle.

    ``bundle`` counts the bundles of the file from 0; ``triple`` is the entry id as written
    (``hipv4-amdgcn-amd-amdhsa--gfx936``); ``target`` the arch with its feature suffix (``gfx936:xnack-``), "" for the
    host entry; ``offset`` and ``size`` are bytes in the file.
    """

    bundle: int
    triple: str
    target: str
    offset: int
    size: int

    @property
    def arch(self) -> str:
        """The bare arch: ``gfx936`` for the target ``gfx936:sramecc+:xnack-``."""
        return self.target.partition(":")[0]


def code_objects(path: str | Path) -> tuple[CodeObject, ...]:
    """Every entry of every bundle in the file at ``path``, in file order; () for a file without device code.

    Raises CodeObjectError for a compressed bundle (``--offload-compress``) and for a malformed one, OSError when the
    file cannot be read.
    """
    file = Path(path)
    about = file.stat()
    if not stat.S_ISREG(about.st_mode):
        raise CodeObjectError(f"{file} is not a regular file")
    if about.st_size == 0:
        return ()
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = tuple(_walk(data, file))
        _refuse_compressed(data, file)
    return found


def code_object_targets(path: str | Path) -> frozenset[str]:
    """The bare archs (``gfx936``) for which the file at ``path`` holds device code that is not empty.

    Raises what `code_objects` raises.
    """
    return frozenset(entry.arch for entry in code_objects(path) if entry.arch and entry.size)


def _walk(data: mmap.mmap, file: Path) -> Iterator[CodeObject]:
    bundle = 0
    start = data.find(MAGIC)
    while start != -1:
        entries = _entries(data, start, bundle, file)
        if entries:
            yield from entries
            bundle += 1
        start = data.find(MAGIC, start + len(MAGIC))


def _entries(data: mmap.mmap, start: int, bundle: int, file: Path) -> tuple[CodeObject, ...]:
    position = start + len(MAGIC)
    if position + 8 > len(data):
        return ()
    (count,) = struct.unpack_from("<Q", data, position)
    position += 8
    if not 0 < count <= _MAX_ENTRIES:
        # The magic also occurs as a plain string, in any library that reads bundles.
        return ()
    entries = []
    for index in range(count):
        if position + 24 > len(data):
            raise _malformed(file, start, f"entry {index} lies past the end of the file")
        offset, size, id_length = struct.unpack_from("<QQQ", data, position)
        position += 24
        if id_length > _MAX_ID_BYTES or position + id_length > len(data):
            raise _malformed(file, start, f"entry {index} has an id of {id_length} bytes")
        raw = data[position : position + id_length]
        position += id_length
        if not raw.isascii():
            raise _malformed(file, start, f"entry {index} has an id that is not ASCII")
        if start + offset + size > len(data):
            raise _malformed(file, start, f"entry {index} ends past the end of the file (truncated?)")
        triple = raw.decode("ascii")
        target = _target(triple)
        begin = start + offset
        if target and size and data[begin : begin + 4] != _ELF:
            raise _malformed(file, start, f"the code object of entry {index} ({triple}) is not an ELF file")
        entries.append(CodeObject(bundle=bundle, triple=triple, target=target, offset=begin, size=size))
    return tuple(entries)


def _target(triple: str) -> str:
    """The arch part of an entry id: what follows the environment field, "" for the host."""
    kind, _, rest = triple.partition("-")
    if kind == "host" or not rest:
        return ""
    # kind-arch-vendor-os-environment-target; the environment is empty for HIP, hence the double dash.
    fields = triple.split("-", 5)
    return fields[5] if len(fields) == 6 else ""


def _refuse_compressed(data: mmap.mmap, file: Path) -> None:
    """Refuse a compressed bundle: "CCOB", u16 version (1 to 3), u16 method (0 zlib, 1 zstd)."""
    start = data.find(COMPRESSED_MAGIC)
    while start != -1:
        if start + 8 <= len(data):
            version, method = struct.unpack_from("<HH", data, start + 4)
            if version in (1, 2, 3) and method in (0, 1):
                raise CodeObjectError(
                    f"{file.name} holds a compressed offload bundle (CCOB at byte {start}), whose entries cannot be "
                    "listed without the compiler's tools; build the extension without --offload-compress"
                )
        start = data.find(COMPRESSED_MAGIC, start + 4)


def _malformed(file: Path, start: int, what: str) -> CodeObjectError:
    return CodeObjectError(f"{file.name}: the offload bundle at byte {start} is malformed: {what}; rebuild the file")
