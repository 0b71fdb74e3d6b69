"""What a stopped rebase leaves behind: its state file, bound to one run, and the work tree for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, new_folder, remove_tree
from scripts.common.git import Repo, git_version, new_repository, open_repo
from scripts.common.outside import MOST_BYTES, StrictError, read_json
from scripts.common.paths import BUILD, shown
from scripts.rebase.walk import Stop
from scripts.series.commits import scratch_index

__all__ = ["HOME", "LOCK", "REPO", "STATE", "WORK", "RunState", "discard", "lay_out", "read_state", "repository", "taken", "write_state"]

HOME = BUILD / "rebase"
LOCK = HOME / ".lock"
REPO = HOME / "objects"
STATE = HOME / "state.json"
WORK = HOME / "work"


@dataclass(frozen=True)
class RunState:
    """State of a run under way.

    Attributes:
        run: what it is bound to (`stepping.run_id`).
        target: the release asked for.
        resolutions: place -> tree id or "drop".
        stop: the place a person is asked about; "" when none is.
        tree: the merge result laid out in the work tree for that place.
        conflicts: paths that need a person there, by kind.
    """

    run: str
    target: str
    resolutions: Mapping[str, str] = field(default_factory=dict)
    stop: str = ""
    tree: str = ""
    conflicts: Mapping[str, str] = field(default_factory=dict)


def repository(folder: Path = REPO) -> Repo:
    """The object store of all rebases; imports of releases stay in it between runs."""
    git_version()
    if not (folder / ".git" / "HEAD").is_file():
        with new_folder(folder) as work:
            new_repository(work)
    return open_repo(folder)


def read_state(path: Path = STATE) -> RunState | None:
    """The state, or None where no run is under way.

    Raises:
        errors.DirtyTree: the file is not one of ours.
    """
    try:
        found: RunState = read_json(RunState, path, MOST_BYTES)
        return found
    except FileNotFoundError:
        return None
    except StrictError as error:
        raise errors.DirtyTree(
            f"{shown(path)} is damaged ({error})",
            "a rebase cannot go on from a state that cannot be read",
            "`make rebase-abort`, then start the rebase again",
        ) from error


def write_state(state: RunState, path: Path = STATE) -> None:
    """Write it, atomically."""
    atomic_write(path, (json.dumps(asdict(state), indent=1, sort_keys=True) + "\n").encode())


def lay_out(repo: Repo, stop: Stop, work: Path = WORK) -> None:
    """The merge result as files, for a person to correct; whole or not there."""
    with new_folder(work) as fresh, scratch_index(Repo(repo.git_dir, fresh)) as index:
        index.out("read-tree", stop.tree)
        index.out("checkout-index", "-a", "-f")


def taken(repo: Repo, state: RunState, work: Path = WORK) -> str:
    """The tree of the corrected files.

    Raises:
        errors.RebaseConflict: markers are left, or a file that upstream deleted is still there.
    """
    if not work.is_dir():
        raise errors.MissingInput(
            f"{shown(work)} is gone", "the corrected files are read from there", "`make rebase VLLM=" + state.target + "` lays it out again"
        )
    for path, kind in sorted(state.conflicts.items()):
        file = work / path
        if kind == "deleted" and file.exists():
            raise errors.RebaseConflict(
                f"{path} is still in {shown(work)}",
                "upstream deleted or moved it, so the patch's change must go to its new place",
                f"make the change where the code went, delete {shown(file)}, then `make rebase-continue` (or DROP=1 to leave the patch out)",
            )
        if kind != "deleted" and file.is_file():
            text = file.read_bytes()
            if b"\n<<<<<<< " in b"\n" + text or b"\n>>>>>>> " in text:
                raise errors.RebaseConflict(
                    f"{path} still has conflict markers",
                    "they would become part of the patch",
                    f"edit {shown(file)}, then `make rebase-continue`",
                )
    with scratch_index(Repo(repo.git_dir, work)) as index:
        index.out("read-tree", state.tree)
        index.out("add", "-A", "-f", ".")
        return index.out("write-tree")


def discard() -> None:
    """Forget the run: state and work tree. The imported releases stay."""
    STATE.unlink(missing_ok=True)
    remove_tree(WORK)
