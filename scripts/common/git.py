"""git, with the user's configuration, hooks, identity, signing and any enclosing repository out of the way."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from scripts.common import errors
from scripts.common.childenv import for_git
from scripts.common.files import HELD, remove_tree

__all__ = ["FIXED_SECONDS", "GitError", "Repo", "clean_environment", "git_version", "new_repository", "open_repo", "sweep"]

CONFIG = Path(__file__).with_name("git.config")
# One identity and one date make commit ids a function of content alone.
FIXED_DATE = "2026-01-01T00:00:00+0000"
FIXED_SECONDS = 1767225600  # the same moment, as fast-import takes it
_REFUSALS = (
    b"not a git repository",  # ours is named, never looked for: it could not be read
    *(
        os.strerror(code).encode()
        for code in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EIO,
            errno.EACCES,
            errno.EPERM,
            errno.EROFS,
            errno.EMFILE,
            errno.ENFILE,
            errno.ENOMEM,
        )
    ),
)
OLDEST_GIT = (2, 38)  # merge-tree --write-tree; GIT_CONFIG_GLOBAL came with 2.32


class GitError(errors.SystemRefuses):
    """git ended non-zero. Where no caller has a better sentence, it is git's own."""

    def __init__(self, argv: Sequence[str], code: int, stderr: str) -> None:
        lines = [
            line for line in stderr.strip().splitlines() if line.startswith(("fatal:", "error:", "warning: could not open"))
        ] or stderr.strip().splitlines()
        super().__init__(
            f"`git {argv[0] if argv else ''}` ended with {code}",
            lines[-1] if lines else "it said nothing",
            "correct that, and run the same command again: nothing half-written is taken for whole",
        )
        self.argv, self.code, self.stderr = list(argv), code, stderr


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment git runs in: no GIT_* of the caller, our configuration file, fixed identity and dates."""
    env = for_git(os.environ)
    env.update(
        GIT_CONFIG_GLOBAL=str(CONFIG),
        GIT_CONFIG_SYSTEM=os.devnull,
        GIT_CONFIG_NOSYSTEM="1",
        GIT_ATTR_NOSYSTEM="1",
        GIT_TERMINAL_PROMPT="0",
        GIT_AUTHOR_DATE=FIXED_DATE,
        GIT_COMMITTER_DATE=FIXED_DATE,
        TZ="UTC",
    )
    env.update(extra or {})
    return env


@dataclass(frozen=True)
class Repo:
    """A repository named explicitly, so that git never looks for one in the folders around it.

    Attributes:
        git_dir: the .git folder.
        work_tree: its work tree.
        index: an index file other than the repository's own, for plumbing that must not touch the work tree.
    """

    git_dir: Path
    work_tree: Path
    index: Path | None = None

    def raw(
        self, *argv: str, stdin: bytes | None = None, ok: Sequence[int] = (0,), env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git; the exit code must be one of `ok`.

        Raises:
            GitError: another exit code, or the operating system refused something to git.
            errors.MissingInput: no git on PATH.
        """
        extra = {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.work_tree)}
        if self.index:
            extra["GIT_INDEX_FILE"] = str(self.index)
        try:
            done = subprocess.run(
                ["git", *argv],
                input=stdin if stdin is not None else b"",
                capture_output=True,
                cwd=self.work_tree,
                env=clean_environment({**extra, **(env or {})}),
                pass_fds=tuple(HELD),
                check=False,
            )
        except FileNotFoundError as error:
            raise _no_git() from error
        # What git cannot look into it passes over with a warning, as if it were empty: an edit there would be lost without a word.
        # And a caller for whom 128 means "not there" or "cannot be merged" must not read a full disk so.
        refused = done.returncode == 128 and any(words in done.stderr for words in _REFUSALS)
        if done.returncode not in ok or refused or b"warning: could not open directory" in done.stderr:
            raise GitError(argv, done.returncode, done.stderr.decode(errors="replace"))
        return done

    def stream(self, source: IO[bytes], *argv: str) -> None:
        """Run git with a file as its standard input.

        Raises:
            GitError: it ended non-zero.
        """
        env = clean_environment({"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.work_tree)})
        done = subprocess.run(
            ["git", *argv], stdin=source, capture_output=True, cwd=self.work_tree, env=env, pass_fds=tuple(HELD), check=False
        )
        if done.returncode:
            raise GitError(argv, done.returncode, done.stderr.decode(errors="replace"))

    def out(self, *argv: str, stdin: bytes | None = None, ok: Sequence[int] = (0,)) -> str:
        """git's standard output, without the last line end."""
        return self.raw(*argv, stdin=stdin, ok=ok).stdout.decode(errors="surrogateescape").rstrip("\n")

    def lines(self, *argv: str) -> list[str]:
        """git's standard output, NUL-separated (pass -z) or by line."""
        text = self.raw(*argv).stdout.decode(errors="surrogateescape")
        return [part for part in (text.split("\0") if "-z" in argv else text.splitlines()) if part]

    def with_index(self, index: Path) -> Repo:
        """The same repository through another index file."""
        return Repo(self.git_dir, self.work_tree, index)

    def commit_tree(self, tree: str, parent: str | None, message: str) -> str:
        """A commit of `tree`; its id depends on tree, parent and message alone (identity and date are fixed)."""
        argv = ["commit-tree", tree, *(["-p", parent] if parent else []), "-F", "-"]
        return self.raw(*argv, stdin=message.encode()).stdout.decode().strip()

    def has(self, revision: str) -> bool:
        """Whether `revision` names an object here."""
        return self.raw("cat-file", "-e", revision, ok=(0, 1, 128)).returncode == 0


def _no_git() -> errors.Fatal:
    return errors.MissingInput("git is missing", "the series is applied, checked and exported with it", "install git 2.38 or newer")


def git_version() -> tuple[int, ...]:
    """Version of the git on PATH.

    Raises:
        errors.MissingInput: none, or older than we need.
    """
    try:
        text = subprocess.run(["git", "--version"], capture_output=True, text=True, errors="replace", check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise _no_git() from error
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    version = tuple(int(part) for part in match.groups(default="0")) if match else (0,)
    if version[:2] < OLDEST_GIT:
        raise errors.MissingInput(
            f"git {'.'.join(map(str, version))} is too old",
            "`git merge-tree --write-tree` came with 2.38",
            "install a newer git",
        )
    return version


def open_repo(work_tree: Path) -> Repo:
    """The repository of a work tree of ours."""
    return Repo(work_tree / ".git", work_tree)


def new_repository(work_tree: Path) -> Repo:
    """An empty repository in `work_tree`, without templates, that keeps every byte as it is."""
    repo = open_repo(work_tree)
    repo.git_dir.mkdir(parents=True)
    repo.out("init", "-q")
    (repo.git_dir / "info").mkdir(exist_ok=True)
    (repo.git_dir / "info" / "attributes").write_text("* -text -ident -filter -working-tree-encoding\n", encoding="utf-8")
    (repo.git_dir / "info" / "exclude").write_text("__pycache__/\n*.pyc\n", encoding="utf-8")
    return repo


def sweep(repo: Repo, older_than: float = 0.0) -> None:
    """Delete what killed runs left in a repository of ours: packs and objects under way, scratch indexes, locks, crash notes.

    The caller holds the lock under which our git commands on it run. `older_than` seconds spares what a person's git writes now.
    """
    before = time.time() - older_than
    for pattern in ("objects/pack/tmp_*", "objects/??/tmp_obj_*", "index-*", "fast_import_crash_*", "refs/gfx936/**/*.lock"):
        for left in repo.git_dir.glob(pattern):
            if left.lstat().st_mtime <= before:
                remove_tree(left)
