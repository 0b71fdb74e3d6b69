"""What /metrics shows is what the counter files hold, and nothing is shown where nobody asked for counters."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vllm.dcu.dispatch.countfiles import Header, Key, Writer
from vllm.dcu.records.catalog import MISSION

ID = MISSION.id
SCRAPE = """
import sys
from importlib.metadata import entry_points
(point,) = [e for e in entry_points(group="vllm.general_plugins") if e.name == "dcu_metrics"]
register = point.load()
register()
register()
from prometheus_client import REGISTRY, generate_latest
print("\\n".join(line for line in generate_latest(REGISTRY).decode().splitlines() if line.startswith("vllm_dcu") and "_created" not in line))
"""


def counted(folder: Path, hits: int, misses: int, simulated: str = "") -> None:
    writer = Writer(folder, Header("gfx936", simulated, (ID,)))
    keys = [Key("hit", "bfloat16", 34816, 5120, ID, None, "1"), Key("miss", "bfloat16", 5120, 17408, None, "no-record", "1")]
    writer.add_keys(1, keys)
    writer.cells[1], writer.cells[2] = hits, misses


def scraped(**env: str) -> list[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("VLLM_DCU_STATS_DIR", "PROMETHEUS_MULTIPROC_DIR")}
    done = subprocess.run([sys.executable, "-c", SCRAPE], env={**clean, **env}, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("vllm_dcu")]


def test_the_wheel_names_the_plugin() -> None:
    points = importlib.metadata.distribution("vllm").entry_points
    assert [(p.group, p.value) for p in points if p.name == "dcu_metrics"] == [
        ("vllm.general_plugins", "vllm.dcu.dispatch.metrics:register")
    ]


def test_hits_and_misses_of_all_processes_are_added_and_a_simulation_stays_apart(tmp_path: Path) -> None:
    counted(tmp_path, 3, 5)
    counted(tmp_path, 4, 1)
    counted(tmp_path, 100, 0, simulated="a test")
    shown = scraped(VLLM_DCU_STATS_DIR=str(tmp_path))
    assert f'vllm_dcu_dispatch_hits_total{{arch="gfx936",capability="{ID}",simulated=""}} 7.0' in shown
    assert f'vllm_dcu_dispatch_hits_total{{arch="gfx936",capability="{ID}",simulated="a test"}} 100.0' in shown
    miss = 'vllm_dcu_dispatch_misses_total{arch="gfx936",dtype="bfloat16",k="17408",m="5120",reason="no-record",rows="1",simulated=""} 6.0'
    assert miss in shown


@pytest.mark.parametrize("case", ["no folder was asked for", "several API servers"])
def test_nothing_is_shown_where_it_could_not_be_true(tmp_path: Path, case: str) -> None:
    counted(tmp_path, 3, 5)
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "VLLM_DCU_STATS_DIR": str(tmp_path)} if case == "several API servers" else {}
    assert scraped(**env) == []


def test_a_folder_that_no_worker_made_yet_is_no_error(tmp_path: Path) -> None:
    assert scraped(VLLM_DCU_STATS_DIR=str(tmp_path / "later")) == []
