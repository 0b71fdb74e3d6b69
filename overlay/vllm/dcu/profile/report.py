# SPDX-License-Identifier: Apache-2.0
"""`profile.json`: what it holds, and its strict reader.  Standard library only."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Measure, write_whole
from vllm.dcu.records.strict import StrictError
from vllm.dcu.records.typed import Between, dump, read_json

__all__ = [
    "Account",
    "Group",
    "Kind",
    "Line",
    "Linear",
    "Place",
    "Profile",
    "ProfileError",
    "Suggestion",
    "load_profile",
    "write_profile",
]

_MOST_BYTES = 32 << 20
Time = Annotated[float, Between(0, 1e12)]
"""Microseconds."""


class ProfileError(ValueError):
    """It cannot be profiled, or a file is no profile. The message says why and what to do."""


class Group(Enum):
    """What a line's time is spent on."""

    LINEAR = "Linears"
    ATTENTION = "attention"
    DELTA_NET = "Gated DeltaNet"
    NORM = "normalisation"
    SAMPLING = "sampling"
    COPY = "copies"
    GAP = "host gaps"
    OTHER = "other"


class Place(Enum):
    """Where it is spent: on the device; on the host, by an operator that computes there while the device waits; or nowhere."""

    DEVICE = "device"
    HOST = "host"
    GAP = "gap"


class Kind(Enum):
    """Every kind of suggestion that there is."""

    SHUT = "capability-shut"
    LINEAR = "linear-below-floor"
    OPERATOR = "operator-below-floor"
    CPU = "operator-on-the-cpu"
    GAP = "host-gap"
    IDLE = "device-idle"
    COPY = "copies"
    FUSION = "fusion"


@dataclass(frozen=True)
class Linear:
    """A Linear's call, what ran it, what the gate's rules say of it (a capability's id or `F.linear`), and why not a kernel of ours."""

    dtype: str
    n: Annotated[int, Between(0, 2**40)]
    m: Annotated[int, Between(1, 2**40)]
    k: Annotated[int, Between(1, 2**40)]
    ran: str
    choice: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """One line of a step's account: means over the steps that count.

    Attributes:
        operator: the outermost operator; of a gap, where it is.
        kernel: what ran: the device's kernel, or the innermost operator; several are named by the longest.
        calls: a step.
        us: a step; `low` and `high` are the least and the most of one step.
        bytes: of the tensors of a step's calls; 0: not known.
    """

    group: Group
    place: Place
    operator: str
    kernel: str
    calls: Annotated[float, Between(0, 1e9)]
    us: Time
    low: Time
    high: Time
    bytes: Annotated[float, Between(0, 1e18)]
    linear: Linear | None

    @property
    def gbs(self) -> float:
        """GB/s of the bytes that are known."""
        return self.bytes / self.us / 1e3 if self.us else 0.0

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it the same line in another profile: not its kernel, which a tuning may change."""
        shape = (self.linear.dtype, self.linear.n, self.linear.m, self.linear.k) if self.linear else ()
        return (self.group, self.place, self.operator, "" if shape else self.kernel, *shape)


@dataclass(frozen=True)
class Suggestion:
    """What could be done: milliseconds a token that it could save at most, the figures it rests on, a command, what would prove it wrong."""

    kind: Kind
    subject: str
    ms: Annotated[float, Between(0, 1e9)]
    figures: Mapping[str, int | float | str]
    command: str
    wrong_if: str

    def __post_init__(self) -> None:
        if not self.figures or not self.command or not self.wrong_if:
            raise ValueError("a suggestion has figures, a command, and what would prove it wrong")


@dataclass(frozen=True)
class Account:
    """Where one step's time goes: the lines and `unaccounted` add up to `step`.

    Attributes:
        step: without the profiler; `profiled`: under it.
        unaccounted: what is left of the step; below zero where the profiler itself costs more than it missed.
    """

    phase: Literal["decode", "prefill"]
    rows: Annotated[int, Between(1, 1 << 30)]
    step: Measure
    profiled: Measure
    lines: tuple[Line, ...]
    unaccounted: Annotated[float, Between(-1e12, 1e12)]
    suggestions: tuple[Suggestion, ...]

    def __post_init__(self) -> None:
        total = sum(line.us for line in self.lines) + self.unaccounted
        if abs(total - self.step.median) > 0.01 + 1e-6 * self.step.median:
            raise ValueError(f"the lines and what is not accounted for are {total:.3f} us, and the step is {self.step.median:.3f}")

    @property
    def name(self) -> str:
        """For people and file names: `decode-4`."""
        return f"{self.phase}-{self.rows}"

    def total(self, group: Group) -> float:
        """Microseconds of a group."""
        return sum(line.us for line in self.lines if line.group is group)


@dataclass(frozen=True)
class Profile:
    """A whole profile: of which model, served how (`captured`: with graphs), on what; the device's measured read rate; an account for each phase."""

    format: Literal[1]
    model: str
    arguments: tuple[str, ...]
    context: int
    captured: bool
    eager: bool
    binding: Binding
    read: Measure
    accounts: tuple[Account, ...]


def load_profile(path: Path) -> Profile:
    """Read `profile.json`.

    Raises:
        ProfileError: it is missing, damaged, of another format, or does not add up.
    """
    try:
        found: Profile = read_json(Profile, path, _MOST_BYTES)
    except FileNotFoundError:
        raise ProfileError(f"{path} is not there: give the profile.json of an earlier run") from None
    except StrictError as error:
        raise ProfileError(f"{error}: give the profile.json of an earlier run of this build") from None
    return found


def write_profile(profile: Profile, path: Path) -> None:
    """Write `profile.json`, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, json.dumps(dump(profile), indent=1) + "\n")
