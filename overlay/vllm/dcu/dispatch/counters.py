# SPDX-License-Identifier: Apache-2.0
"""Counting dispatches: one cell for each hit and each (shape, reason) miss.  Standard library only.

Counters count *dispatches*: calls that reached Python. A captured graph replays without Python, so a replay adds nothing;
whether the kernel runs in a replay is for a profiler to show.

Counting is one addition to an integer cell. With a folder (`VLLM_DCU_STATS_DIR`) the cells are a shared mapping of the process's
own file, so that counts are readable while the process runs and survive its being killed; without one they are a list.
A forked child starts from zero in a file of its own, so that nothing is counted twice.
"""

import atexit
import contextlib
import logging
import multiprocessing.util
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from vllm.dcu.dispatch.countfiles import CELLS, Count, Header, Key, Writer, write_merged

__all__ = ["FREQUENT", "OVERFLOW", "Tally"]

logger = logging.getLogger("vllm.dcu")

FREQUENT = 1000
"""How many misses of an open capability's shape, for one reason, are worth a line in the log."""

OVERFLOW = Key(kind="miss", dtype="any", m=-1, k=-1, record=None, reason="no-record", rows="any")
"""What calls are booked under once the cells are used up; it takes cells 0 and 1."""


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
        self.cells = [0] * CELLS
        self.keys = []
        self._writer = None
        self.allocate((OVERFLOW, OVERFLOW))

    def allocate(self, keys: Sequence[Key]) -> int:
        """Reserve consecutive cells, all zero, for `keys`. Returns the first, or 0 (OVERFLOW's) when there is no room."""
        if len(self.keys) + len(keys) > CELLS:
            return 0
        if self._writer is None and self._folder is not None and self.keys:
            self._open(self._folder)
        base = len(self.keys)
        self.keys.extend(keys)
        if self._writer is not None:
            self._writer.add_keys(base, keys)
        return base

    def _open(self, folder: Path) -> None:
        # Opened at the first shape that is dispatched, so that processes that dispatch nothing leave no file.
        try:
            self._writer = Writer(folder, self._header)
            self._writer.add_keys(0, self.keys)
        except OSError as error:
            self._folder = None
            logger.warning("DCU counters stay in memory, %s cannot be used: %s", folder, error)
            return
        for i in range(len(self.keys)):
            self._writer.cells[i] = self.cells[i]
        self.cells = self._writer.cells

    def snapshot(self) -> list[Count]:
        """Every count that is not zero."""
        return [Count(key, self.cells[i]) for i, key in enumerate(self.keys) if self.cells[i]]

    def reset_in_child(self) -> None:
        """Start from zero in a forked child. The parent's file is left alone."""
        self._start()
        self._on_reset()

    def finish(self) -> None:
        """Log one summary line and add this process to the folder's merged file. Does it once; never raises."""
        if self._finished:
            return
        self._finished = True
        counts = self.snapshot()
        if not counts:
            return
        logger.info("%s", summary(self._header, counts))
        hits = {count.key.record for count in counts if count.key.kind == "hit"}
        for ident in self._header.open:
            if ident not in hits:
                logger.warning(
                    "DCU capability %s was open in this process and was never hit: its shape or its conditions did not "
                    "come up. `python -m vllm.dcu explain` and `survey` say which.",
                    ident,
                )
        if self._folder is not None:
            with contextlib.suppress(OSError):
                write_merged(self._folder)


def summary(header: Header, counts: Sequence[Count]) -> str:
    """One line: hits for each record, then misses by reason."""
    hits: dict[str, int] = dict.fromkeys(header.open, 0)
    misses: dict[str, int] = {}
    for count in counts:
        if count.key.kind == "hit":
            hits[str(count.key.record)] = hits.get(str(count.key.record), 0) + count.value
        else:
            misses[str(count.key.reason)] = misses.get(str(count.key.reason), 0) + count.value
    label = f"{header.arch}, simulated: {header.simulated}" if header.simulated else header.arch
    hit_text = ", ".join(f"{ident} {n}" for ident, n in hits.items()) or "no capability open"
    miss_text = ", ".join(f"{reason} {n}" for reason, n in sorted(misses.items())) or "none"
    return f"DCU dispatches [{label}]: hits: {hit_text}; misses: {miss_text} (graph replays are not counted)"


_TALLIES: "weakref.WeakSet[Tally]" = weakref.WeakSet()


def _finish(tally: "weakref.ref[Tally]") -> None:
    found = tally()
    if found is not None:
        found.finish()


def _reset_in_child() -> None:
    for tally in list(_TALLIES):
        tally.reset_in_child()


os.register_at_fork(after_in_child=_reset_in_child)
