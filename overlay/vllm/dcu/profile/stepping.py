# SPDX-License-Identifier: Apache-2.0
"""Steps under torch's profiler, and without it: what the trace is cut by, and what it is held against.

A step lasts until the next one begins. Nothing waits for the device in between but what the step itself waits for, so that a host that
prepares one step while the device computes another is seen as it is.
"""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from vllm.dcu.profile.trace import STEP

__all__ = ["profiled", "timed"]


def timed(step: Callable[[], object], steps: int) -> tuple[float, ...]:
    """Microseconds of each of `steps` steps, by the wall clock, with no profiler on."""
    _synchronize()
    marks = [time.perf_counter()]
    for _ in range(steps):
        step()
        marks.append(time.perf_counter())
    return tuple((after - before) * 1e6 for before, after in itertools.pairwise(marks))


def profiled(step: Callable[[], object], steps: int, path: Path, *, shapes: bool) -> None:
    """Run `steps` steps under torch's profiler and write its trace (the form that Perfetto opens) to `path`.

    Args:
        shapes: record the operators' shapes as well, which costs the host time.
    """
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    _synchronize()
    with profile(activities=activities, record_shapes=shapes) as profiler:
        for _ in range(steps):
            with record_function(STEP):
                step()
        _synchronize()
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
