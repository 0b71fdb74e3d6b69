"""What every test may use."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["NOT_RUN", "not_run", "release"]

NOT_RUN = "not run: "


def not_run(why: str) -> NoReturn:
    """This test cannot run on this machine: it is listed with the reason, never green, and fails under STRICT=1."""
    pytest.skip(NOT_RUN + why)


def release(creators: set[int]) -> None:
    """Let the counters' memory of ended processes go, those of `creators` alone: whoever else counts on this machine still needs his."""
    from vllm.dcu.dispatch import cells

    for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
        _, segment, _, size, creator, _, attachments = (int(word) for word in line.split()[:7])
        if (size, attachments) == (cells._SIZE, 0) and creator in creators:
            cells.remove_segment(segment)
