"""How much memory and how many processors this process may use: the machine's, or less where a container says so."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_gb", "processors"]

_UNLIMITED = 1 << 60  # what cgroup v1 writes for "no limit" is near 2^63


def available_gb(root: Path = Path("/")) -> float:
    """Memory that can be had now, in GB: the kernel's MemAvailable, or what the cgroup has left where that is less."""
    found = []
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for limit, used in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        bound = _text(root / limit).strip()
        if bound.isdigit() and int(bound) < _UNLIMITED:
            # The page cache counts as used there, and goes when it must: a working minimum is left.
            held = _cache(root / limit)
            now = _text(root / used).strip()
            found.append(max(0, int(bound) - (int(now) if now.isdigit() else 0) + held))
    return min(found) / 1e9 if found else 0.0


def _cache(limit: Path) -> int:
    for line in _text(limit.parent / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def processors() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
