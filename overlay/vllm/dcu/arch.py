# SPDX-License-Identifier: Apache-2.0
"""The DCU arch set, and how an arch string is read.  Standard library only.

This is one of three statements of the same facts: `overlay/cmake/dcu.cmake` and
`csrc/rocm/dcu_arch.h` make the other two, and a test parses all three.

An arch enters `DCU_ARCHS` only by evidence from that device: being related to a
listed arch is none. gfx906, gfx926, gfx928 and gfx938 are DCUs too, and are not here.
"""

__all__ = ["DCU_ARCHS", "WAVEFRONT_SIZE", "base_arch", "is_dcu_arch"]

DCU_ARCHS: frozenset[str] = frozenset({"gfx936"})
"""Base arch names that this build adapts vLLM to."""

WAVEFRONT_SIZE: int = 64
"""Lanes of a wavefront on every arch of `DCU_ARCHS`; the kernels assume it."""


def base_arch(arch: str) -> str:
    """The name before the target features: `gfx936:sramecc+:xnack-` -> `gfx936`.

    Nothing else is normalised. A string in another spelling (capitals, blanks) is
    another name, so that it never passes for a known device.
    """
    return arch.split(":", 1)[0]


def is_dcu_arch(arch: str) -> bool:
    """Whether `arch`, with or without target features, is exactly a DCU arch."""
    return base_arch(arch) in DCU_ARCHS
