"""The pinned release in build/vllm: exactly base + series + overlay, or what was there before."""

from __future__ import annotations

import os
from pathlib import Path

from scripts.common import errors
from scripts.common.files import new_folder, say
from scripts.common.git import Repo, git_version, new_repository, open_repo, sweep
from scripts.common.paths import BUILD, TREE, shown
from scripts.series.commits import Chain, build_chain, import_base, inputs_key, overlay_files
from scripts.series.export import finish_journal
from scripts.series.patch import load
from scripts.series.worktree import State, check_idle, check_lock, edits, finish_move, move_to, read_state, write_state
from scripts.upstream import fetch
from scripts.upstream.releases import Artifact, Pin

__all__ = ["LOCK", "apply_tree", "describe"]

LOCK = BUILD / ".lock"


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
    sweep(repo, older_than=600)
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
