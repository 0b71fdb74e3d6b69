# SPDX-License-Identifier: Apache-2.0
"""One thread for what may fail or block, files and the log, so that no call of the operator does either.  Standard library only.

`aside(job)` hands `job` over and waits a moment: on a machine that is well the job is done when it returns. Where it is not done in time
(a hung mount, a log that nobody reads) nobody waits again until it was. What a job raises goes nowhere: watching never harms what is watched.
"""

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable

__all__ = ["PATIENCE", "aside", "every_tick", "say", "silently"]

PATIENCE = 1.0
"""Seconds that a caller waits for a job, at most."""
_TICK = 0.5

Job = Callable[[], object]


class _Aside:
    """The thread of one process and what it is to do."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[tuple[Job, threading.Event]] = queue.SimpleQueue()
        self.started = False
        self.stuck = False
        self.lock = threading.Lock()

    def loop(self) -> None:
        while True:
            try:
                job, done = self.jobs.get(timeout=_TICK)
            except queue.Empty:
                for tick in _TICKS:
                    _quietly(tick)
                continue
            _quietly(job)
            done.set()
            del job, done  # or what they hold would live until the next one
            self.stuck = False  # whatever hung goes on

    def ask(self, job: Job, patience: float) -> bool:
        with self.lock:
            if not self.started:
                try:
                    threading.Thread(target=self.loop, name="vllm-dcu-aside", daemon=True).start()
                    self.started = True
                except RuntimeError:  # no more threads, or the interpreter is ending
                    _quietly(job)
                    return True
        done = threading.Event()
        self.jobs.put((job, done))
        if not done.wait(0 if self.stuck else patience) and patience:
            self.stuck = True
        return done.is_set()


_TICKS: list[Job] = []
_here = _Aside()


def aside(job: Job, patience: float | None = None) -> bool:
    """Do `job` in the other thread. Returns whether it was done within `patience` seconds (PATIENCE by default); else it is done later."""
    return _here.ask(job, PATIENCE if patience is None else patience)


def every_tick(job: Job) -> None:
    """Have the other thread do `job` about twice a second, from the first `aside` of a process on."""
    _TICKS.append(job)


def silently(method: Callable[..., object], *args: object) -> None:
    """Call a logger's method; where the log stream is closed, logging prints no traceback of its own."""
    before, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        method(*args)
    finally:
        logging.raiseExceptions = before


def say(method: Callable[..., object], *args: object, patience: float | None = None) -> None:
    """Log aside and silently; `method` is a logger's."""
    aside(lambda: silently(method, *args), patience)


def _quietly(job: Job) -> None:
    with contextlib.suppress(Exception):
        job()


def _forget() -> None:
    global _here
    _here = _Aside()


os.register_at_fork(after_in_child=_forget)
