"""Unit tests import the overlay's standard-library modules as `vllm.dcu.*`, without vLLM: `vllm` is a namespace package here."""

from __future__ import annotations

import sys
from pathlib import Path

OVERLAY = str(Path(__file__).parents[2] / "overlay")
if OVERLAY not in sys.path:
    sys.path.insert(0, OVERLAY)
