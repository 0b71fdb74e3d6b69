"""refresh: re-export patches/, overlay/, csrc/ and the lock from build/vllm; byte-identical when nothing changed.

Where build/vllm holds no edits, the files here are the source: the patches are normalised and the lock is written.
Where it does, the tree is the source: its commits become the series, new files go to overlay/ and csrc/, and uncommitted
edits of upstream's files go into the patch that PATCH names.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.files import hold, new_folder
from scripts.common.git import GitError, Repo, new_repository, open_repo
from scripts.common.paths import PATCHES, SERIES, SERIES_LOCK, TREE, shown
from scripts.series.apply import LOCK
from scripts.series.commits import OVERLAY_SUBJECT, Chain, build_chain, import_base, inputs_key, overlay_files, scratch_index
from scripts.series.export import export_series, finish_journal, overlay_home, series_text, write_all
from scripts.series.merge import merge
from scripts.series.patch import load, slug
from scripts.series.worktree import State, check_idle, edits, finish_move, lock_text, move_to, read_state, write_state
from scripts.upstream.fetch import fetch_pinned
from scripts.upstream.releases import Pin, read_pin

__all__ = ["main", "refresh"]

_TEMPLATE = "Why: TODO\nDrop-when: TODO\nUpstream-Status: TODO\n"


def _from_files(repo: Repo, pin: Pin) -> tuple[Chain, dict[str, bytes]]:
    base = import_base(repo, pin.sdist, fetch_pinned())
    chain = build_chain(repo, base, load(), overlay_files())
    return chain, export_series(repo, chain.patches)


def _restrict(repo: Repo, tree: str, onto: str, paths: Sequence[str]) -> str:
    """The tree `onto` with `paths` as they are in `tree`."""
    with scratch_index(repo) as index:
        index.out("read-tree", onto)
        rows = index.raw("ls-tree", "-r", "-z", tree, "--", *paths).stdout.split(b"\0")
        present = {row.split(b"\t", 1)[1].decode(): row for row in rows if row}
        gone = [p for p in paths if p not in present]
        text = b"".join(row.replace(b" blob ", b" ", 1) + b"\n" for row in present.values())
        text += b"".join(f"0 {'0' * 40}\t{p}\n".encode() for p in gone)
        index.raw("update-index", "--add", "--index-info", stdin=text)
        return index.out("write-tree")


def _carry(repo: Repo, old: str, old_parent: str, new_parent: str) -> str:
    done = merge(repo, old, old_parent, new_parent)
    if not done.clean:
        raise GitError(["merge-tree", old], 1, done.error or ", ".join(done.stages))
    return done.tree


@dataclass(frozen=True)
class _Step:
    message: str
    commit: str


def _work_tree_id(repo: Repo) -> str:
    with scratch_index(repo) as index:
        index.out("read-tree", "HEAD")
        index.out("add", "-A", ".")
        return index.out("write-tree")


def _changed(repo: Repo, a: str, b: str) -> list[str]:
    return repo.lines("diff-tree", "-r", "--name-only", "--no-renames", "-z", a, b)


def _own_commits(repo: Repo, base: str, upstream: frozenset[str]) -> list[_Step]:
    """The commits between base and HEAD as series steps on base: upstream's files only, overlay commit left out."""
    if repo.raw("merge-base", "--is-ancestor", base, "HEAD", ok=(0, 1)).returncode or repo.lines("rev-list", "--merges", f"{base}..HEAD"):
        raise errors.DirtyTree(
            f"HEAD of {shown(repo.work_tree)} is not a straight line of commits on the imported release",
            "a series is a straight line",
            f"rebase your commits onto {base[:12]} there, then run this again",
        )
    steps: list[_Step] = []
    at = base
    for commit in repo.lines("rev-list", "--reverse", f"{base}..HEAD"):
        message = repo.raw("log", "-1", "--format=%B", commit).stdout.decode().strip() + "\n"
        paths = [p for p in _changed(repo, f"{commit}^", commit) if p in upstream]
        if message.strip() == OVERLAY_SUBJECT or not paths:
            continue
        tree = _restrict(repo, commit, at, paths)
        at = repo.commit_tree(tree, at, message)
        steps.append(_Step(message, at))
    return steps


def _fold(repo: Repo, base: str, steps: list[_Step], work: str, paths: Sequence[str], name: str) -> list[_Step]:
    """Put the work tree's version of `paths` into the patch `name`, carrying later patches over it."""
    names = [slug(s.message.split("\n", 1)[0]) for s in steps]
    tip = steps[-1].commit if steps else base
    if name not in names:
        subject = name.removesuffix(".patch").replace("-", " ")
        message = f"{subject}\n\n{_TEMPLATE}"
        return [*steps, _Step(message, repo.commit_tree(_restrict(repo, work, tip, paths), tip, message))]
    at = names.index(name)
    parent = steps[at - 1].commit if at else base
    diff = repo.raw("diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames", tip, work, "--", *paths).stdout
    try:
        with scratch_index(repo) as index:
            index.out("read-tree", steps[at].commit)
            index.raw("apply", "--cached", "--whitespace=nowarn", "-", stdin=diff)
            tree = index.out("write-tree")
        out = [*steps[:at], _Step(steps[at].message, repo.commit_tree(tree, parent, steps[at].message))]
        for i in range(at + 1, len(steps)):
            tree = _carry(repo, steps[i].commit, steps[i - 1].commit, out[-1].commit)
            out.append(_Step(steps[i].message, repo.commit_tree(tree, out[-1].commit, steps[i].message)))
    except GitError as error:
        raise errors.UserError(
            f"the edits do not fit into {name}",
            "they touch lines that a later patch makes",
            f"name that patch instead; the patches in order: {', '.join(names)}",
        ) from error
    return out


def _from_tree(
    repo: Repo, pin: Pin, state: State, patch: str | None
) -> tuple[Chain, dict[str, bytes], dict[Path, bytes | None], frozenset[Path]]:
    """Series and overlay as build/vllm holds them."""
    work = _work_tree_id(repo)
    if state.inputs != inputs_key(pin.sdist, {p.name: p.raw for p in load()}, overlay_files()):
        chain, patches = _from_files(repo, pin)
        if chain.tree == work:  # a refresh that was stopped between writing the files and moving the commits
            return chain, patches, {}, frozenset()
        raise errors.DirtyTree(
            f"both {shown(repo.work_tree)} and the files here changed since the last apply",
            "it cannot be told which of them you mean",
            "put one side away (`git stash` here, or `git stash` there), refresh, then bring it back",
        )
    upstream = frozenset(repo.lines("ls-tree", "-r", "--name-only", "-z", state.base))
    steps = _own_commits(repo, state.base, upstream)
    tip = steps[-1].commit if steps else state.base
    edited = [p for p in _changed(repo, tip, work) if p in upstream]
    if edited and not patch:
        raise errors.UserError(
            f"{len(edited)} file(s) of upstream are edited without a commit, first {edited[0]}",
            "it has to be said which patch they belong to",
            f"`make refresh PATCH=name.patch`, an existing one ({', '.join(slug(s.message.splitlines()[0]) for s in steps) or 'none yet'}) or a new name",
        )
    if patch and not edited:
        raise errors.UserError(f"PATCH={patch} has nothing to take", "no file of upstream is edited without a commit", "leave PATCH out")
    if edited and patch:
        steps = _fold(repo, state.base, steps, work, edited, patch)
        tip = steps[-1].commit
    ours = [p for p in _changed(repo, tip, work) if p not in upstream]
    head = repo.commit_tree(_restrict(repo, work, tip, ours), tip, OVERLAY_SUBJECT + "\n")
    tree = repo.out("rev-parse", f"{head}^{{tree}}")
    if tree != work:
        raise errors.CheckFailed(
            f"the refreshed series comes to tree {tree[:12]}, the work tree is {work[:12]}",
            "something of the work tree would be lost; nothing was written",
            "report this with the output of `git status` there",
        )
    chain = Chain(state.base, tuple(s.commit for s in steps), head, tree)
    rows = repo.lines("ls-tree", "-r", "-z", head, "--", *ours) if ours else []
    files: dict[Path, bytes | None] = {f.source: None for f in overlay_files()}
    executable = set()
    for row in rows:
        meta, path = row.split("\t", 1)
        home = overlay_home(path)
        files[home] = repo.raw("cat-file", "blob", meta.split(" ")[2]).stdout
        if meta.startswith("100755"):
            executable.add(home)
    return chain, export_series(repo, chain.patches), files, frozenset(executable)


def refresh(pin: Pin, patch: str | None = None) -> tuple[Chain, list[str]]:
    """Write patches/, overlay/, csrc/ and the lock; bring build/vllm's commits to them. The caller holds the build lock.

    Returns the chain and the files that changed.
    """
    finish_journal()
    state = read_state()
    if state is None:
        with new_folder(TREE) as work:
            repo = new_repository(work)
            chain, patches = _from_files(repo, pin)
            repo.out("update-ref", "--no-deref", "HEAD", chain.head)
            repo.out("read-tree", "--reset", "-u", "HEAD")
            state = State("", chain.base, chain.head, chain.tree)
            write_state(repo, state)
    repo = open_repo(TREE)
    check_idle(repo)
    if state.moving_to:
        state = finish_move(repo, state)
    overlay: dict[Path, bytes | None] = {}
    executable: frozenset[Path] = frozenset()
    edited = bool(edits(repo, state))
    if edited:
        chain, patches, overlay, executable = _from_tree(repo, pin, state, patch)
    else:
        if patch:
            raise errors.UserError(f"PATCH={patch} has nothing to take", f"{shown(TREE)} holds no edits", "leave PATCH out")
        chain, patches = _from_files(repo, pin)
    files: dict[Path, bytes | None] = dict.fromkeys(PATCHES.glob("*.patch"))
    files |= {PATCHES / name: raw for name, raw in patches.items()}
    files |= {SERIES: series_text(list(patches)), SERIES_LOCK: lock_text(pin.version, chain).encode()} | overlay
    changed = [shown(p) for p, data in files.items() if (p.read_bytes() if p.is_file() else None) != data]
    write_all(files, executable)
    inputs = inputs_key(pin.sdist, patches, overlay_files())
    if edited:  # the work tree has this content already: only commits and index move
        repo.out("update-ref", "--no-deref", "HEAD", chain.head)
        repo.out("read-tree", "--reset", chain.head)
    elif chain.head != state.head:
        move_to(repo, state, inputs, chain)
        return chain, changed
    write_state(repo, State(inputs, chain.base, chain.head, chain.tree))
    return chain, changed


def main(argv: Sequence[str]) -> int:
    """Command line of `refresh`."""
    parser = argparse.ArgumentParser(prog="refresh", description=__doc__)
    parser.add_argument("--patch", help="patch that takes uncommitted edits of upstream's files; a new name makes a new one")
    args = parser.parse_args(argv)
    with hold(LOCK, "refresh"):
        chain, changed = refresh(read_pin(), args.patch)
    for path in changed:
        print(f"written: {path}")
    print(f"{len(chain.patches)} patches, head {chain.head[:12]}, tree {chain.tree}" + ("" if changed else ": nothing changed"))
    return 0
