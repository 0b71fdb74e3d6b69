# SPDX-License-Identifier: Apache-2.0
"""What was measured of one weight and N, and which choice wins.  Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from vllm.dcu.evidence.ladder import Measure
from vllm.dcu.records.typed import Between
from vllm.dcu.tune.plan import Choice, Item
from vllm.dcu.verify.rungs.stage import MARGIN

__all__ = ["Contender", "Found"]


@dataclass(frozen=True)
class Contender:
    """A choice in the last rounds: its time, its error there, and why its result is refused."""

    choice: Choice
    time: Measure
    error: float
    fault: str = ""


@dataclass(frozen=True)
class Found:
    """What was measured of one item.

    Attributes:
        linear: `F.linear` in the last rounds.
        last: the contenders in the last rounds, fastest first.
        first: name -> microseconds of every choice in the first rounds.
        seconds: how long it took.
    """

    item: Item
    linear: Contender
    last: tuple[Contender, ...]
    first: Mapping[str, float]
    seconds: Annotated[float, Between(0, 1e9)]

    @property
    def winners(self) -> tuple[Contender, ...]:
        """Those that beat `F.linear`, fastest first."""
        return tuple(c for c in self.last if not c.fault and not self.short(c))

    def short(self, contender: Contender) -> str:
        """Why a contender does not win; empty where it does."""
        mine, theirs = contender.time, self.linear.time
        if contender.fault:
            return f"{contender.choice.name} is wrong: {contender.fault}"
        if theirs.median < MARGIN * mine.median:
            return f"{contender.choice.name} is {theirs.median / mine.median:.3f} times as fast, and {MARGIN} is what a record needs"
        if mine.high >= theirs.low:
            return f"{contender.choice.name} is {theirs.median / mine.median:.3f} times as fast in the median, but the ranges touch"
        return ""

    @property
    def why(self) -> str:
        """Why `F.linear` stays; empty where a contender wins."""
        return "" if self.winners else self.short(self.last[0]) if self.last else "nothing else may compute it"
