"""apply: build/vllm holds exactly base + series + overlay; prints the tree id; running it twice changes nothing."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.files import hold, new_folder, say
from scripts.common.git import Repo, git_version, open_repo
from scripts.common.paths import BUILD, TREE, shown
from scripts.series.commits import Chain, build_chain, import_base, inputs_key, overlay_files
from scripts.series.export import finish_journal
from scripts.series.patch import load
from scripts.series.worktree import State, check_idle, check_lock, edits, finish_move, move_to, read_state, write_state
from scripts.upstream import fetch
from scripts.upstream.releases import Artifact, Pin, read_pin

__all__ = ["apply_tree", "describe", "main", "new_repository"]

LOCK = BUILD / ".lock"


def new_repository(work_tree: Path) -> Repo:
    """An empty repository in `work_tree`, without templates, that keeps every byte as it is."""
    repo = open_repo(work_tree)
    repo.git_dir.mkdir(parents=True)
    repo.out("init", "-q")
    (repo.git_dir / "info").mkdir(exist_ok=True)
    (repo.git_dir / "info" / "attributes").write_text("* -text -ident -filter -working-tree-encoding\n", encoding="utf-8")
    (repo.git_dir / "info" / "exclude").write_text("__pycache__/\n*.pyc\n", encoding="utf-8")
    return repo


def _chain_for(repo: Repo, artifact: Artifact) -> Chain:
    has_base = repo.has(f"refs/gfx936/base/{artifact.version}")
    if not has_base:
        say(f"importing {artifact.name}")
    base = import_base(repo, artifact, _sdist(artifact))
    return build_chain(repo, base, load(), overlay_files())


def _sdist(artifact: Artifact) -> Path:
    given = os.environ.get("UPSTREAM_SDIST")
    return fetch.fetch(artifact, Path(given) if given else None)


def _refuse_edits(state: State, repo: Repo) -> None:
    if not (found := edits(repo, state)):
        return
    what = f"{len(found.paths)} edited file(s), first {found.paths[0]}" if found.paths else "commits of yours"
    raise errors.DirtyTree(
        f"{shown(repo.work_tree)} holds {what}",
        "applying would destroy work that is nowhere else",
        "keep it with `make refresh` (PATCH=name.patch says which patch takes edits of upstream files), "
        "or drop it with `make apply DROP_EDITS=1`",
    )


def _drop_edits(repo: Repo, state: State) -> None:
    say(f"DROP_EDITS=1: {shown(repo.work_tree)} goes back to {state.head[:12]}")
    repo.out("update-ref", "--no-deref", "HEAD", state.head)
    repo.out("read-tree", "--reset", "-u", "HEAD")
    repo.out("clean", "-f", "-d", "-q")


def apply_tree(pin: Pin, drop_edits: bool = False) -> tuple[State, bool]:
    """Bring build/vllm to what the sources say. Returns its state, and whether anything changed.

    The caller holds the build lock.

    Raises:
        errors.Fatal: of every step; the tree is as it was.
    """
    git_version()
    finish_journal()
    artifact = pin.sdist
    patches = load()
    inputs = inputs_key(artifact, {p.name: p.raw for p in patches}, overlay_files())
    state = read_state()
    if state is None:
        with new_folder(TREE) as work:
            repo = new_repository(work)
            chain = _chain_for(repo, artifact)
            check_lock(artifact.version, chain)
            repo.out("update-ref", "--no-deref", "HEAD", chain.head)
            repo.out("read-tree", "--reset", "-u", "HEAD")
            state = State(inputs, chain.base, chain.head, chain.tree)
            write_state(repo, state)
        return state, True
    repo = open_repo(TREE)
    check_idle(repo)
    if state.moving_to:
        state = finish_move(repo, state)
    if drop_edits:
        _drop_edits(repo, state)
    _refuse_edits(state, repo)
    if state.inputs == inputs:
        check_lock(artifact.version, Chain(state.base, tuple("" for _ in patches), state.head, state.tree))
        return state, drop_edits
    chain = _chain_for(repo, artifact)
    check_lock(artifact.version, chain)
    changed = chain.head != state.head
    return move_to(repo, state, inputs, chain), changed


def describe(state: State, changed: bool) -> str:
    """What a person reads after an apply."""
    what = "applied" if changed else "nothing to do"
    return f"{what}: {shown(TREE)}\nhead {state.head}\ntree {state.tree}"


def main(argv: Sequence[str]) -> int:
    """Command line of `apply`."""
    parser = argparse.ArgumentParser(prog="apply", description=__doc__)
    parser.add_argument("--drop-edits", action="store_true", help="throw away what was edited in build/vllm")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--version", help="another known release: the series carried there, in build/vllm-VERSION")
    args = parser.parse_args(argv)
    pin = read_pin()
    if args.version and args.version != pin.version:
        from scripts.rebase.layout import apply_at  # the rebase builds on this module

        folder, tree, changed = apply_at(pin, args.version)
        print(json.dumps({"changed": changed, "tree": tree}) if args.json else f"{shown(folder)}\ntree {tree}")
        return 0
    with hold(LOCK, "apply"):
        state, changed = apply_tree(read_pin(), args.drop_edits)
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
        print(describe(state, changed))
    return 0
