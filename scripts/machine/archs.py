"""The arch list of a device build: read as CMake will read it, and refused where CMake would drop a name without a word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from scripts.common import errors
from scripts.common.overlay import overlay_module

__all__ = ["VARIABLE", "choose", "dcu_archs", "supported"]

VARIABLE = "PYTORCH_ROCM_ARCH"


def dcu_archs() -> frozenset[str]:
    """The DCU archs of this build (vllm/dcu/arch.py)."""
    archs: frozenset[str] = overlay_module("arch").DCU_ARCHS
    return archs


def supported(tree: Path) -> frozenset[str]:
    """What upstream's CMakeLists.txt builds for, with the DCU archs; the DCU archs alone where no tree is applied."""
    try:
        text = (tree / "CMakeLists.txt").read_text(encoding="utf-8")
    except OSError:
        return dcu_archs()
    match = re.search(r'set\(HIP_SUPPORTED_ARCHS\s+"([^"]+)"\)', text)
    return dcu_archs() | frozenset(match[1].split(";") if match else ())


def choose(environ: Mapping[str, str], known: frozenset[str], device: str | None) -> tuple[str, ...]:
    """The archs to build for: PYTORCH_ROCM_ARCH, else the arch of this machine's device.

    Args:
        environ: where the variable is looked up.
        known: every name that the build knows; see `supported`.
        device: the arch of the device that is here, or None.

    Raises:
        errors.UserError: the list has a name, separator or suffix that would be dropped, or no DCU.
        errors.CannotBuild: there is neither a list nor a device.
    """
    raw = environ.get(VARIABLE)
    if raw is None:
        if device is None:
            raise errors.CannotBuild(
                "no arch to build for: PYTORCH_ROCM_ARCH is not set, and no DCU is to be seen here",
                "the device code is compiled for the archs of that list; a machine without a device is fine, but then it has to be said",
                "PYTORCH_ROCM_ARCH=gfx936 make build TARGET=rocm",
            )
        return (device,)
    why = "CMake drops a name that it does not know without a word, and the wheel then has no code for the device"
    if not raw.strip():
        raise errors.UserError(f"{VARIABLE} is set but empty", "nothing would be built for any device", f"unset it, or {VARIABLE}=gfx936")
    if re.search(r"[,\s]", raw):
        fixed = ";".join(part for part in re.split(r"[,;\s]+", raw) if part)
        raise errors.UserError(f"{VARIABLE}={raw!r} has a comma or a blank in it", why, f"separate by semicolons: {VARIABLE}={fixed!r}")
    names = raw.split(";")
    for name in names:
        if ":" in name:
            raise errors.UserError(f"{VARIABLE} names {name!r} with a feature suffix", why, f"write the bare name: {name.split(':')[0]}")
        if name not in known:
            raise errors.UserError(
                f"{VARIABLE} names {name!r}, which this build does not know", why, f"the names are: {', '.join(sorted(known))}"
            )
    if len(set(names)) != len(names):
        raise errors.UserError(
            f"{VARIABLE}={raw!r} names an arch twice", "one of them is a slip, perhaps of another name", "name each once"
        )
    if not dcu_archs() & set(names):
        raise errors.UserError(
            f"{VARIABLE}={raw!r} names no DCU",
            f"the wheel's version says that it is for {', '.join(sorted(dcu_archs()))}",
            f"add it ({VARIABLE}='{raw};gfx936'), or build stock vLLM for other devices",
        )
    return tuple(names)
