"""Modules of the overlay that need only the standard library, for tools: loaded by path, vllm need not be importable."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from scripts.common.paths import ROOT

__all__ = ["overlay_module"]


def overlay_module(name: str) -> ModuleType:
    """`overlay/vllm/dcu/NAME.py` (dots for folders), the very file that goes into the wheel."""
    known = f"gfx936_overlay_{name}"
    if known in sys.modules:
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, ROOT / "overlay" / "vllm" / "dcu" / f"{name.replace('.', '/')}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module  # dataclasses look their module up while it is being made
    spec.loader.exec_module(module)
    return module
