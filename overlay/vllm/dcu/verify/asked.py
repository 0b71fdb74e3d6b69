# SPDX-License-Identifier: Apache-2.0
"""What the verbs that run a model have in common on their command line.  Standard library only."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

__all__ = ["ending_its_children", "parted"]


def parted(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The verb's own words, and those after `--`: the arguments that the model is served with."""
    words = list(argv)
    if "--" not in words:
        return words, ()
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


@contextmanager
def ending_its_children() -> Iterator[None]:
    """Told to end, the verb ends what it started as well: SIGTERM leaves as `SystemExit`, through every `finally`."""
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)
