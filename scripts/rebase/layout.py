"""apply: build/vllm holds exactly base + series + overlay; prints the tree id; running it twice changes nothing.

Another known release than the pinned one: the series is carried there step by step, and laid out in build/vllm-VERSION.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, hold, remove_tree
from scripts.common.git import Repo
from scripts.common.paths import BUILD, shown
from scripts.rebase.report import stop_report
from scripts.rebase.result import carried_chain, lay_tree
from scripts.rebase.state import HOME, LOCK, remembered, repository
from scripts.rebase.walk import run_id, walk
from scripts.series import apply
from scripts.series.commits import scratch_index
from scripts.series.patch import load
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import Pin, read_pin

__all__ = ["apply_at", "main"]


def apply_at(pin: Pin, version: str) -> tuple[Path, str, bool]:
    """Lay the carried tree out. Returns the folder, the tree id, and whether anything changed.

    Raises:
        errors.RebaseConflict: a patch needs a person on the way there.
        errors.DirtyTree: the folder holds edits; they are not overwritten.
    """
    with hold(LOCK, f"apply {version}"):
        repo = repository()
        patches = load()
        done = walk(repo, pin, patches, version, remembered(repo, run_id(pin, patches, version), version), fetch)
        if done.stop:
            print(stop_report(done.stop, len(done.steps) - 1, laid_out=False))
            raise errors.RebaseConflict(
                f"the series does not reach vLLM {version}",
                f"{done.stop.patch} needs a person at {done.stop.version}",
                f"`make rebase VLLM={version}` lays the conflict out; when it has come to its end, run this again",
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


def main(argv: Sequence[str]) -> int:
    """Command line of `apply`."""
    parser = argparse.ArgumentParser(prog="apply", description=__doc__)
    parser.add_argument("--drop-edits", action="store_true", help="throw away what was edited in build/vllm")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--version", help="another known release: the series carried there, in build/vllm-VERSION")
    args = parser.parse_args(argv)
    pin = read_pin()
    if args.version and args.version != pin.version:
        folder, tree, changed = apply_at(pin, args.version)
        print(json.dumps({"changed": changed, "tree": tree}) if args.json else f"{shown(folder)}\ntree {tree}")
        return 0
    with hold(apply.LOCK, "apply"):
        state, changed = apply.apply_tree(read_pin(), args.drop_edits)
    if args.json:
        print(
            json.dumps(
                {
                    "changed": changed,
                    "base": state.base,
                    "head": state.head,
                    "tree": state.tree,
                    "patches": [p.name for p in load()],
                }
            )
        )
    else:
        print(apply.describe(state, changed))
    return 0
