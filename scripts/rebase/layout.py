"""The series on another known release than the pinned one: carried step by step, laid out in build/vllm-VERSION."""

from __future__ import annotations

from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, hold, remove_tree
from scripts.common.git import Repo
from scripts.common.paths import BUILD, shown
from scripts.rebase.report import stop_report
from scripts.rebase.result import carried_chain, lay_tree
from scripts.rebase.state import HOME, LOCK, repository
from scripts.rebase.walk import walk
from scripts.series.commits import scratch_index
from scripts.series.patch import load
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import Pin

__all__ = ["apply_at"]


def apply_at(pin: Pin, version: str) -> tuple[Path, str, bool]:
    """Lay the carried tree out. Returns the folder, the tree id, and whether anything changed.

    Raises:
        errors.RebaseConflict: a patch needs a person on the way there.
        errors.DirtyTree: the folder holds edits; they are not overwritten.
    """
    with hold(LOCK, f"apply {version}"):
        repo = repository()
        done = walk(repo, pin, load(), version, {}, fetch)
        if done.stop:
            print(stop_report(done.stop, len(done.steps) - 1))
            raise errors.RebaseConflict(
                f"the series does not reach vLLM {version}",
                f"{done.stop.patch} needs a person at {done.stop.version}",
                f"`make rebase VLLM={version}` lays the conflict out",
            )
        chain = carried_chain(repo, done.steps[-1])
        folder, note = BUILD / f"vllm-{version}", HOME / f"laid-out-{version}"
        if folder.exists():
            have = _content(repo, folder)
            if have == chain.tree:
                return folder, chain.tree, False
            if not note.is_file() or note.read_text(encoding="utf-8") != have:
                raise errors.DirtyTree(
                    f"{shown(folder)} was edited since it was laid out",
                    "laying it out again would destroy the edits",
                    "move the folder away, then run this again; edits of the series belong into build/vllm",
                )
            remove_tree(folder)
        lay_tree(repo, chain.head, folder)
        atomic_write(note, chain.tree.encode())
        return folder, chain.tree, True


def _content(repo: Repo, folder: Path) -> str:
    """Tree id of what a folder holds now."""
    with scratch_index(Repo(repo.git_dir, folder)) as index:
        index.out("add", "-A", "-f", "--", ".", ":(exclude)**/__pycache__/**")
        return index.out("write-tree")
