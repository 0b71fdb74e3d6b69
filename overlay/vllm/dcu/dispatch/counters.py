# SPDX-License-Identifier: Apache-2.0
"""Counting dispatches: one cell for each hit and each (shape, reason) miss.  Standard library only.

Hits and misses are *dispatches*: calls that reached Python. A captured graph replays without Python, so a replay adds nothing to them. A
kernel that counts its own launches (`launches.py`) has a cell for those, which moves in replays too; LLMM1 does not: there a profiler shows it.

Counting is one addition to an integer cell in memory, which no file system can make fail or wait. With a folder (`VLLM_DCU_STATS_DIR`) the
memory is copied to the process's own file by another thread (`aside.py`), is readable while the process runs and survives its being
killed; without one the cells are a list. A forked child starts from zero in a file of its own, so that nothing is counted twice.
"""

import atexit
import contextlib
import logging
import multiprocessing.util
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from vllm.dcu.dispatch.aside import aside, every_tick, say, silently
from vllm.dcu.dispatch.countfiles import CELLS, Count, Header, Key, Writer, write_merged
from vllm.dcu.dispatch.countfolder import fold, locked

__all__ = ["FREQUENT", "OVERFLOW", "Tally", "ThreadTally", "new_tally"]

logger = logging.getLogger("vllm.dcu")

FREQUENT = 1000
"""How many misses of an open capability's shape, for one reason, are worth a line in the log."""

OVERFLOW = Key(kind="miss", dtype="any", m=-1, k=-1, record=None, reason="no-record", rows="any")
"""What calls are booked under once the cells are used up; it takes cells 0 and 1."""

_AT_EXIT = 5.0
"""Seconds that the end of a process waits for its last counts and its summary, at most."""


class Tally:
    """The counters of one process. `cells[i]` counts what `keys[i]` says; add to it in place.

    `allocate` and a fork may put another object in the place of `cells`: take it from here for each addition.
    """

    cells: "list[int] | memoryview[int]"

    def __init__(self, header: Header, folder: Path | None, on_reset: Callable[[], None] = lambda: None) -> None:
        """Start from zero.

        Args:
            header: what this process is; its pid and start are filled in here.
            folder: where to keep the counts, or None for memory only. An unusable folder is warned about, once.
            on_reset: called in a forked child after the counts were set to zero: every cell number given out is void.
        """
        self._header = header
        self._folder = folder
        self._on_reset = on_reset
        self._writer: Writer | None = None
        self._finished = False
        self.keys: list[Key] = []
        self._start()
        _TALLIES.add(self)
        # Children of multiprocessing leave without atexit, and everyone else without multiprocessing's finalizers.
        atexit.register(_finish, weakref.ref(self))
        self._finalize_child(self)
        multiprocessing.util.register_after_fork(self, Tally._finalize_child)

    @staticmethod
    def _finalize_child(tally: "Tally") -> None:
        multiprocessing.util.Finalize(None, _finish, args=(weakref.ref(tally),), exitpriority=100)

    def _start(self) -> None:
        self._finished = False
        self._warned = False
        self.cells = [0] * CELLS
        self.keys = []
        self.sources: list[Callable[[list[int] | memoryview[int]], None]] = []
        """What sets cells of its own before anybody reads them."""
        self._writer = None
        self._lock = threading.Lock()
        self.allocate((OVERFLOW, OVERFLOW))

    def allocate(self, keys: Sequence[Key]) -> int:
        """Reserve consecutive cells, all zero, for `keys`. Returns the first, or 0 (OVERFLOW's) when there is no room. Never raises."""
        with self._lock:
            if len(self.keys) + len(keys) > CELLS:
                return 0
            first = self._writer is None and self._folder is not None and bool(self.keys)
            if first:
                self._take_writer()
            base = len(self.keys)
            if self._writer is not None and not self._writer.add_keys(base, keys):
                return 0
            self.keys.extend(keys)
        if self._writer is not None:
            aside(self.publish)
            if first:
                aside(self._fold, patience=0)
        return base

    def _take_writer(self) -> None:
        # At the first shape that is dispatched, so that processes that dispatch nothing leave no file.
        assert self._folder is not None
        writer = Writer(self._folder, self._header, start=False)
        writer.add_keys(0, self.keys)
        for i in range(len(self.keys)):
            writer.cells[i] = self.cells[i]
        self._writer, self.cells = writer, writer.cells

    def _fold(self) -> None:
        if self._folder is not None:
            with locked(self._folder):
                fold(self._folder)

    def publish(self) -> None:
        """Bring the file up to date. Never raises: what cannot be written is warned about, once, and tried again at the next tick."""
        if self._writer is None:
            return
        self._current()
        try:
            what = "was removed and is made again" if self._writer.publish() else ""
        except OSError as error:
            what = f"cannot be written: {error}"
        if what and not self._warned:
            self._warned = True
            silently(logger.warning, "DCU counters go on in memory: their file in %s %s", self._folder, what)

    def snapshot(self) -> list[Count]:
        """Every count that is not zero."""
        cells = self._current()
        return [Count(key, cells[i]) for i, key in enumerate(self.keys) if cells[i]]

    def _current(self) -> "list[int] | memoryview[int]":
        cells = self._added_up()
        for source in self.sources:
            with contextlib.suppress(Exception):  # a count that cannot be read stays what it was
                source(cells)
        return cells

    def _added_up(self) -> "list[int] | memoryview[int]":
        """The cells with every thread's additions."""
        return self.cells

    def reset_in_child(self) -> None:
        """Start from zero in a forked child. The parent's file is left alone."""
        if self._writer is not None:
            self._writer.leave()
        self._start()
        self._on_reset()

    def finish(self) -> None:
        """Log one summary line and add this process to the folder's merged file. Does it once; never raises, and waits a few seconds at most."""
        if self._finished:
            return
        self._finished = True
        counts = self.snapshot()
        if counts:
            aside(self._write_last, _AT_EXIT)
            say(self._summarise, counts, patience=_AT_EXIT)

    def _summarise(self, counts: Sequence[Count]) -> None:
        logger.info("%s", summary(self._header, counts))
        hits = {count.key.record for count in counts if count.key.kind == "hit"}
        for ident in self._header.open:
            if ident not in hits:
                logger.warning(
                    "DCU capability %s was open in this process and was never hit: its shape or its conditions did not "
                    "come up. `python -m vllm.dcu explain` and `survey` say which.",
                    ident,
                )

    def _write_last(self) -> None:
        if self._writer is not None and self._folder is not None:
            self._writer.close()
            write_merged(self._folder)


class _Own(threading.local):
    """The cells of the thread that asks; `parts` has those of all."""

    def __init__(self, parts: list[list[int]]) -> None:
        self.cells = [0] * CELLS
        parts.append(self.cells)


class ThreadTally(Tally):
    """For a Python whose threads run at once (a free-threaded build), where two additions to one cell could become one: each thread adds
    to cells of its own, and they are added up where somebody reads."""

    def _start(self) -> None:
        self._parts: list[list[int]] = []
        self._own = _Own(self._parts)
        super()._start()

    @property
    def cells(self) -> list[int]:
        return self._own.cells

    @cells.setter
    def cells(self, shared: "list[int] | memoryview[int]") -> None:
        self._shared = shared

    def _added_up(self) -> "list[int] | memoryview[int]":
        parts = list(self._parts)
        for i in range(len(self.keys)):
            self._shared[i] = sum(part[i] for part in parts)
        return self._shared


def new_tally(header: Header, folder: Path | None, on_reset: Callable[[], None] = lambda: None) -> Tally:
    """A `Tally` that is exact in this build of Python, whatever its threads do."""
    with_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return (Tally if with_gil else ThreadTally)(header, folder, on_reset)


def summary(header: Header, counts: Sequence[Count]) -> str:
    """One line: hits for each record, then misses by reason."""
    hits: dict[str, int] = dict.fromkeys(header.open, 0)
    misses: dict[str, int] = {}
    launches: dict[str, int] = {}
    for count in counts:
        if count.key.kind == "hit":
            hits[str(count.key.record)] = hits.get(str(count.key.record), 0) + count.value
        elif count.key.kind == "launch":
            launches[str(count.key.record)] = launches.get(str(count.key.record), 0) + count.value
        else:
            misses[str(count.key.reason)] = misses.get(str(count.key.reason), 0) + count.value
    label = f"{header.arch}, simulated: {header.simulated}" if header.simulated else header.arch
    hit_text = ", ".join(f"{ident} {n}" for ident, n in hits.items()) or "no capability open"
    miss_text = ", ".join(f"{reason} {n}" for reason, n in sorted(misses.items())) or "none"
    launch_text = "".join(f"; launches with replays: {ident} {n}" for ident, n in launches.items())
    return f"DCU dispatches [{label}]: hits: {hit_text}; misses: {miss_text} (graph replays are not counted){launch_text}"


_TALLIES: "weakref.WeakSet[Tally]" = weakref.WeakSet()


def _finish(tally: "weakref.ref[Tally]") -> None:
    found = tally()
    if found is not None:
        found.finish()


def _publish_all() -> None:
    for tally in list(_TALLIES):
        tally.publish()


def _reset_in_child() -> None:
    for tally in list(_TALLIES):
        tally.reset_in_child()


every_tick(_publish_all)
os.register_at_fork(after_in_child=_reset_in_child)
