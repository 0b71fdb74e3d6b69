"""Real upstream releases for tests: from the cache or the index, read once, edited only in memory."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from scripts.common import errors
from scripts.drift.contracts.model import Tree, tree_from_sdist
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import read_pin
from tests.support import not_run

__all__ = ["edited", "renamed", "sdist", "tree"]


def sdist(version: str) -> Path:
    """The verified sdist of a known release, or `not run` where neither the cache nor the index has it."""
    try:
        return fetch(read_pin().release(version))
    except errors.NoNetwork as error:
        not_run(f"no sdist of vLLM {version}: {error.what}")


@cache
def tree(version: str) -> Tree:
    """The tree of a release."""
    return tree_from_sdist(sdist(version), version)


def edited(base: Tree, changes: dict[str, tuple[str, str]], new: dict[str, str] | None = None) -> Tree:
    """`base` with one text replaced by another in each file, and new files. The old text must be there exactly once."""
    files = dict(base.files)
    for path, (old, fresh) in changes.items():
        text = base.text(path)
        assert text.count(old) == 1, f"{path} holds the text {text.count(old)} times; the plant would not be one"
        files[path] = text.replace(old, fresh).encode()
    files.update({path: text.encode() for path, text in (new or {}).items()})
    return Tree(base.version + "+planted", files, base.patched)


def renamed(base: Tree, word: str) -> Tree:
    """`base` with one word renamed everywhere, as a refactoring would."""
    pattern = re.compile(rf"\b{word}\b".encode())
    files = {path: pattern.sub(word.encode() + b"_renamed", data) if word.encode() in data else data for path, data in base.files.items()}
    assert files != dict(base.files), f"nothing is called {word}"
    return Tree(base.version + "+renamed", files, base.patched)
