# SPDX-License-Identifier: Apache-2.0
"""The whole simulated gfx936 as a stand-in of `verify` and `tune`: `--stand-in scripts/rehearsal/gfx936_stand_in.py`, the plugin's folder on
PYTHONPATH and GFX936_SIM_ARCH set. Its servers see the same simulation, so that what was verified opens in them.

GFX936_SIM_TIMES is a JSON object with the times that the device has, in microseconds: {"34816x5120n1": {"GEMV 9": 80}}; 100 where it says nothing.
"""

from __future__ import annotations

import json
import os

import gfx936_sim  # type: ignore[import-not-found]

gfx936_sim.register()

from vllm.dcu import gate  # noqa: E402  (its context is the simulation's once that is registered)

_active = gate.active()
CONTEXT = _active.context if _active else None
_times: dict[str, dict[str, float]] = json.loads(os.environ.get("GFX936_SIM_TIMES", "{}"))


def MICROSECONDS(dtype: str, m: int, k: int, n: int, choice: str) -> float:
    """What one call takes on the simulated device."""
    return float(_times.get(f"{m}x{k}n{n}", {}).get(choice, 100.0))
