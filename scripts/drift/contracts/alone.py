"""The stand-alone scripts beside this file (`probe.py`, `flow.py`, `walk.py`), asked about a folder in an interpreter of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from scripts.common.child import ask

__all__ = ["Unanswered", "say_of"]


class Unanswered(Exception):
    """The script did not come to its end: the question is open, and the message says why."""


def say_of(script: str, folder: str, *words: str, seconds: float, given: str = "") -> Any:
    """What `script` says of `folder`, with an empty environment and no installed package.

    Raises:
        Unanswered: it failed, or did not end in time.
    """
    argv: list[str | Path] = [sys.executable, "-I", "-S", Path(__file__).with_name(script), folder, *words]
    done = ask(argv, seconds=seconds, env={"HOME": folder}, cwd=folder, given=given)
    if done.code != 0:
        raise Unanswered(done.last.replace(folder, "")[:300])
    return json.loads(done.out)
