# SPDX-License-Identifier: Apache-2.0
"""What lies in an installed package and tells its story: the build's manifest, and a plugin's marks.  Standard library only."""

import re
from pathlib import Path

__all__ = ["FILE_NAME", "marks", "rewritten"]

FILE_NAME = "manifest.json"
"""The build manifest's, in `vllm/dcu`."""
_MARK = re.compile(rb"(?m)^[ \t]*#[ \t]*(PATCHED_\w+)")
"""What the vendor's plugin (`vllm-hcu` up to its 0.21 line) leaves in each installed file that it rewrote."""


def marks(data: bytes) -> tuple[str, ...]:
    """The marks in a file that a plugin rewrote, in order."""
    return tuple(mark.decode() for mark in _MARK.findall(data))


def rewritten(package: Path) -> list[str]:
    """One phrase, `FILE (mark MARK)`, for each source file of any vllm package that a plugin rewrote."""
    found = []
    for path in sorted(package.rglob("*.py")):
        try:
            marked = marks(path.read_bytes()) if path.is_file() else ()
        except OSError:
            continue
        if marked:
            found.append(f"{path} (mark {marked[0]})")
    return found
