# SPDX-License-Identifier: Apache-2.0
"""The counter file of a process.  Standard library only. (Its format: `counts.py`. Reading a folder of them: `countfolder.py`.)

The file is a copy, at most half a second old, of the memory that the process counts in (`cells.py`). Its header names that memory, and a
reader on the same machine looks there, so that it sees every count, also of a process that was killed.
"""

import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vllm.dcu.dispatch.cells import CELLS, new_image, remove_segment
from vllm.dcu.dispatch.countfolder import living_run, locked, read_folder, read_process, write_merged
from vllm.dcu.dispatch.counts import FORMAT, SUFFIX, Count, Header, Key, ProcessCounts, merge

__all__ = ["CELLS", "Count", "Header", "Key", "ProcessCounts", "Writer", "merge", "read_folder", "read_process", "write_merged"]

_runs: dict[Path, str] = {}
"""The run that this process belongs to, by folder."""


class Writer:
    """The file of the running process. `cells` is the memory to add to; only making, `publish` and `close` touch the disk."""

    def __init__(self, folder: Path, header: Header, start: bool = True) -> None:
        """Take the memory and, unless told to `start` later, make the file.

        Raises:
            OSError: the folder cannot be made or written.
        """
        self._pid, self._file, self._head, self._written = os.getpid(), -1, b"", b""
        self._folder, self._header = folder, header
        self.path = folder / f"dispatch-{self._pid}-{time.time_ns()}{SUFFIX}"
        self._image = new_image(self.path.name)
        self.cells = self._image.cells
        if start:
            self.publish()

    def add_keys(self, base: int, keys: Sequence[Key]) -> bool:
        """Say what the cells from `base` on count. False, and nothing is said, where there is no room for it."""
        lines = (json.dumps({"cell": base + i, **dataclasses.asdict(key)}) + "\n" for i, key in enumerate(keys))
        return self._image.append("".join(lines).encode())

    def publish(self) -> bool:
        """Bring the file up to date, also where somebody removed, moved, cut or overwrote it. Returns whether it had to be made again.

        Raises:
            OSError: it cannot be written now; the next call tries again.
        """
        again = False
        if not self._is_there():
            again = bool(self._head)
            self._make()
        cells, text = self._image.copy()
        now = cells + self._head + text
        if now != self._written or os.fstat(self._file).st_size != len(now):
            self._written = b""
            done = 0
            while done < len(now):
                done += os.pwrite(self._file, now[done:], done)
            os.ftruncate(self._file, len(now))
            self._written = now
        return again

    def _make(self) -> None:
        self.leave()
        self._written = b""
        self._folder.mkdir(parents=True, exist_ok=True)
        with locked(self._folder):  # so that nobody takes the file for a dead process's before it has its lock
            if not self._head:
                # This process lives, also where the file of an earlier `Writer` of it is closed.
                run = _runs[self._folder] = _runs.get(self._folder) or living_run(self._folder) or self.path.stem
                header = dataclasses.replace(self._header, pid=self._pid, started=time.time(), run=run, segment=self._image.segment)
                self._head = (json.dumps({"format": FORMAT, **dataclasses.asdict(header)}) + "\n").encode()
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def _is_there(self) -> bool:
        try:
            found, ours = self.path.stat(), os.fstat(self._file)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)

    def leave(self) -> None:
        """Let go of the file without writing: in a forked child it is the parent's."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def close(self) -> None:
        """Write the last counts and let the memory end with this process, which may still count and publish. Where they cannot be written,
        the memory outlives the process for a reader to find.

        Raises:
            OSError: they could not be written.
        """
        self.publish()
        segment, self._image.segment = self._image.segment, -1
        remove_segment(segment)

    def __del__(self) -> None:
        with suppress(Exception):
            if self._pid == os.getpid():
                self.close()
            self.leave()
