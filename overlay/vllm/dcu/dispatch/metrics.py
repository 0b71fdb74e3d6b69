# SPDX-License-Identifier: Apache-2.0
"""The dispatch counters on vLLM's own `/metrics` page, read from the counter files when somebody scrapes it.

A `vllm.general_plugins` entry of the wheel (scripts/wheel/metadata.py), so that vLLM itself calls `register` in every process. A call of the operator costs
nothing more: the counts are in files that the workers map anyway (VLLM_DCU_STATS_DIR), and only a scrape reads them.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm.dcu.dispatch.countfolder import FOLDED, Reader, identity
from vllm.dcu.dispatch.counts import ProcessCounts, merge
from vllm.dcu.env import STATS_DIR, stats_dir

__all__ = ["DispatchCollector", "register"]

_HIT = ("arch", "simulated", "capability")
_MISS = ("arch", "simulated", "dtype", "m", "k", "rows", "reason")
_registered: list[Path] = []


class _Whole:
    """A folder's processes, with those that were read once and are gone with their folder or their file: what was counted stays counted."""

    def __init__(self, folder: Path) -> None:
        self._reader, self._folded_at = Reader(folder), folder / FOLDED
        self._seen: dict[str, ProcessCounts] = {}
        self._lost: dict[str, ProcessCounts] = {}
        self._folded: tuple[int, int, int] | None = None

    def read(self) -> list[ProcessCounts]:
        """All that is or was there."""
        while True:
            folded = identity(self._folded_at)
            now = self._reader.files()[0]
            if identity(self._folded_at) == folded:
                break
        if folded == self._folded or not any(name.startswith(FOLDED) for name in now):
            # Nothing was folded since: what is not there any more is in no sum.
            self._lost |= self._seen
        self._lost = {name: found for name, found in self._lost.items() if name not in now}
        self._seen, self._folded = now, folded
        return [*now.values(), *self._lost.values()]


class DispatchCollector:
    """What prometheus_client asks at each scrape. Hits and misses are dispatches; launches are the kernel's own count, with replays."""

    def __init__(self, folder: Path) -> None:
        self._whole = _Whole(folder)
        self._shown: tuple[dict[tuple[str, ...], int], ...] = ({}, {}, {})

    def collect(self) -> Iterator[Any]:
        """Three counter families: hits by capability, misses by shape and reason, launches by capability. A simulated device is never added
        to a real one. No value vanishes or falls, whatever is done to the folder."""
        from prometheus_client.core import CounterMetricFamily

        hits = CounterMetricFamily("vllm_dcu_dispatch_hits", "Dispatches to the native kernel of an open DCU capability", labels=_HIT)
        misses = CounterMetricFamily("vllm_dcu_dispatch_misses", "Dispatches to F.linear on a DCU, by shape and reason", labels=_MISS)
        launches = CounterMetricFamily(
            "vllm_dcu_kernel_launches", "Launches of a kernel that counts itself, replays of graphs included", labels=_HIT
        )
        try:
            groups = merge(self._whole.read())
        except Exception:  # a scrape shows what it knew and the rest of the page, whatever is wrong with a folder
            groups = []
        now: tuple[Counter[tuple[str, ...]], ...] = (Counter(), Counter(), Counter())
        for group in groups:
            device = (group["arch"], group["simulated"])
            now[0].update({(*device, capability): value for capability, value in group["hits"].items()})
            for miss in group["misses"]:
                labels = (*device, *(str(miss[name]) for name in _MISS[2:]))
                now[1][labels] += miss["count"]
            now[2].update({(*device, capability): value for capability, value in group["launches"].items()})
        for family, shown, found in zip((hits, misses, launches), self._shown, now, strict=True):
            for labels, value in found.items():
                shown[labels] = max(value, shown.get(labels, 0))
            for labels, value in shown.items():
                family.add_metric(labels, value)
        yield from (hits, misses, launches)


def register() -> None:
    """Add the collector to this process's registry, once, where VLLM_DCU_STATS_DIR names a folder.

    With several API servers vLLM builds a registry of its own for each scrape and shows only what prometheus_client shares
    between processes; there `python -m vllm.dcu counters` is the way, and the log says so.
    """
    from vllm.logger import init_logger

    folder = stats_dir()
    if folder is None or _registered:
        return
    _registered.append(folder)
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        init_logger(__name__).info(
            "Several API servers: DCU counters are not on /metrics. `python -m vllm.dcu counters` reads %s.", STATS_DIR
        )
        return
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    REGISTRY.register(DispatchCollector(folder))
