"""Modules of the overlay that need only the standard library, for tools: vllm need not be importable, and never is the one that is meant."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from scripts.common.paths import ROOT

__all__ = ["overlay_module"]

_PACKAGE = ROOT / "overlay" / "vllm"


def overlay_module(name: str) -> ModuleType:
    """`vllm.dcu.NAME` of overlay/, the very file that goes into the wheel.

    Where nothing imported vllm yet, `vllm` becomes a package of the overlay's files alone in this process, whatever this Python has installed.
    """
    if "vllm" not in sys.modules:
        spec = ModuleSpec("vllm", None, is_package=True)
        spec.submodule_search_locations = [str(_PACKAGE)]
        sys.modules["vllm"] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"vllm.dcu.{name}")
