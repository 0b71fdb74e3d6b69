"""build/vllm: the work tree that holds exactly base + series + overlay, and what it knows about itself."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write
from scripts.common.git import GitError, Repo, open_repo
from scripts.common.outside import MOST_BYTES, StrictError, read_bytes, read_json
from scripts.common.paths import SERIES_LOCK, TREE, shown
from scripts.series.commits import Chain

__all__ = [
    "Edits",
    "State",
    "check_idle",
    "check_lock",
    "edits",
    "finish_move",
    "lock_text",
    "move_to",
    "read_lock",
    "read_state",
    "write_state",
]


@dataclass(frozen=True)
class State:
    """What a work tree holds, written by us inside its .git.

    Attributes:
        inputs: digest of what it was made from.
        base, head, tree: commit and tree ids.
        moving_to: head of a checkout under way; empty when none is. A killed run leaves it set.
    """

    inputs: str
    base: str
    head: str
    tree: str
    moving_to: str = ""


def _state_file(repo: Repo) -> Path:
    return repo.git_dir / "gfx936-state.json"


def read_state(tree: Path = TREE) -> State | None:
    """The state of `tree`, or None where there is no such folder.

    Raises:
        errors.DirtyTree: the folder is there, but not of our making.
    """
    if not tree.exists():
        return None
    try:
        state: State = read_json(State, _state_file(open_repo(tree)), MOST_BYTES)
    except (OSError, StrictError) as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None  # that the system refuses says nothing about whose the folder is
        raise errors.DirtyTree(
            f"{shown(tree)} is not a tree that `make apply` made",
            "it may hold somebody's work, so it is not overwritten",
            f"move it away or delete it (`make clean`), then run this again: {shown(tree)}",
        ) from None
    return state


def write_state(repo: Repo, state: State) -> None:
    """Record the state, atomically."""
    atomic_write(_state_file(repo), (json.dumps(asdict(state), indent=1, sort_keys=True) + "\n").encode())


def check_idle(repo: Repo) -> None:
    """Refuse while a person's git operation is half done in the tree.

    Raises:
        errors.DirtyTree
    """
    for name, what in (
        ("rebase-apply", "git am or rebase"),
        ("rebase-merge", "git rebase"),
        ("MERGE_HEAD", "git merge"),
        ("CHERRY_PICK_HEAD", "git cherry-pick"),
        ("REVERT_HEAD", "git revert"),
        ("BISECT_LOG", "git bisect"),
    ):
        if (repo.git_dir / name).exists():
            raise errors.DirtyTree(
                f"a {what} is in progress in {shown(repo.work_tree)}",
                "its state is yours, and applying would destroy it",
                f"finish or abort it there (`git -C {shown(repo.work_tree)} status` says how), then run this again",
            )


@dataclass(frozen=True)
class Edits:
    """A person's changes in the tree since we left it.

    Attributes:
        moved: HEAD is another commit than ours.
        paths: files that differ from HEAD, untracked ones included.
    """

    moved: bool
    paths: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.moved or bool(self.paths)


def edits(repo: Repo, state: State) -> Edits:
    """Compare by content with what we left."""
    rows = repo.lines("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
    paths = tuple(sorted(row[3:] for row in rows))
    return Edits(repo.out("rev-parse", "HEAD") != state.head, paths)


def move_to(repo: Repo, state: State, inputs: str, chain: Chain) -> State:
    """Check out `chain`. Only files that differ are written (their dates drive incremental builds).

    The tree must hold no edits. Killed in between, `finish_move` completes it.
    """
    write_state(repo, State(**{**asdict(state), "moving_to": chain.head}))
    repo.out("read-tree", "-m", "-u", state.head, chain.head)
    repo.out("update-ref", "--no-deref", "HEAD", chain.head)
    new = State(inputs, chain.base, chain.head, chain.tree)
    write_state(repo, new)
    return new


def finish_move(repo: Repo, state: State) -> State:
    """Complete a checkout that a killed run began. What a person edited since is told apart by content, and kept.

    Raises:
        errors.DirtyTree: a file is neither as before nor as after the move.
    """
    target = state.moving_to
    for lock in (repo.git_dir / "index.lock", repo.git_dir / "HEAD.lock"):
        lock.unlink(missing_ok=True)  # the killed run held it; we hold the build lock
    repo.out("read-tree", "--reset", state.head)
    rows = repo.lines("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
    foreign = []
    for path in (row[3:] for row in rows):
        file = repo.work_tree / path
        now = repo.out("hash-object", "--no-filters", "--", path) if file.is_file() and not file.is_symlink() else ""
        wanted = {_blob(repo, state.head, path), _blob(repo, target, path)}
        # git writes a file in place: a killed checkout can leave a part of the new content.
        if now not in wanted and not _is_partial(repo, file, target, path):
            foreign.append(path)
    if foreign:
        raise errors.DirtyTree(
            f"{shown(repo.work_tree)}/{foreign[0]} was edited after a run that was stopped midway",
            "completing that run would destroy the edit",
            f"copy the edit away, then `git -C {shown(repo.work_tree)} checkout -- {foreign[0]}` and run this again",
        )
    repo.out("read-tree", "--reset", "-u", target)
    repo.out("clean", "-f", "-q", "-d", "--", *(row[3:] for row in rows)) if rows else None
    repo.out("update-ref", "--no-deref", "HEAD", target)
    tree = repo.out("rev-parse", target + "^{tree}")
    new = State("", state.base, target, tree)
    write_state(repo, new)
    return new


def _blob(repo: Repo, commit: str, path: str) -> str:
    try:
        return repo.out("rev-parse", "--verify", "-q", f"{commit}:{path}")
    except GitError:
        return ""


def _is_partial(repo: Repo, file: Path, commit: str, path: str) -> bool:
    blob = _blob(repo, commit, path)
    if not blob or not file.is_file():
        return False
    return repo.raw("cat-file", "blob", blob).stdout.startswith(file.read_bytes())


def lock_text(version: str, chain: Chain) -> str:
    """patches/series.lock: what an application of the series must come to."""
    return (
        "# What `make apply` must come to. Written by `make refresh`, never by hand.\n"
        f"upstream {version}\ncommits {chain.commits}\nhead {chain.head}\ntree {chain.tree}\n"
    )


def read_lock(path: Path = SERIES_LOCK) -> dict[str, str]:
    """The lock's fields (upstream, commits, head, tree).

    Raises:
        errors.MissingInput: it is not there, or not whole.
    """
    try:
        text = read_bytes(path, 4096).decode("utf-8", "replace")
    except FileNotFoundError:
        text = ""
    except StrictError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None  # the system's refusal, which the tools have a sentence for
        text = ""
    fields = dict(re.findall(r"(?m)^(upstream|commits|head|tree) (\S+)$", text))
    if len(fields) != 4:
        raise errors.MissingInput(
            f"{shown(path)} is missing or not whole",
            "without it nobody can tell which tree the series makes",
            "restore it from git, or write it with `make refresh` if you changed the series",
        )
    return fields


def check_lock(version: str, chain: Chain, path: Path = SERIES_LOCK) -> None:
    """Compare an application with the lock: release, number of commits, tree id, head.

    Raises:
        errors.LockMismatch: naming the first field that differs.
    """
    fields = read_lock(path)
    for field, have in (
        ("upstream", version),
        ("commits", str(chain.commits)),
        ("tree", chain.tree),
        ("head", chain.head),
    ):
        if fields[field] != have:
            raise errors.LockMismatch(
                f"the series comes to {field} {have}, {shown(path)} says {fields[field]}",
                "patches/, overlay/ or csrc/ changed since the lock was written, or a patch was lost",
                "if you changed them on purpose, run `make refresh`; else restore them from git",
            )
