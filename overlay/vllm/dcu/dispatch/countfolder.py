# SPDX-License-Identifier: Apache-2.0
"""A folder of counter files: reading it, folding what is dead, and the sum.  Standard library only.

A process holds a lock on its file as long as it lives. Files without one are dead: those of earlier runs are added up in `folded.json` and
removed by whoever starts or ends in the folder, so that it stays small. `counters.json` is the sum of all, written whole or not at
all when a process ends. Readers write nothing.
"""

import dataclasses
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from vllm.dcu.dispatch.cells import CELL_BYTES, CELLS, attached, remove_segment
from vllm.dcu.dispatch.counts import FORMAT, SUFFIX, Count, Header, ProcessCounts, merge, split, totals, values
from vllm.dcu.records.strict import StrictError, plain, read_bytes
from vllm.dcu.records.typed import Words, dump, read_json

__all__ = ["FOLDED", "Reader", "fold", "identity", "is_alive", "living_run", "locked", "read_folder", "read_process", "write_merged"]

FOLDED = "folded.json"
_KEPT = 16
"""How many dead processes of the last run keep a file of their own, for people to see."""
_MOST_BYTES = CELL_BYTES + CELLS * 1024
_MOST_FOLDED = 64 << 20


_held: set[int] = set()
"""Locks that threads of this process hold. A forked child has them open as well, and would wait for itself: its counts were lost once."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone in `folder`: what reads and replaces is one step, so that a slower process cannot put an older sum over a newer one.

    Raises:
        OSError: the folder cannot be written.
    """
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    _held.add(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        _held.discard(lock)
        with suppress(OSError):  # said, not left to the close: a process forked meanwhile has the same lock open
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def is_alive(path: Path) -> bool:
    """Whether a process holds its lock on a counter file. A file that cannot be asked counts as alive."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def living_run(folder: Path) -> str | None:
    """The run that a living process of `folder` belongs to, or None where none lives."""
    for path in folder.glob(f"*{SUFFIX}"):
        if is_alive(path):
            with suppress(StrictError, FileNotFoundError):
                return _header(path).run
    return None


def read_process(path: Path) -> ProcessCounts:
    """Read one process's counts, also while the process runs, and also after it was killed.

    Raises:
        StrictError: it is no regular file, not a counter file, or was cut short.
        FileNotFoundError: it is gone.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[ProcessCounts, bool]:
    """As `read_process`; and whether the counts stand in memory, so that the file may change or be behind."""
    # The file is looked at by itself first: memory does not make a damaged one good.
    cells, header, lines = split(read_bytes(path, _MOST_BYTES))
    found = ProcessCounts(header, values(cells, lines))
    memory = attached(header.segment, path.name)
    if memory is None:
        return found, False
    cells, text = memory
    return ProcessCounts(header, values(cells, text.split(b"\n")[:-1])), True


def _header(path: Path) -> Header:
    return split(read_bytes(path, _MOST_BYTES))[1]


@dataclass(frozen=True)
class _Folded:
    """What `folded.json` holds: sums of dead processes, and the names of the files folded last, which may not be removed yet."""

    format: Literal[1] = 1
    names: tuple[Annotated[str, Words(r"[^/]+\.counts", "a counter file's name")], ...] = ()
    processes: tuple[ProcessCounts, ...] = ()


def _read_folded(folder: Path) -> _Folded:
    try:
        found: _Folded = read_json(_Folded, folder / FOLDED, _MOST_FOLDED)
    except FileNotFoundError:
        return _Folded()
    return found


def read_folder(folder: Path) -> tuple[list[ProcessCounts], list[str]]:
    """Every process's counts, oldest first, and one sentence for each file that could not be read."""
    return Reader(folder).read()


class Reader:
    """Reads a folder again and again; a dead process's file only once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int, int], ProcessCounts]] = {}

    def read(self) -> tuple[list[ProcessCounts], list[str]]:
        """As `read_folder`."""
        files, problems = self.files()
        return sorted(files.values(), key=lambda process: process.header.started), problems

    def files(self) -> tuple[dict[str, ProcessCounts], list[str]]:
        """As `read`, by a name: the file's, or one that each sum of `folded.json` has to itself."""
        while True:
            before = identity(self._folder / FOLDED)
            found, problems, gone = self._once()
            # A file that vanished may have been folded meanwhile: then the sum is whole only with the new `folded.json`.
            if not gone or identity(self._folder / FOLDED) == before:
                return found, problems

    def _once(self) -> tuple[dict[str, ProcessCounts], list[str], bool]:
        found: dict[str, ProcessCounts] = {}
        problems: list[str] = []
        folded, gone = _Folded(), False
        try:
            folded = _read_folded(self._folder)
            found |= {f"{FOLDED} {i} {p.header.run} {p.folded}": p for i, p in enumerate(folded.processes)}
        except StrictError as error:
            problems.append(f"{FOLDED} was left out: {StrictError(error.field, error.why)}")
        known, self._known = self._known, {}
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            if path.name in folded.names:
                continue
            try:
                stamp = identity(path)
                seen = known.get(path.name)
                counts, changes = (seen[1], False) if seen and seen[0] == stamp else _read(path)
            except FileNotFoundError:
                gone = True
                if path.is_symlink():
                    problems.append(f"{plain(path.name)} was left out: it is a link to nothing")
            except StrictError as error:
                problems.append(f"{plain(path.name)} was left out: {StrictError(error.field, error.why)}")
            else:
                found[path.name] = counts
                if not changes and stamp is not None:
                    self._known[path.name] = (stamp, counts)
        return found, problems, gone


def identity(path: Path) -> tuple[int, int, int] | None:
    """What changes whenever the file is another or was written; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def fold(folder: Path) -> None:
    """Add the files of dead processes up in `folded.json` and remove them; to be called `locked`. A damaged file is left where it is.

    Raises:
        OSError: the folder cannot be read or written.
        StrictError: `folded.json` is damaged; nothing was changed.
    """
    folded = _read_folded(folder)
    for name in folded.names:
        (folder / name).unlink(missing_ok=True)
    living, ended = _by_life(folder)
    started = {head.started: head.run for head in (*living, *(process.header for process, _ in ended.values()))}
    last = started[max(started)] if started else ""
    kept = sorted((path for path in ended if ended[path][0].header.run == last), key=lambda path: ended[path][0].header.started)[-_KEPT:]
    dead = {path: found for path, found in ended.items() if path not in kept}
    if not dead:
        return
    sums = _compact([*folded.processes, *(process for process, _ in dead.values())])
    _replace(folder / FOLDED, dump(_Folded(names=tuple(path.name for path in dead), processes=tuple(sums))))
    for path in dead:
        path.unlink(missing_ok=True)
    for _, segment in dead.values():
        remove_segment(segment)


def _by_life(folder: Path) -> tuple[list[Header], dict[Path, tuple[ProcessCounts, int]]]:
    """The headers of what lives; and, by file, those that ended, with the segment that their counts are in (or -1)."""
    living: list[Header] = []
    ended: dict[Path, tuple[ProcessCounts, int]] = {}
    for path in folder.glob(f"*{SUFFIX}"):
        alive = is_alive(path)  # asked first: what is read after a process's death is its last word
        with suppress(StrictError, FileNotFoundError):
            if alive:
                living.append(_header(path))
            else:
                process, in_memory = _read(path)
                ended[path] = process, process.header.segment if in_memory else -1
    return living, ended


def _compact(processes: list[ProcessCounts]) -> list[ProcessCounts]:
    """For each kind of device two sums: that of the last run, and that of all before it."""
    last: dict[tuple[str, str], str] = {}
    for process in sorted(processes, key=lambda process: process.header.started):
        last[process.header.arch, process.header.simulated] = process.header.run
    sums: dict[tuple[str, str, str], list[ProcessCounts]] = {}
    for process in processes:
        head = process.header
        run = head.run if head.run == last[head.arch, head.simulated] else ""
        sums.setdefault((head.arch, head.simulated, run), []).append(process)
    return [_sum(run, members) for (_, _, run), members in sums.items()]


def _sum(run: str, members: list[ProcessCounts]) -> ProcessCounts:
    heads = [process.header for process in members]
    opened = tuple(sorted({ident for head in heads for ident in head.open}))
    header = dataclasses.replace(heads[0], open=opened, pid=0, run=run, segment=-1, started=max(head.started for head in heads))
    counts = totals(count for process in members for count in process.counts)
    return ProcessCounts(header, tuple(Count(key, value) for key, value in counts.items()), sum(p.folded or 1 for p in members))


def write_merged(folder: Path) -> Path:
    """Fold what is dead, and write `counters.json`, the sum of all in `folder` as it stands now. Returns its path.

    Raises:
        OSError: the folder cannot be written.
    """
    target = folder / "counters.json"
    with locked(folder):
        with suppress(StrictError):
            fold(folder)
        processes, problems = read_folder(folder)
        _replace(target, {"format": FORMAT, "groups": merge(processes), "problems": problems})
    return target


def _replace(target: Path, data: dict[str, Any]) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(data, indent=2) + "\n")
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _let_go_in_child() -> None:
    for lock in _held:
        with suppress(OSError):
            os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
