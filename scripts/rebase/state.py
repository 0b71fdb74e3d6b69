"""What a stopped rebase leaves behind: its state file, bound to one run, and the work tree for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, new_folder, remove_tree
from scripts.common.git import Repo, git_version, new_repository, open_repo, sweep
from scripts.common.outside import MOST_BYTES, StrictError, read_json
from scripts.common.paths import BUILD, shown
from scripts.rebase.walk import Stop
from scripts.series.commits import scratch_index

__all__ = [
    "HOME",
    "LOCK",
    "REPO",
    "RESOLUTIONS",
    "STATE",
    "WORK",
    "Decided",
    "RunState",
    "discard",
    "lay_out",
    "read_state",
    "remembered",
    "repository",
    "write_state",
]

HOME = BUILD / "rebase"
LOCK = HOME / ".lock"
REPO = HOME / "objects"
STATE = HOME / "state.json"
WORK = HOME / "work"
RESOLUTIONS = "resolutions.json"


@dataclass(frozen=True)
class RunState:
    """State of a run under way.

    Attributes:
        run: what it is bound to (`walk.run_id`).
        target: the release asked for; with `directory`, the release that folder is made from.
        resolutions: place -> tree id or "drop".
        directory: folder the series is carried onto after `target` (UPSTREAM_DIR), or "".
        checkout: folder the finished tree goes to (CHECKOUT), or "".
        stop: the place a person is asked about; "" when none is.
        parent: commit that the stopped patch must stand on.
        tree: the merge result laid out in the work tree for that place.
        conflicts: paths that need a person there, by kind.
    """

    run: str
    target: str
    resolutions: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    checkout: str = ""
    stop: str = ""
    parent: str = ""
    tree: str = ""
    conflicts: Mapping[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> str:
        """The command that began it, as a person types it."""
        words = ["make rebase", f"VLLM={self.target}"]
        words += [f"UPSTREAM_DIR={self.directory}"] if self.directory else []
        return " ".join(words + ([f"CHECKOUT={self.checkout}"] if self.checkout else []))


def repository(folder: Path = REPO) -> Repo:
    """The object store of all rebases; imports of releases stay in it between runs. The caller holds `LOCK`."""
    git_version()
    if not (folder / ".git" / "HEAD").is_file():
        with new_folder(folder) as work:
            new_repository(work)
    repo = open_repo(folder)
    sweep(repo)
    return repo


def read_state(path: Path = STATE) -> RunState | None:
    """The state, or None where no run is under way.

    Raises:
        errors.DirtyTree: the file is not one of ours.
    """
    try:
        found: RunState = read_json(RunState, path, MOST_BYTES, any_text=True)  # a folder may have any name
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


@dataclass(frozen=True)
class Decided:
    """The resolutions of a finished run, kept beside its result."""

    run: str
    resolutions: Mapping[str, str]

    def to_json(self) -> bytes:
        """The file's bytes."""
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()


def remembered(repo: Repo, run: str, target: str) -> Mapping[str, str]:
    """The resolutions that a finished run to `target` was given, where they were made for the same bytes and are still there."""
    try:
        found: Decided = read_json(Decided, HOME / target / RESOLUTIONS, MOST_BYTES)
    except (FileNotFoundError, StrictError):
        return {}
    whole = found.run == run and all(tree == "drop" or repo.has(tree) for tree in found.resolutions.values())
    return found.resolutions if whole else {}


def discard() -> None:
    """Forget the run: state, work tree and what a killed one left beside its result. The imported releases stay."""
    for stale in HOME.glob(".*.new-*"):
        remove_tree(stale)
    STATE.unlink(missing_ok=True)
    remove_tree(WORK)
