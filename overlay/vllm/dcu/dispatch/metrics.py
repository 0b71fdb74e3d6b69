# SPDX-License-Identifier: Apache-2.0
"""The dispatch counters on vLLM's own `/metrics` page, read from the counter files when somebody scrapes it.

A `vllm.general_plugins` entry of the wheel (scripts/wheel/metadata.py), so that vLLM itself calls `register` in every process. A call of the operator costs
nothing more: the counts are in files that the workers map anyway (VLLM_DCU_STATS_DIR), and only a scrape reads them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm.dcu.dispatch.countfolder import Reader
from vllm.dcu.dispatch.counts import merge
from vllm.dcu.env import STATS_DIR, stats_dir

__all__ = ["DispatchCollector", "register"]

_HIT = ("arch", "simulated", "capability")
_MISS = ("arch", "simulated", "dtype", "m", "k", "rows", "reason")
_registered: list[Path] = []


class DispatchCollector:
    """What prometheus_client asks at each scrape. Hits and misses are dispatches; launches are the kernel's own count, with replays."""

    def __init__(self, folder: Path) -> None:
        self._reader = Reader(folder)

    def collect(self) -> Iterator[Any]:
        """Three counter families: hits by capability, misses by shape and reason, launches by capability. A simulated device is never added
        to a real one."""
        from prometheus_client.core import CounterMetricFamily

        hits = CounterMetricFamily("vllm_dcu_dispatch_hits", "Dispatches to the native kernel of an open DCU capability", labels=_HIT)
        misses = CounterMetricFamily("vllm_dcu_dispatch_misses", "Dispatches to F.linear on a DCU, by shape and reason", labels=_MISS)
        launches = CounterMetricFamily(
            "vllm_dcu_kernel_launches", "Launches of a kernel that counts itself, replays of graphs included", labels=_HIT
        )
        try:
            groups = merge(self._reader.read()[0])
        except Exception:  # a scrape shows the rest of the page, whatever is wrong with a folder
            groups = []
        for group in groups:
            device = [group["arch"], group["simulated"]]
            for capability, value in group["hits"].items():
                hits.add_metric([*device, capability], value)
            for capability, value in group["launches"].items():
                launches.add_metric([*device, capability], value)
            counts: dict[tuple[str, ...], int] = {}
            for miss in group["misses"]:
                labels = tuple(str(miss[name]) for name in _MISS[2:])
                counts[labels] = counts.get(labels, 0) + miss["count"]
            for labels, value in counts.items():
                misses.add_metric([*device, *labels], value)
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
