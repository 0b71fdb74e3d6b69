"""A patch is read exactly or not at all, and its message says why it exists and until when."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.common import errors
from scripts.series import patch as series
from scripts.series import worktree

GOOD = b"""From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: x <x@example.invalid>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: rocm: say something

Some prose.

Why: a test
Drop-when: never
Upstream-Status: pending

diff --git a/vllm/one.py b/vllm/one.py
index 1111111111111111111111111111111111111111..2222222222222222222222222222222222222222 100644
--- a/vllm/one.py
+++ b/vllm/one.py
@@ -1 +1 @@
-a
+b
"""
NAME = "rocm-say-something.patch"


def test_a_good_patch_is_read_and_has_no_problem():
    patch = series.parse_patch(NAME, GOOD)
    assert patch.subject == "rocm: say something"
    assert patch.touched == (series.Touched("vllm/one.py", "1" * 40, "2" * 40),)
    assert series.problems(patch) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"From 0000", b"From 1111", "zero-commit header"),
        (b"a/vllm/one.py b/vllm/one.py", b"a/../x b/../x", "leaves the tree"),
        (b"a/vllm/one.py b/vllm/one.py", b"a/.git/config b/.git/config", "leaves the tree"),
        (b"a/vllm/one.py b/vllm/one.py", b"a//etc/x b//etc/x", "leaves the tree"),
        (b"a/vllm/one.py b/vllm/one.py", b"a/vllm/one.py b/vllm/uno.py", "renamed"),
        (b"1" * 40, b"1111111", "no full blob ids"),
        (b" 100644", b" 120000", "symbolic link"),
        (b"\n\ndiff --git", b"\n\nnothing --git", "no From, Date, Subject, body and diff"),
    ],
)
def test_a_malformed_patch_is_refused(old, new, says):
    assert old in GOOD
    with pytest.raises(errors.SeriesError, match=says):
        series.parse_patch(NAME, GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"Why: a test\n", b"", "0 `Why:` lines"),
        (b"Why: a test\n", b"Why: a test\nWhy: another\n", "2 `Why:` lines"),
        (b"Drop-when: never", b"Drop-when: ", "`Drop-when:` says nothing"),
        (b"Drop-when: never", b"Drop-when: TODO", "`Drop-when:` says nothing"),
        (b"Upstream-Status: pending", b"Upstream-Status: soon", "is not one of pending"),
        (b"\n+b\n", b"\n+b \n", "trailing white space"),
        (b"say something", b"say other", "not the slug"),
    ],
)
def test_a_broken_rule_is_named(old, new, says):
    assert old in GOOD
    found = series.problems(series.parse_patch(NAME, GOOD.replace(old, new)))
    assert any(says in line for line in found), found


def test_lint_names_the_patch_and_the_rule(tmp_path, monkeypatch):
    from scripts.checks import lint

    (tmp_path / "series").write_text(NAME + "\n")
    (tmp_path / NAME).write_bytes(GOOD.replace(b"Why: a test\n", b""))
    monkeypatch.setattr(lint.patch, "load", lambda: [series.parse_patch(NAME, (tmp_path / NAME).read_bytes())])
    assert lint.lint_series() == [f"patches/{NAME}: body has 0 `Why:` lines, one is needed"]


def test_every_patch_of_the_series_keeps_the_rules():
    patches = series.load()
    assert patches, "the series is empty"
    assert [problem for p in patches for problem in series.problems(p)] == []


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda p: p.symlink_to(p), lambda p: p.symlink_to("/dev/zero"), lambda p: None])
def test_a_series_that_is_no_file_is_a_sentence_and_not_waited_for(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "series")
    with pytest.raises(errors.MissingInput, match="cannot be read"):
        series.read_series(tmp_path)
    make(tmp_path / "lock")
    with pytest.raises((errors.MissingInput, OSError)):
        worktree.read_lock(tmp_path / "lock")
