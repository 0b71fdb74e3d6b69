"""Counters: nothing lost, nothing counted twice, simulated never added to real."""

from __future__ import annotations

import fcntl
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm.dcu.ask import counters
from vllm.dcu.dispatch.counters import OVERFLOW, Tally
from vllm.dcu.dispatch.countfiles import CELLS, Count, Header, Key, merge, read_folder, read_process, write_merged
from vllm.dcu.dispatch.countfolder import locked
from vllm.dcu.records.catalog import MISSION

ID = MISSION.id
HEADER = Header(arch="gfx936", simulated="unit test", open=(ID,))
HIT = Key("hit", "bfloat16", 34816, 5120, ID, None, "1")
MISS = Key("miss", "bfloat16", 34816, 5120, ID, "rows", "any")
OTHER = Key("miss", "bfloat16", 64, 64, None, "no-record", "1")


def count(tally: Tally, key: Key, times: int) -> None:
    base = tally.allocate([key])
    tally.cells[base] += times


def groups(folder: Path) -> list[dict]:
    return json.loads(write_merged(folder).read_text())["groups"]


@pytest.fixture(params=[False, True], ids=["in memory", "in a file"])
def tally(request: pytest.FixtureRequest, tmp_path: Path) -> Tally:
    return Tally(HEADER, tmp_path / "stats" if request.param else None)


def test_a_new_tally_has_counted_nothing(tally: Tally) -> None:
    assert tally.snapshot() == []


def test_each_cell_counts_what_its_key_says(tally: Tally) -> None:
    base = tally.allocate([HIT, MISS])
    tally.cells[base] += 3
    tally.cells[base + 1] += 1
    assert tally.snapshot() == [Count(HIT, 3), Count(MISS, 1)]


def test_when_the_cells_are_used_up_calls_are_still_counted(tally: Tally) -> None:
    assert tally.allocate([OTHER] * (CELLS - 2)) == 2
    assert tally.allocate([HIT]) == 0
    tally.cells[0] += 1
    tally.cells[1] += 1
    assert {c.key for c in tally.snapshot()} == {OVERFLOW}


def test_counts_are_in_the_file_while_the_process_runs(tmp_path: Path) -> None:
    tally = Tally(HEADER, tmp_path)
    base = tally.allocate([HIT])
    tally.cells[base] += 5
    ((process,), problems) = read_folder(tmp_path)
    assert problems == []
    assert process.counts == (Count(HIT, 5),)
    assert (process.header.pid, process.header.simulated) == (os.getpid(), "unit test")


def test_a_process_that_dispatches_nothing_leaves_no_file(tmp_path: Path) -> None:
    Tally(HEADER, tmp_path).finish()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_warned_about_and_counting_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, logger="vllm.dcu"):
        tally = Tally(HEADER, tmp_path / "file" / "stats")
        base = tally.allocate([HIT])
        tally.allocate([MISS])
    tally.cells[base] += 1
    assert tally.snapshot() == [Count(HIT, 1)]
    assert len(caplog.records) == 1


def test_the_summary_is_one_line_and_is_said_once(caplog: pytest.LogCaptureFixture, tally: Tally) -> None:
    base = tally.allocate([HIT, MISS])
    tally.cells[base] += 2
    tally.cells[base + 1] += 7
    with caplog.at_level(logging.INFO, logger="vllm.dcu"):
        tally.finish()
        tally.finish()
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"hits: {ID} 2" in line
    assert "misses: rows 7" in line
    assert "simulated: unit test" in line
    assert "graph replays are not counted" in line


def test_an_open_capability_without_a_hit_is_reported(caplog: pytest.LogCaptureFixture, tally: Tally) -> None:
    count(tally, MISS, 1)
    with caplog.at_level(logging.WARNING, logger="vllm.dcu"):
        tally.finish()
    assert "never hit" in caplog.records[-1].getMessage()
    assert ID in caplog.records[-1].getMessage()


def test_a_process_without_any_dispatch_reports_nothing(caplog: pytest.LogCaptureFixture, tally: Tally) -> None:
    with caplog.at_level(logging.INFO, logger="vllm.dcu"):
        tally.finish()
    assert caplog.records == []


def _work(folder: Path, hits: int) -> None:
    tally = Tally(HEADER, folder)
    count(tally, HIT, hits)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_hits_of_worker_processes_are_added_up(tmp_path: Path, method: str) -> None:
    """A worker's hits must not be lost, and a forked worker must not add to its parent's file."""
    parent = Tally(HEADER, tmp_path)
    count(parent, HIT, 1)
    workers = [multiprocessing.get_context(method).Process(target=_work, args=(tmp_path, n)) for n in (10, 100)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    (group,) = groups(tmp_path)
    assert group["hits"] == {ID: 111}
    assert len(group["processes"]) == 3


def _work_later(folder: Path, told: Any) -> None:
    told.recv()
    _work(folder, 7)


def test_a_child_that_was_forked_while_the_folder_was_locked_loses_nothing(tmp_path: Path) -> None:
    """It has its parent's lock open too: it may neither wait for itself nor keep others waiting."""
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_work_later, args=(tmp_path, there), daemon=True)
    with locked(tmp_path):
        child.start()
    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    here.send("count")
    child.join(20)
    assert child.exitcode == 0
    (group,) = groups(tmp_path)
    assert group["hits"] == {ID: 7}


def _inherit(tally: Tally, voided: list[int]) -> None:
    assert voided == [1], "the owner was not told that its cells are void"
    assert tally.snapshot() == [], "the child started with its parent's counts"
    count(tally, HIT, 20)


def test_a_tally_inherited_by_a_forked_child_starts_from_zero(tmp_path: Path) -> None:
    voided: list[int] = []
    tally = Tally(HEADER, tmp_path, on_reset=lambda: voided.append(1))
    base = tally.allocate([HIT])
    tally.cells[base] += 1
    child = multiprocessing.get_context("fork").Process(target=_inherit, args=(tally, voided))
    child.start()
    child.join()
    assert child.exitcode == 0
    tally.cells[base] += 1
    (group,) = groups(tmp_path)
    assert group["hits"] == {ID: 22}


KILLED = """
import os, signal, sys
from pathlib import Path
from typing import Any
from vllm.dcu.dispatch.counters import Tally
from vllm.dcu.dispatch.countfiles import Header, Key
tally = Tally(Header("gfx936", "unit test", ("a",)), Path(sys.argv[1]))
base = tally.allocate([Key("hit", "bfloat16", 8, 8, "a", None, "1")])
tally.cells[base] += 42
os.kill(os.getpid(), int(sys.argv[2]))
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_process_loses_no_count(tmp_path: Path, number: signal.Signals) -> None:
    overlay = str(Path(__file__).parents[4] / "overlay")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(int(number))], env=os.environ | {"PYTHONPATH": overlay})
    assert done.returncode == -number
    (group,) = groups(tmp_path)
    assert group["hits"] == {"a": 42}


def test_a_process_that_ends_writes_the_sum_of_all(tmp_path: Path) -> None:
    code = KILLED.replace("os.kill(os.getpid(), int(sys.argv[2]))\nsignal.pause()\n", "")
    overlay = str(Path(__file__).parents[4] / "overlay")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=os.environ | {"PYTHONPATH": overlay})
    (group,) = json.loads((tmp_path / "counters.json").read_text())["groups"]
    assert group["hits"] == {"a": 84}


def test_simulated_and_real_are_never_added_together(tmp_path: Path) -> None:
    for simulated in ("", "unit test", ""):
        tally = Tally(Header("gfx936", simulated, (ID,)), tmp_path)
        count(tally, HIT, 1)
    assert [(g["simulated"], g["hits"]) for g in groups(tmp_path)] == [("", {ID: 2}), ("unit test", {ID: 1})]


def test_a_capability_hit_in_one_process_is_not_reported_as_never_hit(tmp_path: Path) -> None:
    for key in (HIT, MISS):
        tally = Tally(HEADER, tmp_path)
        count(tally, key, 1)
    (group,) = groups(tmp_path)
    assert group["never_hit"] == []


def test_misses_are_sorted_by_how_often_they_happened(tmp_path: Path) -> None:
    tally = Tally(HEADER, tmp_path)
    base = tally.allocate([MISS, OTHER])
    tally.cells[base] += 2
    tally.cells[base + 1] += 9
    (group,) = groups(tmp_path)
    assert [(m["reason"], m["count"]) for m in group["misses"]] == [("no-record", 9), ("rows", 2)]
    assert group["never_hit"] == [ID]


@pytest.mark.parametrize("cut", [0, 10, CELLS * 8, CELLS * 8 + 5])
def test_a_file_that_is_cut_short_is_left_out_and_named(tmp_path: Path, cut: int) -> None:
    tally = Tally(HEADER, tmp_path)
    count(tally, HIT, 1)
    (path,) = tmp_path.glob("*.counts")
    broken = tmp_path / "broken.counts"
    broken.write_bytes(path.read_bytes()[:cut])
    processes, problems = read_folder(tmp_path)
    assert len(processes) == 1
    assert len(problems) == 1
    assert "broken.counts was left out" in problems[0]


def test_a_line_that_is_being_written_is_ignored(tmp_path: Path) -> None:
    tally = Tally(HEADER, tmp_path)
    count(tally, HIT, 1)
    (path,) = tmp_path.glob("*.counts")
    with path.open("ab") as file:
        file.write(b'{"cell": 3, "kin')
    assert read_process(path).counts == (Count(HIT, 1),)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.counts").write_bytes(bytes(CELLS * 8) + b'{"format": 99}\n')
    with pytest.raises(ValueError, match="99 is not one of 1"):
        read_process(tmp_path / "x.counts")


def test_nothing_merges_to_nothing() -> None:
    assert merge([]) == []


def test_the_counters_verb_adds_up_and_tells_what_was_never_hit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert counters.main([str(tmp_path)]) == 0
    assert "no process has dispatched" in capsys.readouterr().out
    tally = Tally(HEADER, tmp_path)
    base = tally.allocate([HIT, OTHER])
    tally.cells[base + 1] += 1
    assert counters.main([str(tmp_path)]) == 3
    text = capsys.readouterr().out
    assert f"NEVER HIT although open: {ID}" in text
    assert "bfloat16 64 x 64, N = 1: no-record" in text
    tally.cells[base] += 1
    assert counters.main([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["hits"] == {ID: 1}


def test_the_counters_verb_refuses_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert counters.main([str(tmp_path / "none")]) == 1
    assert "VLLM_DCU_STATS_DIR" in capsys.readouterr().err
