"""What the system refuses, and what has a name that a step needs, is one sentence: what, why, what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import cli
from scripts.common import errors, outside, paths
from scripts.common.git import GitError, Repo


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "build/x"), ("at build/x", "No space left", "make room on that disk")),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "dist"), ("at dist", "Permission denied", "give this user the right")),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), ("was stopped by the system", "Read-only file system", "work in a copy")),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "a", None, "b"), ("a -> b", "move that folder away")),
        (OSError("no number"), ("no number", "correct that")),
        (GitError(["add", "x"], 128, "warning: x\nfatal: No space left on device\n"), ("`git add` ended with 128", "No space left")),
        (GitError(["gc"], 1, ""), ("it said nothing",)),
    ],
)
def test_what_no_step_foresaw_is_a_sentence_and_a_documented_code(
    raised: Exception, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Verb:
        @staticmethod
        def main(argv: list[str]) -> int:
            raise raised

    monkeypatch.setattr(cli.importlib, "import_module", lambda name: Verb)
    assert cli.run(["help"]) == 17
    said = capsys.readouterr().err
    assert all(word in said for word in (*words, "error: ", "  why: ", "  do:  "))
    assert 17 in {code for code, _, _ in errors.catalogue()}


def test_a_folder_that_git_cannot_look_into_is_an_error_and_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the injected errors: `refresh` ended well without the new files of such a folder."""
    stub = tmp_path / "git"
    stub.write_text("#!/bin/sh\necho \"warning: could not open directory 'vllm/dcu/': Permission denied\" >&2\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(GitError, match="could not open directory 'vllm/dcu/': Permission denied"):
        Repo(tmp_path, tmp_path).out("status", "--porcelain")


def test_a_link_that_leads_to_itself_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    class Verb:
        @staticmethod
        def main(argv: list[str]) -> int:
            found = loop.resolve()  # from Python 3.13 on it does not raise
            return len(list(found.iterdir()))

    monkeypatch.setattr(cli.importlib, "import_module", lambda name: Verb)
    assert cli.run(["help"]) == 17
    assert f"at {loop}" in capsys.readouterr().err


@pytest.mark.parametrize("home", ["/proc", "/dev/null", "/dev/null/x", ""])
def test_without_a_home_that_can_be_written_the_cache_lies_in_build(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GFX936_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", home)
    assert paths.cache_dir() == paths.BUILD / "cache"


def test_a_home_that_can_be_written_keeps_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GFX936_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.cache_dir() == tmp_path / ".cache" / "vllm-for-gfx936"


@pytest.mark.parametrize("kind", ["folder", "fifo", "nothing"])
def test_a_file_of_the_tools_that_is_none_is_a_sentence(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(errors.UserError, match="is missing" if kind == "nothing" else "it is not a regular file"):
        outside.read_toml(dict, path, "correct it")


def test_standard_output_on_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        from tests.support import not_run

        not_run("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "scripts", "help"], cwd=paths.ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 17, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
