# SPDX-License-Identifier: Apache-2.0
"""The counter file of a process, and how the files of a run are added up.  Standard library only.

A file `dispatch-<pid>-<start>.counts` holds, first, `CELLS` signed 64-bit integers (little endian), which the process maps and adds to;
after them, lines of JSON that are only ever appended: the header, then one line `{"cell": i, ...}` for each cell in use. A cell's
line is written before the cell is used. A last line without its newline is one that is being written: it is ignored.
`counters.json` in the same folder is the sum, written whole or not at all.
"""

import dataclasses
import fcntl
import json
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from vllm.dcu.records.strict import StrictError, parse_json, plain, read_bytes
from vllm.dcu.records.typed import Between, Words, load, take

__all__ = ["CELLS", "Count", "Header", "Key", "ProcessCounts", "Writer", "merge", "read_folder", "read_process", "write_merged"]

CELLS = 8192
_BYTES = CELLS * 8
_MOST_BYTES = _BYTES + CELLS * 1024
_SUFFIX = ".counts"
_FORMAT = 1


@dataclass(frozen=True)
class Key:
    """What one cell counts.

    Attributes:
        kind: `hit` or `miss`.
        dtype, m, k: the weight's.
        record: the capability's id, or None where no record covers the shape.
        reason: a miss's reason; None for a hit.
        rows: `1` or `other` where calls are told apart by N, else `any`.
    """

    kind: Annotated[str, Words("hit|miss", "hit or miss")]
    dtype: str
    m: int
    k: int
    record: str | None
    reason: str | None
    rows: Annotated[str, Words("1|other|any", "1, other or any")]


@dataclass(frozen=True)
class Count:
    """How often `key` happened."""

    key: Key
    value: int


@dataclass(frozen=True)
class Header:
    """What a process is: its device, whether that is simulated, and which capabilities are open in it."""

    arch: str
    simulated: str
    open: tuple[str, ...]
    pid: Annotated[int, Between(0, 1 << 31)] = 0
    started: Annotated[float, Between(0, 1e11)] = 0.0


@dataclass(frozen=True)
class ProcessCounts:
    """One process's header and its counts that are not zero."""

    header: Header
    counts: tuple[Count, ...]


class Writer:
    """The file of the running process. `cells` is the mapping to add to."""

    def __init__(self, folder: Path, header: Header) -> None:
        """Make the file.

        Raises:
            OSError: the folder cannot be made or written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        pid = os.getpid()
        header = dataclasses.replace(header, pid=pid, started=time.time())
        self.path = folder / f"dispatch-{pid}-{time.time_ns()}{_SUFFIX}"
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, _BYTES)
            self.cells = memoryview(mmap.mmap(fd, _BYTES)).cast("q")
        finally:
            os.close(fd)
        self._append([{"format": _FORMAT, **dataclasses.asdict(header)}])

    def add_keys(self, base: int, keys: Sequence[Key]) -> None:
        """Say what the cells from `base` on count. A full disk loses names, never a call."""
        self._append([{"cell": base + i, **dataclasses.asdict(key)} for i, key in enumerate(keys)])

    def _append(self, lines: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        with self.path.open("ab", buffering=0) as file:
            file.write(text)


def read_process(path: Path) -> ProcessCounts:
    """Read one process's file, also while the process runs.

    Raises:
        StrictError: it is no regular file, not a counter file, or was cut short.
        FileNotFoundError: it is gone.
    """
    data = read_bytes(path, _MOST_BYTES)
    lines = data[_BYTES:].split(b"\n")[:-1]
    if len(data) < _BYTES or not lines:
        raise StrictError("", "it is not a whole counter file")
    head = parse_json(lines[0])
    take(Literal[1], head, "format")
    values = struct.unpack_from(f"<{CELLS}q", data)
    totals: dict[Key, int] = {}
    seen: set[int] = set()
    for line in lines[1:]:
        entry = parse_json(line)
        cell = take(Annotated[int, Between(0, CELLS - 1)], entry, "cell")
        key = load(Key, entry)
        if cell in seen or values[cell] < 0:
            raise StrictError("cell", f"{cell} stands twice, or holds less than nothing")
        seen.add(cell)
        if value := values[cell]:
            totals[key] = totals.get(key, 0) + value
    return ProcessCounts(load(Header, head), tuple(Count(key, value) for key, value in totals.items()))


def read_folder(folder: Path) -> tuple[list[ProcessCounts], list[str]]:
    """Every process's counts, oldest first, and one sentence for each file that could not be read."""
    processes: list[ProcessCounts] = []
    problems: list[str] = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            processes.append(read_process(path))
        except FileNotFoundError:
            continue
        except StrictError as error:
            problems.append(f"{plain(path.name)} was left out: {StrictError(error.field, error.why)}")
    return sorted(processes, key=lambda process: process.header.started), problems


def merge(processes: Sequence[ProcessCounts]) -> list[dict[str, Any]]:
    """The sums, as plain data: one group for each (arch, simulated), so that a simulation is never added to hardware.

    A group has `arch`, `simulated`, `processes` (pids), `hits` (by capability), `misses` (sorted, most frequent first) and
    `never_hit`: capabilities that were open somewhere in the group and were hit nowhere.
    """
    groups: dict[tuple[str, str], list[ProcessCounts]] = {}
    for process in processes:
        groups.setdefault((process.header.arch, process.header.simulated), []).append(process)
    return [_merge_group(arch, simulated, members) for (arch, simulated), members in sorted(groups.items())]


def _merge_group(arch: str, simulated: str, members: Sequence[ProcessCounts]) -> dict[str, Any]:
    totals: dict[Key, int] = {}
    for process in members:
        for count in process.counts:
            totals[count.key] = totals.get(count.key, 0) + count.value
    hits: dict[str, int] = {ident: 0 for process in members for ident in process.header.open}
    misses: list[dict[str, Any]] = []
    for key, value in totals.items():
        if key.kind == "hit":
            hits[str(key.record)] = hits.get(str(key.record), 0) + value
        else:
            entry = dataclasses.asdict(key)
            del entry["kind"]
            misses.append({**entry, "count": value})
    misses.sort(key=lambda miss: (-miss["count"], miss["m"], miss["k"], str(miss["reason"]), miss["rows"]))
    return {
        "arch": arch,
        "simulated": simulated,
        "processes": [process.header.pid for process in members],
        "hits": hits,
        "misses": misses,
        "never_hit": sorted(ident for ident, value in hits.items() if not value),
    }


def write_merged(folder: Path) -> Path:
    """Write `counters.json`, the sum of every process's file in `folder` as it stands now. Returns its path.

    Raises:
        OSError: the folder cannot be written.
    """
    target = folder / "counters.json"
    # The lock makes read-and-replace one step, so that a slower process cannot put an older sum over a newer one.
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        processes, problems = read_folder(folder)
        text = json.dumps({"format": _FORMAT, "groups": merge(processes), "problems": problems}, indent=2) + "\n"
        handle, name = tempfile.mkstemp(dir=folder, prefix=".counters-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(target)
    return target
