# SPDX-License-Identifier: Apache-2.0
"""A vLLM plugin that plants a cost into a decode step of a toy model: PLANT names which, PLANT_LOG gets the microseconds of each.

`slow`: an operator that sleeps; `gap`: Python that sleeps between operators; `fallback`: an `F.linear` of the mission's weight that takes PLANT_MS.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MISSION = (34816, 5120)
_kept: list[Any] = []


def _sleep(begin: float) -> None:
    """Sleep until PLANT_MS after `begin`, and say how long it was in all."""
    time.sleep(max(0.0, begin + float(os.environ["PLANT_MS"]) / 1e3 - time.perf_counter()))
    with Path(os.environ["PLANT_LOG"]).open("a") as file:
        file.write(f"{(time.perf_counter() - begin) * 1e6}\n")


def register() -> None:
    """Entry point: called by vLLM before it makes the model."""
    plant = os.environ.get("PLANT")
    if not plant or _kept:
        return
    if plant == "fallback":
        linear = torch.nn.functional.linear

        def slow_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            begin, out = time.perf_counter(), linear(x, weight, bias)
            if tuple(weight.shape) == MISSION:
                _sleep(begin)
            return out

        torch.nn.functional.linear = slow_linear
        _kept.append(linear)
        return
    library = torch.library.Library("planted", "DEF")
    library.define("slow(Tensor x) -> Tensor")

    def slow(x: torch.Tensor) -> torch.Tensor:
        _sleep(time.perf_counter())
        return x.clone()

    library.impl("slow", slow, "CPU")
    _kept.append(library)
    from vllm.model_executor.layers.activation import SiluAndMul

    before: Callable[..., torch.Tensor] = SiluAndMul.forward_native

    def planted(x: torch.Tensor) -> torch.Tensor:
        if plant == "slow":
            return torch.ops.planted.slow(before(x))
        _sleep(time.perf_counter())
        return before(x)

    SiluAndMul.forward_native = staticmethod(planted)
