"""A program that is run for what it says, for a bounded time. Bare Python."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ended", "ask"]


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        code: its exit code; None where it was not started or was stopped, and `why` says so.
        out, err: what it printed, in whatever encoding.
    """

    code: int | None
    out: str = ""
    err: str = ""
    why: str = ""

    @property
    def last(self) -> str:
        """Why it was stopped, or the last line that it complained in."""
        return self.why or (self.err.strip().splitlines() or ["no message"])[-1]


def ask(
    argv: Sequence[str | Path], *, seconds: float, env: Mapping[str, str], cwd: str | Path | None = None, given: str | None = None
) -> Ended:
    """Run a program, with `given` on its standard input (None: nothing). It has a session of its own, and all of that ends with it."""
    try:
        child = subprocess.Popen(
            [str(a) for a in argv],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Ended(None, why=f"cannot be run: {type(error).__name__}")
    with child:
        try:
            out, err = child.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired:
            return Ended(None, why=f"it did not end within {seconds:.0f} s and was stopped")
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
    return Ended(child.returncode, out, err)
