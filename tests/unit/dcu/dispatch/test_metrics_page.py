"""What `/metrics` shows never vanishes and never falls, whatever is done to the folder; and nothing is shown twice."""

from __future__ import annotations

import os
import shutil
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from vllm.dcu.dispatch.counters import Tally
from vllm.dcu.dispatch.countfiles import write_merged
from vllm.dcu.dispatch.metrics import DispatchCollector

from tests.unit.dcu.dispatch.test_counting_never_harms import HEADER, HIT, MISS, count, old_files, until


class Family:
    """As prometheus_client's."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self.rows: dict[tuple[str, ...], float] = {}

    def add_metric(self, labels: Sequence[str], value: float) -> None:
        assert tuple(labels) not in self.rows
        self.rows[tuple(labels)] = value


@pytest.fixture(autouse=True)
def _prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = types.ModuleType("prometheus_client.core")
    core.CounterMetricFamily = Family
    monkeypatch.setitem(sys.modules, "prometheus_client", types.ModuleType("prometheus_client"))
    monkeypatch.setitem(sys.modules, "prometheus_client.core", core)


def page(collector: DispatchCollector) -> tuple[float, float]:
    """Hits and misses."""
    hits, misses, _ = collector.collect()
    return sum(hits.rows.values()), sum(misses.rows.values())


HARM: dict[str, Callable[[Path], object]] = {
    "swapped": lambda folder: (folder.rename(folder.with_name("aside")), folder.mkdir()),
    "removed": lambda folder: shutil.rmtree(folder),
    "files cut": lambda folder: [os.truncate(path, 0) for path in folder.rglob("*")],
    "files overwritten": lambda folder: [path.write_bytes(b"x" * 100) for path in folder.rglob("*")],
    "a file in its place": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
    "dead files folded": lambda folder: write_merged(folder),
}


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("harm", HARM)
def test_what_was_shown_stays_and_goes_on_exactly(tmp_path: Path, harm: str, folded: bool) -> None:
    folder = tmp_path / "stats"
    folder.mkdir()
    old_files(folder, 40)
    if folded:
        write_merged(folder)
    tally, collector = Tally(HEADER, folder), DispatchCollector(folder)
    count(tally, HIT, 5)
    count(tally, MISS, 7)
    assert until(lambda: page(collector) == (125, 7))
    HARM[harm](folder)
    assert page(collector) == (125, 7)
    count(tally, HIT, 3)
    # Where no folder can be, what was shown stays as it was.
    shown = 125 if "in its place" in harm else 128
    assert until(lambda: page(collector) == (shown, 7)), page(collector)
    tally.finish()
    assert page(collector) == (shown, 7)
