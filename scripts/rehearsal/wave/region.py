"""Select LLGemm1's region of upstream's skinny_gemms.cu by anchors; nothing of it is kept in this repository.

The region is taken from a pristine or patched vLLM tree at build time, so an upstream fix arrives by itself and an
upstream change of shape is refused instead of half-compiled.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

__all__ = ["RegionError", "kernel_text", "launcher_text", "planted", "region_hash", "skinny_source"]

_SOURCE = Path("csrc") / "rocm" / "skinny_gemms.cu"
# Each anchor must occur exactly once: twice means upstream has grown a second kernel and the choice is a person's.
_KERNEL_START = "template <typename T>\nstruct scalar {};"
_LAUNCHER_START = "torch::Tensor LLMM1("
_LAUNCHER_END = "\n}\n"
# The one rewrite of upstream's text: a kernel launch is not C++. Everything else is compiled as it stands.
_LAUNCH = re.compile(r"(LLGemm1_kernel<[^<>]*>)\s*<<<([^<>]*)>>>\(")


class RegionError(Exception):
    """The region cannot be selected; the text says what is missing and what to do."""


def skinny_source(tree: Path) -> Path:
    """Path of skinny_gemms.cu: `tree` is a vLLM source tree or that file itself.

    Raises RegionError where there is none.
    """
    path = tree if tree.is_file() else tree / _SOURCE
    if not path.is_file():
        raise RegionError(f"{path} does not exist: give a vLLM source tree (make apply) or the file itself")
    return path


def _only(text: str, anchor: str) -> int:
    count = text.count(anchor)
    if count != 1:
        raise RegionError(
            f"the anchor {anchor.splitlines()[-1]!r} occurs {count} times in skinny_gemms.cu, not once: "
            "upstream has changed; look at the file and adapt the anchors in region.py"
        )
    return text.index(anchor)


def kernel_text(text: str) -> str:
    """The scalar traits, the loads and the LLGemm1 kernel, up to the host function that launches it."""
    start, end = _only(text, _KERNEL_START), _only(text, _LAUNCHER_START)
    if start >= end:
        raise RegionError("the LLMM1 launcher now precedes its kernel: adapt the anchors in region.py")
    region = text[start:end]
    if "LLGemm1_kernel(" not in region:
        raise RegionError("LLGemm1_kernel is not between the scalar traits and LLMM1: adapt the anchors in region.py")
    return region


def launcher_text(text: str) -> str:
    """Upstream's host function LLMM1, as it stands (with `<<<...>>>`)."""
    start = _only(text, _LAUNCHER_START)
    end = text.index(_LAUNCHER_END, start) + len(_LAUNCHER_END)
    return text[start:end]


def host_launcher_text(text: str) -> str:
    """LLMM1 with its kernel launches rewritten to `wave::Launch{...}(kernel, arguments)`.

    Raises RegionError where a launch remains that the rewrite does not know.
    """
    rewritten, count = _LAUNCH.subn(r"wave::Launch{\2}(\1, ", launcher_text(text))
    if count == 0 or "<<<" in rewritten:
        raise RegionError("LLMM1 launches its kernel in a way region.py does not know: adapt _LAUNCH")
    return rewritten


def region_hash(text: str) -> str:
    """sha256 of kernel and launcher: tells when upstream changes either."""
    return hashlib.sha256((kernel_text(text) + launcher_text(text)).encode()).hexdigest()


def planted(text: str, old: str, new: str) -> str:
    """`text` with a fault planted in the kernel: `old`, which must occur there exactly once, becomes `new`.

    Raises RegionError where it does not: the plant would test nothing.
    """
    kernel = kernel_text(text)
    if kernel.count(old) != 1:
        raise RegionError(f"{old!r} occurs {kernel.count(old)} times in the kernel: the plant would not be one")
    return text.replace(kernel, kernel.replace(old, new))
