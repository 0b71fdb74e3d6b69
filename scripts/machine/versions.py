"""The version matrix: which versions go together, with the reason for each limit. Data in versions.toml. Bare Python."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common import errors
from scripts.common.paths import ROOT, shown

__all__ = ["FILE", "Limit", "jobs", "matrix", "parts", "toml"]

FILE = ROOT / "versions.toml"
_READERS = ("tomllib", "tomli", "pip._vendor.tomli", "setuptools._vendor.tomli")  # the last two: Python 3.10 without packages


@dataclass(frozen=True)
class Limit:
    """One row of the matrix: `at_least <= version < below`.

    Attributes:
        name: what has the version.
        known: where it was seen to work.
        why: why the limits are where they are.
        do: what to do outside them.
    """

    name: str
    at_least: str
    below: str
    known: str
    why: str
    do: str

    def holds(self, version: str) -> bool:
        """Whether `version` is within the limits. One that has no number is not."""
        return bool(parts(version)) and parts(self.at_least) <= parts(version) < parts(self.below)

    @property
    def words(self) -> str:
        """The limits for people."""
        return f"{self.at_least} or newer, below {self.below}"


def parts(version: str) -> tuple[int, ...]:
    """The numbers of a version's public part, trailing zeros dropped: `2.10.0+das.dtk2604` -> (2, 10)."""
    public = re.match(r"\d+(?:\.\d+)*", version.strip())
    numbers = [int(part) for part in public[0].split(".")] if public else []
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def toml(path: Path) -> dict[str, Any]:
    """A TOML file, with whatever reader this Python has.

    Raises:
        errors.MissingInput: none.
        errors.UserError: the file is not TOML.
    """
    for name in _READERS:
        try:
            reader = importlib.import_module(name)
        except ImportError:
            continue
        try:
            data: dict[str, Any] = reader.loads(path.read_text(encoding="utf-8"))
            return data
        except ValueError as error:
            raise errors.UserError(f"{shown(path)} is not TOML", str(error), "take the repository's own file back") from error
    raise errors.MissingInput(
        "this Python cannot read TOML",
        "Python 3.10 has no reader of its own, and neither pip nor setuptools brings one here",
        "run with Python 3.11 or newer, or one that has pip: make doctor PYTHON=python3.11",
    )


def matrix(path: Path = FILE) -> dict[str, Limit]:
    """Every version limit, by name.

    Raises:
        errors.UserError: a row lacks a field, or has another type than text in it.
    """
    return {name: _limit(name, row) for name, row in toml(path).items() if name != "memory"}


def _limit(name: str, row: Mapping[str, Any]) -> Limit:
    fields = ("at_least", "below", "known", "why", "do")
    if sorted(row) != sorted(fields) or not all(isinstance(row[f], str) and row[f] for f in fields):
        raise errors.UserError(f"[{name}] of versions.toml is not a limit", f"it needs {', '.join(fields)}, each a text", "correct the row")
    return Limit(name, *(row[f] for f in fields))


def jobs(cpus: int, memory_gb: float, asked: str | None, path: Path = FILE) -> tuple[int, float]:
    """(compile jobs at a time, GB that one needs). `asked` is MAX_JOBS; without it memory and processors decide, at least 1.

    Raises:
        errors.UserError: MAX_JOBS is not a whole number above 0.
    """
    per_job = float(toml(path)["memory"]["gb_per_job"])
    if asked is not None and asked.strip():
        if not (asked.strip().isascii() and asked.strip().isdigit() and int(asked) > 0):
            raise errors.UserError(
                f"MAX_JOBS={asked!r} is not a number of jobs", "it bounds the compile jobs", "give a whole number, or unset it"
            )
        return int(asked), per_job
    return max(1, min(cpus, int(memory_gb / per_job))), per_job
