"""Which files of a tree a source reaches by its includes, and what could not be read on the way."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from functools import cache

from scripts.drift.contracts import cxx
from scripts.drift.contracts.model import Tree

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|import|include_next)\b[ \t]*(.*)$", re.M)
#: Macros that only a compiler defines, for the device or the platform: a guard of these alone can be decided for gfx936.
_COMPILER = re.compile(r"__gfx\w+__|__CUDA_ARCH__|__NVCC__|__CUDACC__|__HIP\w*__|__GFX9__|USE_ROCM|USE_CUDA")
#: What is defined when the device code of gfx936 is compiled. `__GFX9__` is assumed, as upstream's own WARP_SIZE needs it.
DEFINED = frozenset({"USE_ROCM", "__HIP__", "__HIPCC__", "__HIP_PLATFORM_AMD__", "__HIP_DEVICE_COMPILE__", "__gfx936__", "__GFX9__"})


@dataclass(frozen=True)
class Reached:
    """Files of the tree in the order they are met, the source first, and the includes that lead out of it or cannot be followed."""

    files: tuple[str, ...]
    outside: tuple[str, ...]


@cache
def reached(tree: Tree, source: str, folders: tuple[str, ...] = ("csrc", "")) -> Reached:
    """Follow every include of `source`, whatever #if it stands under: what one build leaves out another may take."""
    files, outside, todo = [source], [], [source]
    named: dict[str, list[str]] = {}
    while todo:
        path = todo.pop()
        for macro, name in _named(tree.files.get(path, b"")):
            named.setdefault(f"macro {macro}", []).append(name)
        for name in (n for found in _names(tree.files.get(path, b"")) for n in named.get(found, [found])):
            here = posixpath.dirname(path)
            found = next((p for f in (here, *folders) if (p := posixpath.normpath(posixpath.join(f, name))) in tree), None)
            if found is None:
                outside.append(name)
            elif found not in files:
                files.append(found)
                todo.append(found)
    return Reached(tuple(files), tuple(dict.fromkeys(outside)))


@cache
def _named(data: bytes) -> tuple[tuple[str, str], ...]:
    """Macros that are a file's name, for `#include MACRO`."""
    plain = cxx.without_comments(data.decode("utf-8", "replace"))
    return tuple(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+[\"<]([^\">\n]+)[\">]", plain, re.M))


@cache
def _names(data: bytes) -> tuple[str, ...]:
    plain = cxx.without_comments(data.decode("utf-8", "replace"))
    found = []
    for match in _INCLUDE.finditer(plain):
        named = re.match(r'["<]([^">]+)[">]', match[1])
        found.append(named[1] if named else f"macro {match[1].strip()}")
    return tuple(found)


def compiled(text: str, offset: int, defined: frozenset[str] = DEFINED) -> bool:
    """Whether what stands at `offset` may be compiled for gfx936: False only where its guards say no by compiler macros alone."""
    for guard in cxx.guards(text, offset):
        names = set(re.findall(r"\b[A-Za-z_]\w+\b", guard)) - {"defined"}
        if names and all(_COMPILER.fullmatch(n) for n in names) and cxx.active([guard], set(defined)) is False:
            return False
    return True
