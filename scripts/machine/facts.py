"""What this machine is, asked once a process under the DTK's environment: every verb goes by this one answer. Bare Python."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from scripts.common import errors
from scripts.common.overlay import overlay_module
from scripts.machine import dtk, nodes
from scripts.machine.interpreter import Facts, facts, python_in_use

__all__ = ["TARGETS", "Machine", "look", "resolve"]

TARGETS = ("auto", "cpu", "empty", "rocm")
# What the loader says of a library that only a ROCm or DTK brings; and how a vendor's torch names its build.
_DEVICE_LIBRARY = re.compile(r"lib(?:galaxy)?\w*(?:hip|hsa|roc|rccl|miopen|hyhal)\w*\.so", re.IGNORECASE)
_VENDOR_BUILD = re.compile(r"\+\w*(?:das|dtk|hcu|dcu)", re.IGNORECASE)


@dataclass(frozen=True)
class Machine:
    """What every check and every verb looks at.

    Attributes:
        environ: the environment of the person.
        toolchain: the DTK, or None.
        trouble: why the DTK could not be taken, if so.
        python: the Python in use, asked in the DTK's environment.
        device: the DCU arch by KFD, or None.
    """

    environ: Mapping[str, str]
    toolchain: dtk.Dtk | None
    trouble: errors.Fatal | None
    python: Facts
    device: str | None

    @property
    def env(self) -> Mapping[str, str]:
        """The environment in which the Python in use can import its torch."""
        return self.toolchain.env if self.toolchain else self.environ

    @property
    def signs(self) -> tuple[str, ...]:
        """What says that this machine is, or is meant to be, one for a DCU; empty on a machine with nothing special."""
        kfd = overlay_module("device.kfd")
        cards = [node for node in kfd.gpu_nodes(environ=self.environ) if node.vendor_id == kfd.HYGON_VENDOR_ID]
        found = [f"{len(cards)} DCU(s) by KFD"] if cards else []
        found += [*nodes.present(self.environ), *dtk.signs(self.environ)]
        p = self.python
        installed = p.torch or p.distributions.get("torch", "")
        if p.hip:
            found.append(f"torch {p.torch} built for HIP {p.hip}")
        elif _VENDOR_BUILD.search(installed) or _DEVICE_LIBRARY.search(p.torch_error):
            found.append(f"a vendor's torch {installed}".strip())
        return tuple(found)


def look(environ: Mapping[str, str] | None = None) -> Machine:
    """Ask this machine; the same environment is asked once a process."""
    return _look(tuple(sorted((os.environ if environ is None else environ).items())))


@functools.lru_cache(maxsize=4)
def _look(items: tuple[tuple[str, str], ...]) -> Machine:
    environ = dict(items)
    toolchain, trouble = None, None
    try:
        toolchain = dtk.find(environ)
    except errors.Fatal as error:
        trouble = error
    env = toolchain.env if toolchain else environ
    return Machine(environ, toolchain, trouble, facts(python_in_use(environ), env), overlay_module("device.kfd").dcu_arch(environ=environ))


def resolve(asked: str, machine: Machine | None = None) -> str:
    """The build target: `auto` is rocm wherever a DCU, a DTK or a vendor's torch is (and then builds or is refused), else cpu.

    Raises:
        errors.UserError: not one of TARGETS.
    """
    if asked not in TARGETS:
        raise errors.UserError(
            f"TARGET={asked!r} is not a build target", "each target packs other native code", f"use one of {', '.join(TARGETS)}"
        )
    if asked != "auto":
        return asked
    return "rocm" if (machine or look()).signs else "cpu"
