"""Counting neither raises, nor blocks, nor faults, whatever happens to its folder, its file, its disk or the log."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.dcu.ask import counters as verb
from vllm.dcu.dispatch import aside, cells, countfiles
from vllm.dcu.dispatch.counters import Tally
from vllm.dcu.dispatch.countfiles import Header, Key, merge, read_folder, read_process, write_merged
from vllm.dcu.dispatch.metrics import DispatchCollector

from scripts.common.injected import CALLS
from tests.support import not_run, release

HEADER = Header("gfx936", "unit test", ("a",))
HIT = Key("hit", "bfloat16", 8, 8, "a", None, "1")
MISS = Key("miss", "bfloat16", 8, 8, "a", "rows", "any")
OTHER = Key("miss", "bfloat16", 64, 64, None, "no-record", "1")
ROOT = Path(__file__).parents[4]
ENVIRON = os.environ | {"PYTHONPATH": f"{ROOT / 'overlay'}:{ROOT}"}


def count(tally: Tally, key: Key, times: int = 1) -> None:
    base = tally.allocate([key])
    tally.cells[base] += times


def file_of(folder: Path) -> Path:
    (path,) = folder.glob("*.counts")
    return path


def hits(folder: Path) -> int:
    return sum(group["hits"].get("a", 0) for group in merge(read_folder(folder)[0]))


def until(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


# One process, and a fork of it for each fault: the fork has a tally of its own, fails one call from `moment` on, counts and ends.
FAULTS = """
import errno, os, sys, traceback
from pathlib import Path
from scripts.common.injected import CALLS, ERRORS, inject
from tests.support import release
from vllm.dcu.dispatch import aside, counters
from vllm.dcu.dispatch.counters import Tally
from vllm.dcu.dispatch.countfiles import Count, Header, Key
counters._AT_EXIT = aside.PATIENCE = 0.2
HEADER = Header("gfx936", "unit test", ("a",))
KEYS = [Key("hit", "bfloat16", n, 8, "a", None, "1") for n in range(4)]
tally = Tally(HEADER, Path(sys.argv[2]))
tally.allocate([KEYS[0]])
def count(key, times):
    base = tally.allocate([key])
    tally.cells[base] += times
for error in ERRORS:
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            print(errno.errorcode[error], status)
        release({child})
        continue
    try:
        if sys.argv[3] == "open":
            count(KEYS[1], 1)
        if not inject(sys.argv[1], error):
            os._exit(77)
        if sys.argv[3] == "first":
            count(KEYS[1], 1)
        count(KEYS[2], 2)
        assert tally.snapshot() == [Count(KEYS[1], 1), Count(KEYS[2], 2)], tally.snapshot()
        tally.finish()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
"""


@pytest.mark.parametrize("moment", ["first", "open"])
@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_system_call_that_fails_harms_nothing(tmp_path: Path, call: str, moment: str) -> None:
    """Each call of the counting path, failing from the first shape on or from a later one on, to the end of the process."""
    done = subprocess.run([sys.executable, "-c", FAULTS, call, str(tmp_path), moment], env=ENVIRON, capture_output=True, text=True)
    if " 77" in done.stdout:
        not_run(f"this machine has no system call {call}")
    assert done.stdout == "", done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("DCU counters go on in memory") <= 6, "the warning came more than once a process"


HARM: dict[str, Callable[[Path], object]] = {
    "removed": lambda folder: shutil.rmtree(folder),
    "a file in its place": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
    "swapped": lambda folder: (folder.rename(folder.with_name("aside")), folder.mkdir()),
    "files cut": lambda folder: [os.truncate(path, 0) for path in folder.rglob("*")],
    "files removed": lambda folder: [path.unlink() for path in folder.rglob("*")],
    "files overwritten": lambda folder: [path.write_bytes(b"x" * 100) for path in folder.rglob("*")],
}
SIGBUS = """
import os, sys
from pathlib import Path
from vllm.dcu.dispatch.counters import Tally
from vllm.dcu.dispatch.countfiles import Header, Key
tally = Tally(Header("gfx936", "unit test", ("a",)), Path(sys.argv[1]))
base = tally.allocate([Key("hit", "bfloat16", 8, 8, "a", None, "1")])
tally.cells[base] += 1
for line in Path("/proc/self/maps").read_text().splitlines():
    if sys.argv[1] in line:
        os.truncate(line.split(maxsplit=5)[-1], 0)
for path in Path(sys.argv[1]).rglob("*"):
    os.truncate(path, 0)
tally.cells[base] += 1
print(tally.snapshot()[0].value)
"""


@pytest.mark.parametrize("harm", HARM)
def test_a_harmed_folder_is_counted_on_and_made_good(tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "stats"
    tally = Tally(HEADER, folder)
    count(tally, HIT, 2)
    with caplog.at_level(logging.WARNING, logger="vllm.dcu"):
        HARM[harm](folder)
        count(tally, MISS)
        count(tally, OTHER)
    assert [c.value for c in tally.snapshot()] == [2, 1, 1]
    assert len(caplog.records) <= 1
    if folder.is_file():
        assert len(caplog.records) == 1
        folder.unlink()
    assert until(lambda: hits(folder) == 2), read_folder(folder)
    tally.finish()
    assert {m["reason"] for m in json.loads((folder / "counters.json").read_text())["groups"][0]["misses"]} == {"rows", "no-record"}


def test_a_file_that_is_cut_under_the_process_is_no_fault(tmp_path: Path) -> None:
    """A mapped file would end the process with SIGBUS here."""
    done = subprocess.run([sys.executable, "-c", SIGBUS, str(tmp_path)], env=ENVIRON, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_a_full_disk_is_no_fault(tmp_path: Path) -> None:
    """A real one: a file system of 64 KiB, on which not even the cells find room, and freed later."""
    code = SIGBUS.replace("os.truncate(path, 0)", "pass").replace(
        "print(", "print(sorted(p.name[:8] for p in Path(sys.argv[1]).iterdir()), "
    )
    mount = f"mount -t tmpfs -o size=64k none {tmp_path} && dd if=/dev/zero of={tmp_path}/filler bs=4k count=15 2>/dev/null"
    argv = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$0" "$@"', sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(argv, env=ENVIRON, capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        not_run(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" 2\n"), done.stdout
    assert done.stderr.count("No space left on device") == 1, done.stderr


@pytest.mark.parametrize("what", ["the disk", "the log"])
def test_what_hangs_is_waited_for_once(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event

    go_on = Event()
    hang = lambda *args, **kwargs: go_on.wait(30)  # noqa: E731
    tally = Tally(HEADER, tmp_path)
    monkeypatch.setattr(aside, "PATIENCE", 0.2)
    try:
        if what == "the disk":
            monkeypatch.setattr(countfiles.os, "open", hang)
            work: Callable[[int], object] = lambda i: count(tally, Key("hit", "bfloat16", i, 8, "a", None, "1"))  # noqa: E731
        else:
            work = lambda i: aside.say(hang)  # noqa: E731
        start = time.monotonic()
        for i in range(20):
            work(i)
        assert time.monotonic() - start < 1.5
    finally:
        go_on.set()
        monkeypatch.undo()
    assert until(lambda: aside.aside(lambda: None))


def test_without_shared_memory_counting_goes_on_and_the_file_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> object:
        raise OSError("no System V memory")

    monkeypatch.setattr(cells, "_libc", none)
    tally = Tally(HEADER, tmp_path)
    count(tally, HIT, 3)
    assert until(lambda: hits(tmp_path) == 3)


def test_a_closed_log_stream_is_silent_at_the_end(tmp_path: Path) -> None:
    code = """
import logging, sys
from pathlib import Path
from vllm.dcu.dispatch.counters import Tally
from vllm.dcu.dispatch.countfiles import Header, Key
stream = open(sys.argv[1] + "/log", "w")
logging.basicConfig(stream=stream, level=logging.INFO)
tally = Tally(Header("gfx936", "unit test", ("a",)), None)
base = tally.allocate([Key("hit", "bfloat16", 8, 8, "a", None, "1")])
tally.cells[base] += 1
stream.close()
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=ENVIRON, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


RUN = """
import os, sys
from pathlib import Path
from vllm.dcu.dispatch.counters import Tally
from vllm.dcu.dispatch.countfiles import Header, Key
tally = Tally(Header("gfx936", "unit test", ("a",)), Path(sys.argv[1]))
base = tally.allocate([Key(sys.argv[2], "bfloat16", 8, 8, "a", None if sys.argv[2] == "hit" else "rows", "1")])
tally.cells[base] += 3
os.kill(os.getpid(), int(sys.argv[3])) if int(sys.argv[3]) else None
"""


def one_run(folder: Path, kind: str, signal: int = 0) -> None:
    subprocess.run([sys.executable, "-c", RUN, str(folder), kind, str(signal)], env=ENVIRON, check=not signal)


@pytest.mark.parametrize("signal", [0, 9])
@pytest.mark.parametrize(("first", "second", "code"), [("hit", "miss", 3), ("miss", "hit", 0)])
def test_never_hit_is_judged_by_the_last_run(
    tmp_path: Path, first: str, second: str, code: int, signal: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in (first, second):
        one_run(tmp_path, kind, signal)
        assert hits(tmp_path) == (3 if "hit" in (first, kind) else 0)
    assert verb.main([str(tmp_path)]) == code
    assert ("NEVER HIT" in capsys.readouterr().out) == bool(code)
    assert hits(tmp_path) == 3


def old_files(folder: Path, number: int) -> None:
    """As many files of processes that are dead, each a run of its own with one hit."""
    one_run(folder, "hit")
    path = file_of(folder)
    data = path.read_bytes()
    stem = path.stem.encode()
    path.unlink()
    for i in range(number):
        other = data.replace(stem, b"dispatch-1-%d" % i)
        (folder / f"dispatch-1-{i}.counts").write_bytes(other)


def test_dead_files_fold_into_one_and_no_count_is_lost(tmp_path: Path) -> None:
    old_files(tmp_path, 300)
    assert hits(tmp_path) == 900
    count(Tally(HEADER, tmp_path), HIT, 5)
    assert until(lambda: len(list(tmp_path.glob("*.counts"))) <= 1)
    assert hits(tmp_path) == 905
    one_run(tmp_path, "hit")
    assert hits(tmp_path) == 908
    (group,) = json.loads(write_merged(tmp_path).read_text())["groups"]
    assert (group["hits"], group["folded"]) == ({"a": 908}, 301)


@pytest.mark.parametrize("moment", ["replace", "unlink"])
def test_a_fold_that_is_interrupted_counts_nothing_twice(tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old_files(tmp_path, 30)

    def fails(*args: object, **kwargs: object) -> None:
        raise OSError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(Path, moment, fails)
        with pytest.raises(OSError, match="interrupted"):
            write_merged(tmp_path)
    assert hits(tmp_path) == 90
    write_merged(tmp_path)
    assert hits(tmp_path) == 90


def test_a_damaged_fold_is_named_and_left_alone(tmp_path: Path) -> None:
    old_files(tmp_path, 30)
    (tmp_path / "folded.json").write_text("{")
    data = json.loads(write_merged(tmp_path).read_text())
    assert "folded.json was left out" in data["problems"][0]
    assert hits(tmp_path) == 90
    assert (tmp_path / "folded.json").read_text() == "{"


def test_thousands_of_old_files_are_read_once(tmp_path: Path) -> None:
    old_files(tmp_path, 1000)
    collector = DispatchCollector(tmp_path)
    reader = collector._whole._reader
    assert len(reader.read()[0]) == 1000
    start = time.process_time()
    processes, problems = reader.read()
    assert time.process_time() - start < 0.5
    assert (len(processes), problems) == (1000, [])


def tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns, p.stat().st_size) for p in (folder, *folder.rglob("*"))}


def test_counters_changes_nothing_in_a_folder(tmp_path: Path) -> None:
    old_files(tmp_path, 20)
    one_run(tmp_path, "hit", signal=9)
    before = tree(tmp_path)
    assert verb.main([str(tmp_path)]) == 0
    assert tree(tmp_path) == before


@pytest.mark.parametrize("signal", [0, 9])
def test_memory_outlives_only_a_killed_process_and_only_until_it_is_folded(tmp_path: Path, signal: int) -> None:
    one_run(tmp_path, "hit", signal)
    path = file_of(tmp_path)
    segment = read_process(path).header.segment
    assert (cells.attached(segment, path.name) is not None) == bool(signal)
    one_run(tmp_path, "hit")
    assert cells.attached(segment, path.name) is None
    assert hits(tmp_path) == 6


@pytest.fixture(autouse=True, scope="module")
def _no_memory_left() -> Iterator[None]:
    """What the killed processes of these tests left in folders that nobody folds. Theirs alone: whoever else counts on this machine, in
    another test or in a server, still needs his."""
    ours: set[int] = set()

    class Remembered(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            ours.add(self.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Remembered)
        yield
    release(ours)
