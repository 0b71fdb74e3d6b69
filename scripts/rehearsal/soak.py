"""A soak: one real server, a simulated gfx936, clients that come and go, and everything done to its counters that a bad day does.

For `seconds`, in three parts: completions of mixed lengths from several clients at once, streams that are hung up on, requests that are no
requests. Meanwhile the disk under the stats folder is filled and freed, the folder is swapped for an empty one, its files are cut. The first part
ends with the idle engine killed, the second with its worker killed under load, and each time a server is started again on the same folder; the
third ends as an operator ends it. Then the counts must be exact: as many hits as runs of the kernel, as many hits and misses as GEMMs, both
counted elsewhere; a worker that is killed may have begun one that it did not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vllm.dcu.dispatch.countfiles import read_folder
from vllm.dcu.records.catalog import MISSION

from scripts.common.files import remove_tree, say
from scripts.common.paths import BUILD
from scripts.rehearsal import drive
from scripts.rehearsal.records import read_counts
from scripts.rehearsal.soak_clients import Clients, Soaked
from scripts.rehearsal.verb import Scene, environment
from scripts.serving.server import model_folder, serving

__all__ = ["Soaked", "soak", "wrong"]

FOLDER = BUILD / "rehearsal" / "soak"
_PARTS = (("first", ()), ("second", ("--distributed-executor-backend", "mp")), ("third", ()))
"""The second has a worker process of its own, to be killed."""


def soak(seconds: float, python: Path) -> Soaked:
    """Do it. Everything that was started or mounted is gone afterwards."""
    remove_tree(FOLDER)
    seen, begun = Soaked(), time.monotonic()
    with _small_disk(FOLDER / "disk", seen) as disk:
        folders = drive.Folders(disk / "stats", FOLDER / "sim")
        for folder in (folders.stats, folders.log):
            folder.mkdir(parents=True, exist_ok=True)
        scene = Scene("soak", "on")
        model = model_folder(scene.model, python)
        arguments = ["--max-num-seqs", "4", "--enforce-eager"]
        for number, (name, more) in enumerate(_PARTS, 1):
            log = BUILD / "rehearsal" / "logs" / f"soak-{name}.log"
            given = environment(scene, folders, None, None)
            with serving(python, model, log, arguments=[*arguments, *more], environment=given) as server:
                say(f"soak: the {name} part, {seconds / len(_PARTS):.0f} s")
                clients = Clients(server, number, seen)
                _part(clients, folders, disk, seconds / len(_PARTS))
                if name == "second":
                    seen.done_to_it["worker killed"] += clients.kill_worker()
                clients.join()
                time.sleep(1.5)  # the file is half a second behind
                if name == "first":
                    seen.done_to_it["engine killed"] += drive.end_by_kill(server, folders)["noticed"]
                elif name == "third":
                    seen.exit_code = server.stop()
        counts = read_counts(folders.stats, folders.log)
        seen.hits, seen.kernel_runs, seen.gemms = counts.hits, counts.calls, len(counts.all_rows)
        shape = (MISSION.contract.m, MISSION.contract.k)
        found = (count for process in read_folder(folders.stats)[0] for count in process.counts)
        seen.counted = sum(count.value for count in found if (count.key.m, count.key.k) == shape)
    seen.seconds = round(time.monotonic() - begun, 1)
    (FOLDER / "soak.json").write_text(json.dumps(vars(seen), indent=1) + "\n", encoding="utf-8")
    return seen


MEMORY_SAMPLES = 240
"""Fewer samples of the memory cannot tell growth from noise (a run of a minute moved by a sixth): then nothing is claimed of it."""
LONG = 1200.0
"""A soak of so many seconds must have them."""


def wrong(seen: Soaked) -> list[str]:
    """What is not right in what was seen, one sentence each."""
    found = [f"{len(seen.lost)} requests were lost, first: {seen.lost[0]}"] if seen.lost else []
    found += [f"/metrics could not be read: {seen.bad_scrapes[0]}"] if seen.bad_scrapes else []
    cut = seen.done_to_it["worker killed"]  # each had begun one call at most that it did not live to count
    if not 0 < seen.hits <= seen.kernel_runs <= seen.hits + cut:
        found.append(f"{seen.hits} hits were counted, the kernel ran {seen.kernel_runs} times")
    if not 0 < seen.counted <= seen.gemms <= seen.counted + cut:
        found.append(f"{seen.counted} hits and misses were counted, {seen.gemms} GEMMs came")
    if seen.exit_code != 0:
        found.append(f"exit code {seen.exit_code} after SIGTERM")
    missing = {"folder swapped", "files cut", "engine killed", "worker killed"} - set(+seen.done_to_it)
    found += [f"this was never done: {', '.join(sorted(missing))}"] if missing else []
    kinds = {kind.split(":")[0] for kind in seen.answers}
    found += [f"no request was {kind}" for kind in ("completed", "cancelled", "malformed", "failed visibly") if kind not in kinds]
    return found + _grown(seen)


def _grown(seen: Soaked) -> list[str]:
    if len(seen.memory) < MEMORY_SAMPLES:
        return [f"only {len(seen.memory)} samples of the memory in {seen.seconds:.0f} s"] if seen.seconds >= LONG else []
    found = []
    for part in range(1, len(_PARTS) + 1):
        rows = [rss for when, rss in seen.memory if when == part]
        start, end = (statistics.median(rows[int(len(rows) * at) :][: len(rows) // 5 + 1] or [0]) for at in (0.4, 0.8))
        if not rows or end > start * 1.05 + (64 << 20):
            found.append(f"memory grew from {int(start) >> 20} to {int(end) >> 20} MiB in the second half of part {part}")
    return found


@contextlib.contextmanager
def _small_disk(folder: Path, seen: Soaked) -> Iterator[Path]:
    """A file system of 2 MiB at `folder`, where one can be mounted."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "soak", str(folder)], capture_output=True, text=True, errors="replace", check=False
    )
    seen.disk = "2 MiB" if done.returncode == 0 else f"not run: no file system can be mounted here ({done.stderr.strip()})"
    try:
        yield folder
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def _part(clients: Clients, folders: drive.Folders, disk: Path, seconds: float) -> None:
    seen, end = clients.seen, time.monotonic() + seconds
    clients.server.complete("Hello", 2)
    clients.start()
    steps: list[tuple[str, Callable[[], object]]] = [
        ("disk filled", lambda: _fill(disk, seen)),
        ("disk freed", lambda: (disk / "filler").unlink(missing_ok=True)),
        ("folder swapped", lambda: _swap(folders.stats, disk)),
        ("files cut", lambda: _cut(folders.stats)),
    ]
    while time.monotonic() < end:
        for name, step in steps:
            time.sleep(max(0.0, min(seconds / 8, end - time.monotonic())))
            # What dead processes left is only in their files: those are neither swapped nor cut.
            if clients.part == 1 or name.startswith("disk"):
                step()
                seen.done_to_it[name] += name != "disk filled" or "MiB" in seen.disk
    (disk / "filler").unlink(missing_ok=True)


def _swap(stats: Path, disk: Path) -> None:
    stats.rename(disk / f"old-{time.time_ns()}")
    stats.mkdir()


def _cut(stats: Path) -> None:
    for path in stats.glob("*.counts"):
        os.truncate(path, 0)


def _fill(disk: Path, seen: Soaked) -> None:
    if "MiB" not in seen.disk:
        return
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
