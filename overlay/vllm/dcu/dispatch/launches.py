# SPDX-License-Identifier: Apache-2.0
"""Launches of our own kernel, which counts itself on the device: replays of captured graphs are in it, dispatches are not asked.

The kernel adds one and writes the new value into host memory (csrc/dcu/gemv_kernel.h), so that reading costs no call of the device. A cell of
the tally is set to that count whenever somebody reads the tally or its file is written; nothing of it is in the operator's way.
"""

import contextlib
from collections.abc import MutableSequence
from typing import Any

import torch
from vllm.dcu.dispatch.counters import Tally
from vllm.dcu.dispatch.counts import Key
from vllm.dcu.records.kernels import GEMV
from vllm.dcu.records.record import Record

__all__ = ["Launches", "watch"]

_DTYPES = {torch.float16: 5, torch.bfloat16: 15}
"""As torch numbers them in C++."""


class Launches:
    """Sets cells of a tally to what the kernel has counted; called with the cells."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, ...], int] = {}

    def __call__(self, cells: "MutableSequence[int] | memoryview[int]") -> None:
        counted: dict[tuple[int, ...], int] = {}
        for _device, *what, launches in torch.ops._dcu_C.gemv_launches().tolist():
            key = tuple(what)
            counted[key] = counted.get(key, 0) + launches
        for key, cell in self.cells.items():
            cells[cell] = counted.get(key, 0)


def watch(tally: Tally, record: Record, weight: Any) -> None:
    """From now on count the launches of `record`'s kernel on `weight`'s device, and show them in `tally`. Never raises: without it the
    kernel runs as well.

    Not from within a capture, where no memory may be taken: then launches are counted from the next capability's first call on, or not at all.
    """
    if record.kernel != GEMV.name:
        return
    with contextlib.suppress(Exception):
        _watch(tally, record, weight)


def _watch(tally: Tally, record: Record, weight: Any) -> None:
    c = record.contract
    if not hasattr(torch.ops._dcu_C, "gemv_count") or (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    torch.ops._dcu_C.gemv_count(weight)
    source = next((s for s in tally.sources if isinstance(s, Launches)), None)
    if source is None:
        source = Launches()
        tally.sources.append(source)
    cell = tally.allocate([Key("launch", str(c.dtype), weight.shape[0], weight.shape[1], record.id, None, "any")])
    if cell:
        source.cells[(_DTYPES[weight.dtype], c.n or 0, weight.shape[0], weight.shape[1], c.args["variant"])] = cell
