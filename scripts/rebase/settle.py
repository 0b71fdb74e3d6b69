"""An adoption that comes whole or not at all: a note names HEAD before and after it, and files, HEAD and index follow.

Nothing outside of scripts/common is needed: the command line asks here before any verb runs.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.files import TEMPORARY, atomic_write
from scripts.common.git import Repo, clean_environment
from scripts.common.outside import MOST_BYTES, StrictError, read_json
from scripts.common.paths import ADOPTION, ROOT, shown

__all__ = ["Note", "drop_index", "finish", "root_repository", "settle", "stopped_midway", "undo"]


@dataclass(frozen=True)
class Note:
    """An adoption under way: the release, and HEAD before and after it."""

    target: str
    old: str
    new: str


def finish(target: str | None) -> int:
    """Finish an adoption that was stopped midway, when it is the one that is asked for. The caller holds the lock."""
    note = _note()
    if target != note.target:
        raise stopped_midway()
    settle(root_repository(), note, note.new)
    print(f"adopted: vLLM {note.target} (a run that was stopped midway is finished)")
    return 0


def undo() -> bool:
    """Take an adoption that was stopped midway back. Returns whether there was one. The caller holds the lock."""
    if not ADOPTION.exists():
        return False
    note = _note()
    settle(root_repository(), note, note.old)
    return True


def _note() -> Note:
    try:
        note: Note = read_json(Note, ADOPTION, MOST_BYTES)
    except StrictError as error:
        raise errors.DirtyTree(
            f"{shown(ADOPTION)} is damaged ({error})",
            "it names HEAD before and after an adoption that was stopped midway",
            "see `git log` and `git status` for what is there, put it right, then delete the file",
        ) from error
    return note


def stopped_midway() -> errors.Fatal:
    """What every verb says while an adoption is half done."""
    note = _note()
    return errors.DirtyTree(
        f"the adoption of vLLM {note.target} was stopped midway",
        "pin, patches and HEAD may be of two releases until it is finished or taken back",
        f"`make rebase VLLM={note.target} ADOPT=1` finishes it, `make rebase-abort` takes it back",
    )


def root_repository() -> Repo:
    """The repository this is: its own top, no enclosing one."""
    probe = ["git", "rev-parse", "--path-format=absolute", "--show-toplevel", "--git-dir"]
    done = subprocess.run(probe, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, errors="replace", check=False)
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != 2 or Path(lines[0]).resolve() != ROOT:
        raise errors.MissingInput(
            f"{ROOT.name} is no git repository of its own",
            "the take-over is two commits of this repository",
            "run it in a clone of the repository; the files are in build/rebase/ all the same",
        )
    return Repo(Path(lines[1]), ROOT)


def settle(repo: Repo, note: Note, to: str) -> None:
    """Files, HEAD and index as the commit `to` has them, for every path in which the two commits differ. Any number of times.

    Raises:
        errors.DirtyTree: HEAD or a file is neither as before nor as after: a person went on meanwhile.
    """
    head = repo.out("rev-parse", "HEAD")
    paths = repo.lines("diff-tree", "-r", "--name-only", "--no-renames", "-z", note.old, note.new)
    texts = {p: {c: _blob(repo, c, p) for c in (note.old, note.new)} for p in paths}
    foreign = [p for p in paths if (_read(ROOT / p)) not in texts[p].values()]
    if head not in (note.old, note.new) or foreign:
        raise errors.DirtyTree(
            f"the adoption of vLLM {note.target} was stopped midway, and {foreign[0] if foreign else 'HEAD'} was changed since",
            "finishing or undoing it would destroy that change",
            f"check the branch out where it was ({note.old[:12]} or {note.new[:12]}) and put {foreign[0] if foreign else 'your commits'} aside; "
            f"or keep everything as it is: delete {shown(ADOPTION)}",
        )
    for path in paths:
        for part in (ROOT / path).parent.glob(f".{Path(path).name}.*{TEMPORARY}"):
            part.unlink()
        data = texts[path][to]
        if data is None:
            (ROOT / path).unlink(missing_ok=True)
        else:
            atomic_write(ROOT / path, data)
    if head != to:
        _unlock(repo)
        repo.out("update-ref", "-m", f"adopt vLLM {note.target}", "HEAD", to, head)
    _index(repo, to, paths)
    ADOPTION.unlink()


def _index(repo: Repo, to: str, paths: list[str]) -> None:
    """Bring these entries of the index to the commit; whatever else is staged stays. Prepared beside, then renamed."""
    real = repo.git_dir / "index"
    if (repo.git_dir / "index.lock").exists():
        raise errors.TreeBusy(
            f"{shown(repo.git_dir / 'index.lock')} is there: another git runs in this repository",
            "the index would be written by two at a time",
            "wait for it to end (or delete the file where none runs), then run this again",
        )
    beside = repo.git_dir / "gfx936-index"
    drop_index(beside)
    shutil.copyfile(real, beside)
    rows = []
    for path in paths:
        row = repo.out("ls-tree", to, "--", path)
        rows.append(row.replace(" blob ", " ", 1) if row else f"0 {'0' * 40}\t{path}")
    scratch = repo.with_index(beside)
    scratch.raw("update-index", "--add", "--index-info", stdin="".join(f"{r}\n" for r in rows).encode())
    scratch.raw("update-index", "-q", "--refresh", ok=(0, 1))
    beside.replace(real)


def _unlock(repo: Repo) -> None:
    """Remove the lock of a ref that our killed git left: no git of ours runs now, and a person's would not hold it for a second."""
    common = Path(repo.out("rev-parse", "--path-format=absolute", "--git-common-dir"))
    ref = repo.out("symbolic-ref", "-q", "HEAD", ok=(0, 1))
    locks = [repo.git_dir / "HEAD.lock", *([common / f"{ref}.lock"] if ref else [])]
    deadline = time.monotonic() + 1
    while any(lock.exists() for lock in locks) and time.monotonic() < deadline:
        time.sleep(0.05)
    for lock in locks:
        if lock.exists() and lock.stat().st_mtime >= ADOPTION.stat().st_mtime:
            lock.unlink()


def drop_index(index: Path) -> None:
    """Delete an index file and its lock."""
    for path in (index, index.with_name(index.name + ".lock")):
        path.unlink(missing_ok=True)


def _blob(repo: Repo, commit: str, path: str) -> bytes | None:
    done = repo.raw("cat-file", "blob", f"{commit}:{path}", ok=(0, 128))
    return done.stdout if done.returncode == 0 else None


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
