"""What doctor says about one thing it looked at."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Attributes:
        name: what was looked at.
        ok: whether it is as it should be.
        found: what is there.
        why: why it matters (problems only).
        do: the line to run, or the step to take (problems only).
        blocks: whether a problem stops the build; one that does not will be met when serving.
    """

    name: str
    ok: bool
    found: str
    why: str = ""
    do: str = ""
    blocks: bool = True
