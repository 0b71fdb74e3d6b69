"""A soak: one real server, a simulated gfx936, clients that come and go, and everything done to its counters that a bad day does.

For `seconds`, in two halves: completions of mixed lengths from several clients at once, streams that are hung up on, requests that are no
requests. Meanwhile the disk under the stats folder is filled and freed, the folder is swapped for an empty one, its files are cut. Between the
halves the engine is killed and a server started again on the same folder. At the end the counts must be exact: as many hits
as runs of the kernel, as many hits and misses as GEMMs, both counted elsewhere.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.dcu.dispatch.countfiles import read_folder
from vllm.dcu.records.catalog import MISSION
from vllm.dcu.verify.server import Server, processes_of

from scripts.common.files import remove_tree, say
from scripts.common.paths import BUILD
from scripts.rehearsal import drive
from scripts.rehearsal.records import read_counts
from scripts.rehearsal.verb import Scene, environment
from scripts.serving.server import model_folder, serving

__all__ = ["Soaked", "soak", "wrong"]

FOLDER = BUILD / "rehearsal" / "soak"
_CLIENTS = 3
_LINE = re.compile(
    r'(#.*|[a-zA-Z_:][\w:]*(\{(?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*\})? (?:[-+]?[\d.]+(?:e[-+]?\d+)?|NaN|[+-]Inf)( \d+)?)?', re.I
)
"""A line of the exposition format."""
_MALFORMED: tuple[tuple[bytes, str], ...] = (
    (b"{", "no JSON"),
    (b'{"model": "nobody", "prompt": "a", "max_tokens": 1}', "an unknown model"),
    (b'{"model": "made-here", "prompt": "a", "max_tokens": -1}', "a negative length"),
    (b'{"model": "made-here", "prompt": [[]], "max_tokens": 1}', "no prompt"),
    (b'{"model": "made-here", "prompt": "' + b"a" * 4000 + b'", "max_tokens": 1}', "too long a prompt"),
)


@dataclass
class Soaked:
    """What was seen. `answers`: by kind of request and how it ended; `lost`: requests that were neither answered nor cancelled."""

    seconds: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    done_to_it: Counter[str] = field(default_factory=Counter)
    scrapes: int = 0
    bad_scrapes: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    hits: int = 0
    kernel_runs: int = 0
    counted: int = 0
    gemms: int = 0
    disk: str = ""
    exit_code: int | None = None


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
        for half in ("first", "second"):
            log = BUILD / "rehearsal" / "logs" / f"soak-{half}.log"
            with serving(python, model, log, arguments=arguments, environment=environment(scene, folders, None, None)) as server:
                say(f"soak: the {half} half, {seconds / 2:.0f} s")
                _half(server, folders, disk, seconds / 2, seen)
                if half == "first":
                    seen.done_to_it["engine killed"] += drive.end_by_kill(server, folders)["noticed"]
                else:
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


def wrong(seen: Soaked) -> list[str]:
    """What is not right in what was seen, one sentence each."""
    found = [f"{len(seen.lost)} requests were lost, first: {seen.lost[0]}"] if seen.lost else []
    found += [f"/metrics could not be read: {seen.bad_scrapes[0]}"] if seen.bad_scrapes else []
    if not seen.hits == seen.kernel_runs > 0:
        found.append(f"{seen.hits} hits were counted, the kernel ran {seen.kernel_runs} times")
    if not seen.counted == seen.gemms > 0:
        found.append(f"{seen.counted} hits and misses were counted, {seen.gemms} GEMMs came")
    if seen.exit_code != 0:
        found.append(f"exit code {seen.exit_code} after SIGTERM")
    missing = {"folder swapped", "files cut", "engine killed"} - set(+seen.done_to_it)
    found += [f"this was never done: {', '.join(sorted(missing))}"] if missing else []
    kinds = {kind.split(":")[0] for kind in seen.answers}
    found += [f"no request was {kind}" for kind in ("completed", "cancelled", "malformed") if kind not in kinds]
    for half in (1, 2) if len(seen.memory) >= MEMORY_SAMPLES else ():
        rows = [rss for when, rss in seen.memory if when == half]
        start, end = rows[len(rows) // 2 : len(rows) // 2 + 1] or [0], rows[-1:] or [0]
        if not rows or end[0] > start[0] * 1.05 + (64 << 20):
            found.append(f"memory grew from {start[0] >> 20} to {end[0] >> 20} MiB in the second part of half {half}")
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


def _half(server: Server, folders: drive.Folders, disk: Path, seconds: float, seen: Soaked) -> None:
    end = time.monotonic() + seconds
    server.complete("Hello", 2)
    number = 1 + (seen.done_to_it["engine killed"] > 0)
    chances = [random.Random(i + 10 * number) for i in range(_CLIENTS)]  # noqa: S311  (the same requests in every soak)
    threads = [threading.Thread(target=_client, args=(server, end, seen, chance)) for chance in chances]
    threads.append(threading.Thread(target=_watch, args=(server, end, seen, number)))
    for thread in threads:
        thread.start()
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
            if number == 1 or name.startswith("disk"):
                step()
                seen.done_to_it[name] += name != "disk filled" or "MiB" in seen.disk
    (disk / "filler").unlink(missing_ok=True)
    for thread in threads:
        thread.join(300)
    time.sleep(1.5)  # the file is half a second behind


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


def _client(server: Server, end: float, seen: Soaked, chance: random.Random) -> None:
    while time.monotonic() < end:
        kind = chance.choices(("completed", "cancelled", "malformed"), (6, 2, 2))[0]
        tokens, prompt = chance.randint(1, 8), "x" * chance.choice((1, 2, 9, 40))
        try:
            how = {"completed": _complete, "cancelled": _cancel, "malformed": _malform}[kind](server, prompt, tokens, chance)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            seen.lost.append(f"{kind}: {type(error).__name__}: {error}")
        else:
            seen.answers[f"{kind}: {how}"] += 1


def _complete(server: Server, prompt: str, tokens: int, chance: random.Random) -> str:
    found: dict[str, Any] = server.complete(prompt, tokens)
    if found["usage"]["completion_tokens"] != tokens:
        raise ValueError(f"{found['usage']['completion_tokens']} tokens came, {tokens} were due")
    return "whole"


def _cancel(server: Server, prompt: str, tokens: int, chance: random.Random) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    body = {"model": server.model, "prompt": prompt, "max_tokens": 64, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    connection.getresponse().readline()
    connection.close()
    return "after the first event"


def _malform(server: Server, prompt: str, tokens: int, chance: random.Random) -> str:
    body, what = chance.choice(_MALFORMED)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        status = connection.getresponse().status
    finally:
        connection.close()
    if not 400 <= status < 500:
        raise ValueError(f"{what} was answered with {status}")
    return what


def _watch(server: Server, end: float, seen: Soaked, half: int) -> None:
    """Scrape and measure memory, until the end. Before the first dispatch, and while a folder is
    swapped, the page is whole and has no counter of ours."""
    counted = False
    while time.monotonic() < end:
        try:
            status, content = server.request("/metrics", seconds=60)
            lines = content.decode().splitlines()
            bad = next((line for line in lines if not _LINE.fullmatch(line)), "" if status == 200 else f"status {status}")
            ours = any(line.startswith("vllm_dcu_dispatch_misses_total") for line in lines)
            if bad:
                seen.bad_scrapes.append(bad)
            counted = counted or ours
        except (OSError, http.client.HTTPException, ValueError) as error:
            seen.bad_scrapes.append(str(error))
        seen.scrapes += 1
        seen.memory.append((half, sum(_resident(pid) for pid in processes_of(server.process.pid))))
        time.sleep(1.0)
    if not counted:
        seen.bad_scrapes.append(f"no counter of ours in half {half}")


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
