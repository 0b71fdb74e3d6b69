"""Where things are. The one place that knows the folder layout."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "ADOPTION",
    "BUILD",
    "DIST",
    "OFFLINE",
    "OVERLAY_ROOTS",
    "PATCHES",
    "ROOT",
    "SERIES",
    "SERIES_LOCK",
    "TREE",
    "UPSTREAM_TOML",
    "cache_dir",
    "kept",
    "shown",
]

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
DIST = ROOT / "dist"
TREE = BUILD / "vllm"
# While it is there, `make rebase ... ADOPT=1` is half done: files, index and HEAD may be of two releases.
ADOPTION = BUILD / "rebase" / "adoption.json"
PATCHES = ROOT / "patches"
SERIES = PATCHES / "series"
SERIES_LOCK = PATCHES / "series.lock"
# What `make bundle` packs for a machine without a network: sdist and wheels. A checkout that has this folder fetches nothing.
OFFLINE = ROOT / "offline"
UPSTREAM_TOML = ROOT / "upstream.toml"
# Our folder -> where its content lands in the tree.
OVERLAY_ROOTS: dict[str, str] = {"overlay": "", "csrc": "csrc"}


def cache_dir() -> Path:
    """Folder for verified downloads: $GFX936_CACHE, else the user's cache folder, else build/cache (no home, or none that can be written)."""
    if chosen := os.environ.get("GFX936_CACHE"):
        return Path(chosen).resolve()
    if folder := _of_the_user():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return BUILD / "cache"


def _of_the_user() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and str(Path(os.environ["HOME"]) / ".cache"))
    return Path(base) / "vllm-for-gfx936" if base else None


def kept(name: str) -> Iterator[Path]:
    """Where a download of that name lies already: in the cache, in offline/, and in the user's cache folder, which may be read only."""
    mine = None if os.environ.get("GFX936_CACHE") else _of_the_user()
    folders = dict.fromkeys((cache_dir(), OFFLINE, *([mine] if mine else [])))
    for folder in folders:
        with contextlib.suppress(OSError):
            if (folder / name).is_file():
                yield folder / name


def shown(path: Path) -> str:
    """A path as a person should read it: relative to the repository where it is inside."""
    try:
        return str(path.relative_to(ROOT))
    except ValueError:
        return str(path)
