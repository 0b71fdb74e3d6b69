"""The version matrix: which versions go together, with the reason for each limit. Data in versions.toml. Bare Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from scripts.common import errors, outside
from scripts.common.paths import ROOT

__all__ = ["FILE", "Limit", "Memory", "jobs", "matrix", "memory", "parts"]

FILE = ROOT / "versions.toml"
_Said = Annotated[str, outside.Words(r".*\S.*", "a text that says something")]


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


@dataclass(frozen=True)
class Memory:
    """What one compile job may need, in GB, and what to do where there is less."""

    gb_per_job: Annotated[float, outside.Between(0.1, 1024)]
    known: _Said
    why: _Said
    do: _Said


@dataclass(frozen=True)
class _Row:
    at_least: _Said
    below: _Said
    known: _Said
    why: _Said
    do: _Said


def _read(path: Path) -> tuple[dict[str, Limit], Memory]:
    def make(data: dict[str, Any]) -> tuple[dict[str, Limit], Memory]:
        memory = outside.take(Memory, data, "memory")
        return {name: Limit(name, **vars(row)) for name, row in outside.load(Mapping[str, _Row], data).items()}, memory

    return outside.read_toml(make, path, "take the repository's own file back")


def matrix(path: Path = FILE) -> dict[str, Limit]:
    """Every version limit, by name.

    Raises:
        errors.UserError: a row lacks a field, or has another type than text in it.
    """
    return _read(path)[0]


def memory(path: Path = FILE) -> Memory:
    """What a compile job needs.

    Raises:
        errors.UserError: as `matrix`.
    """
    return _read(path)[1]


def jobs(cpus: int, memory_gb: float, asked: str | None, path: Path = FILE) -> tuple[int, float]:
    """(compile jobs at a time, GB that one needs). `asked` is MAX_JOBS; without it memory and processors decide, at least 1.

    Raises:
        errors.UserError: MAX_JOBS is not a whole number above 0.
    """
    per_job = memory(path).gb_per_job
    if asked is not None and asked.strip():
        if not (asked.strip().isascii() and asked.strip().isdigit() and int(asked) > 0):
            raise errors.UserError(
                f"MAX_JOBS={asked!r} is not a number of jobs", "it bounds the compile jobs", "give a whole number, or unset it"
            )
        return int(asked), per_job
    return max(1, min(cpus, int(memory_gb / per_job))), per_job
