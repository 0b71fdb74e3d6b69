"""git's exit code 128 says "not there" and "the system refused" alike; only its words tell them apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.common.git import GitError, Repo
from scripts.series import merge
from tests.machine import program


def _git(folder: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> Repo:
    finds = 'case " $* " in *" commit-tree "*|*" rev-parse "*) echo 1; exit 0;; esac'
    program(folder / "bin/git", f'#!/bin/sh\n{finds}\necho "{words}" >&2\nexit 128\n')
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    return Repo(folder, folder)


@pytest.mark.parametrize(
    "reason", ["Too many open files", "No space left on device", "Permission denied", "Input/output error", "not a git repository: '/x'"]
)
def test_what_the_system_refuses_is_never_read_as_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    repo = _git(tmp_path, monkeypatch, f"fatal: unable to access 'config': {reason}")
    with pytest.raises(GitError, match=reason):
        repo.has("HEAD")
    with pytest.raises(GitError, match=reason):
        merge.merge(repo, "a", "b", "c")


def test_what_git_itself_refuses_is_the_callers_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = _git(tmp_path, monkeypatch, "fatal: Not a valid object name HEAD")
    assert not repo.has("HEAD")
    assert merge.merge(repo, "a", "b", "c").error == "fatal: Not a valid object name HEAD"
