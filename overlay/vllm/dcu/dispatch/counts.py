# SPDX-License-Identifier: Apache-2.0
"""What was counted: keys, counts, processes, their sums, and how a file says it.  Standard library only.

A counter file `dispatch-<pid>-<start>.counts` holds, first, `CELLS` signed 64-bit integers (little endian); after them, lines of JSON: the
header, then one line `{"cell": i, ...}` for each cell in use. A last line without its newline is one that is being written: it is ignored.
"""

import dataclasses
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from vllm.dcu.dispatch.cells import CELL_BYTES, CELLS
from vllm.dcu.records.strict import StrictError, parse_json
from vllm.dcu.records.typed import Between, Words, load, take

__all__ = ["FORMAT", "SUFFIX", "Count", "Header", "Key", "ProcessCounts", "merge", "split", "totals", "values"]

SUFFIX = ".counts"
FORMAT = 1


@dataclass(frozen=True)
class Key:
    """What one cell counts.

    Attributes:
        kind: `hit` or `miss`, which count dispatches, or `launch`, which the kernel itself counts, replays of graphs included.
        dtype, m, k: the weight's.
        record: the capability's id, or None where no record covers the shape.
        reason: a miss's reason; else None.
        rows: `1` or `other` where calls are told apart by N, else `any`.
    """

    kind: Annotated[str, Words("hit|miss|launch", "hit, miss or launch")]
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
    """What a process is: its device, whether that is simulated, which capabilities are open in it, which run it belongs to, and the number of
    the memory segment that it counts in (-1: none).

    A run is the processes that count in one folder without a moment between them in which none lived.
    """

    arch: str
    simulated: str
    open: tuple[str, ...]
    pid: Annotated[int, Between(0, 1 << 31)] = 0
    started: Annotated[float, Between(0, 1e11)] = 0.0
    run: str = ""
    segment: Annotated[int, Between(-1, 1 << 31)] = -1


@dataclass(frozen=True)
class ProcessCounts:
    """One process's header and its counts that are not zero; or those of `folded` processes that ended, added up (then without a pid)."""

    header: Header
    counts: tuple[Count, ...]
    folded: int = 0


def totals(counts: Iterable[Count]) -> dict[Key, int]:
    """The sum for each key."""
    found: dict[Key, int] = {}
    for count in counts:
        found[count.key] = found.get(count.key, 0) + count.value
    return found


def merge(processes: Sequence[ProcessCounts]) -> list[dict[str, Any]]:
    """The sums, as plain data: one group for each (arch, simulated), so that a simulation is never added to hardware.

    A group has `arch`, `simulated`, `processes` (pids), `folded` (how many ended ones besides), `hits` and `launches` (by capability), `misses`
    (sorted, most frequent first) and `never_hit`: capabilities that were open somewhere in the group's last run and were hit nowhere in it.
    """
    groups: dict[tuple[str, str], list[ProcessCounts]] = {}
    for process in processes:
        groups.setdefault((process.header.arch, process.header.simulated), []).append(process)
    return [_merge_group(arch, simulated, members) for (arch, simulated), members in sorted(groups.items())]


def _merge_group(arch: str, simulated: str, members: Sequence[ProcessCounts]) -> dict[str, Any]:
    hits: dict[str, int] = {ident: 0 for process in members for ident in process.header.open}
    launches: dict[str, int] = {}
    misses: list[dict[str, Any]] = []
    for key, value in totals(count for process in members for count in process.counts).items():
        if key.kind == "hit":
            hits[str(key.record)] = hits.get(str(key.record), 0) + value
        elif key.kind == "launch":
            launches[str(key.record)] = launches.get(str(key.record), 0) + value
        else:
            entry = dataclasses.asdict(key)
            del entry["kind"]
            misses.append({**entry, "count": value})
    misses.sort(key=lambda miss: (-miss["count"], miss["m"], miss["k"], str(miss["reason"]), miss["rows"]))
    last = max(members, key=lambda process: process.header.started).header.run
    run = [process for process in members if process.header.run == last]
    hit = {count.key.record for process in run for count in process.counts if count.key.kind == "hit"}
    return {
        "arch": arch,
        "simulated": simulated,
        "processes": [process.header.pid for process in members if not process.folded],
        "folded": sum(process.folded for process in members),
        "hits": hits,
        "launches": launches,
        "misses": misses,
        "never_hit": sorted({ident for process in run for ident in process.header.open} - hit),
    }


def split(data: bytes) -> tuple[bytes, Header, list[bytes]]:
    """The cells, the header and the lines of a counter file.

    Raises:
        StrictError: it is not one, or was cut short.
    """
    cells, lines = data[:CELL_BYTES], data[CELL_BYTES:].split(b"\n")[:-1]
    if len(cells) < CELL_BYTES or not lines:
        raise StrictError("", "it is not a whole counter file")
    head = parse_json(lines[0])
    take(Literal[1], head, "format")
    return cells, load(Header, head), lines[1:]


def values(cells: bytes, lines: Sequence[bytes]) -> tuple[Count, ...]:
    """The counts in `cells` that `lines` name and that are not zero.

    Raises:
        StrictError: a line is damaged.
    """
    found: list[Count] = []
    seen: set[int] = set()
    for line in lines:
        entry = parse_json(line)
        cell = take(Annotated[int, Between(0, CELLS - 1)], entry, "cell")
        key = load(Key, entry)
        (value,) = struct.unpack_from("<q", cells, 8 * cell)
        if cell in seen or value < 0:
            raise StrictError("cell", f"{cell} stands twice, or holds less than nothing")
        seen.add(cell)
        if value:
            found.append(Count(key, value))
    return tuple(Count(key, value) for key, value in totals(found).items())
