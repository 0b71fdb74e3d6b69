"""`apply` gives one tree, whatever the machine, the user's git and the moment of death are."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import git
import pytest

from scripts.common.paths import PATCHES
from tests.conftest import TINY, Checkout, make_tiny


def lock(checkout: Checkout) -> dict[str, str]:
    rows = (line.split(" ", 1) for line in (checkout.root / "patches" / "series.lock").read_text().splitlines() if not line.startswith("#"))
    return dict(rows)


def test_the_real_series_comes_to_the_locked_tree_twice_with_the_same_commits(real):
    first = real.run("apply")
    commits = real.commits()
    second = real.run("apply")
    assert "applied" in first
    assert "nothing to do" in second
    assert real.commits() == commits
    repo = git.Repo(real.tree)  # read by another library than the one under test
    assert repo.head.commit.tree.hexsha == lock(real)["tree"]
    assert len(list(repo.iter_commits())) == int(lock(real)["commits"])
    assert not repo.is_dirty(untracked_files=True)
    assert {c.committer.email for c in repo.iter_commits()} == {"maintainers@vllm-for-gfx936.invalid"}


def _misplaced(tree: Path, path: str) -> str:
    """What upstream's own import rule, with upstream's own configuration, says of a file of the tree."""
    argv = [sys.executable, "-m", "ruff", "check", "--select", "I", "--no-cache", "--output-format", "concise", path]
    return subprocess.run(argv, cwd=tree, capture_output=True, text=True, check=False).stdout


def test_imports_of_the_hooks_stand_where_upstreams_linter_wants_them(real):
    real.run("apply")
    patched = {line[6:] for p in PATCHES.glob("*.patch") for line in p.read_text().splitlines() if line.startswith("+++ b/")}
    for path in sorted(path for path in patched if path.endswith(".py")):
        assert "All checks passed" in _misplaced(real.tree, path), path
        whole = (real.tree / path).read_text()
        moved = "from vllm.dcu import planted\n" + whole
        (real.tree / path).write_text(moved)
        assert "I001" in _misplaced(real.tree, path)


def test_the_patch_of_the_variables_names_each_of_them_in_its_body():
    body, _, diff = (PATCHES / "register-the-dcu-environment-variables.patch").read_text().partition("\ndiff --git ")
    added = set(re.findall(r'^\+    "(VLLM_DCU_\w+)": dcu_variable', diff, re.MULTILINE))
    assert added
    assert added == set(re.findall(r"VLLM_DCU_\w+", body))


def test_a_folder_whose_name_has_a_blank_and_bytes_of_two_encodings_is_as_good_as_any(tmp_path):
    checkout = make_tiny(tmp_path, os.fsdecode(b"check out \xe9 \xe5\xb7\xa5"))
    (checkout.tree / "vllm" / "one.py").write_text("another = 1\n")
    checkout.run("refresh", "--patch", "a.patch")
    assert "nothing to do" in checkout.run("apply")
    (checkout.tree / "vllm" / "one.py").write_text("an edit = 1\n")
    assert "holds edits" in checkout.run("clean", code=9)
    said = subprocess.run(["make", "clean", "DROP_EDITS=1"], cwd=checkout.root, env=checkout.env, capture_output=True, check=True)
    assert b"deleted build" in said.stdout


def test_every_byte_of_the_sdist_is_in_the_base_commit_ignored_files_too(tiny):
    base = tiny.commits()[-1]
    for path, data in TINY.items():
        done = subprocess.run(["git", "cat-file", "blob", f"{base}:{path}"], cwd=tiny.tree, capture_output=True, check=True)
        assert done.stdout == data
        assert (tiny.tree / path).read_bytes() == data


def test_a_clean_clone_elsewhere_gives_the_same_commit_ids(tiny, tmp_path):
    other = Checkout(tmp_path / "other", tiny.env)
    shutil.copytree(tiny.root, other.root, ignore=shutil.ignore_patterns("build"))
    other.run("apply")
    assert other.commits() == tiny.commits()


def test_apply_after_an_edit_refuses_and_says_how_to_keep_or_drop_it(tiny):
    (tiny.tree / "vllm" / "one.py").write_text("mine\n")
    said = tiny.run("apply", code=9)
    assert "make refresh" in said
    assert "DROP_EDITS=1" in said
    assert (tiny.tree / "vllm" / "one.py").read_text() == "mine\n"
    tiny.run("apply", "--drop-edits")
    assert (tiny.tree / "vllm" / "one.py").read_bytes() == TINY["vllm/one.py"]


def test_apply_after_a_commit_of_ones_own_refuses(tiny):
    (tiny.tree / "vllm" / "one.py").write_text("mine\n")
    tiny.git("-c", "user.name=me", "-c", "user.email=me@example.invalid", "commit", "-qam", "mine")
    head = tiny.commits()[0]
    tiny.run("apply", code=9)
    assert tiny.commits()[0] == head


def test_a_new_untracked_file_counts_as_an_edit(tiny):
    (tiny.tree / "vllm" / "dcu" / "more.py").write_text("x = 1\n")
    assert "more.py" in tiny.run("apply", code=9)


def test_apply_after_refresh_changes_nothing(tiny, add_patch):
    add_patch(tiny, "vllm/one.py", "line 20\n", "line twenty\n", "change line twenty")
    commits = tiny.commits()
    assert "nothing to do" in tiny.run("apply")
    assert tiny.commits() == commits


def test_only_changed_files_are_written_when_the_overlay_changes(tiny):
    before = (tiny.tree / "vllm" / "one.py").stat().st_mtime_ns
    (tiny.root / "overlay" / "vllm" / "dcu" / "new.py").write_text("NEW = 2\n")
    tiny.run("refresh")
    assert (tiny.tree / "vllm" / "dcu" / "new.py").read_text() == "NEW = 2\n"
    assert (tiny.tree / "vllm" / "one.py").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "config",
    [
        "[core]\n\tautocrlf = true\n\teol = crlf\n\tsafecrlf = true\n",
        "[commit]\n\tgpgsign = true\n[tag]\n\tgpgsign = true\n[user]\n\tsigningkey = none\n[gpg]\n\tprogram = /bin/false\n",
        "[diff]\n\tnoprefix = true\n\tmnemonicPrefix = true\n\tcontext = 1\n\talgorithm = patience\n\torderFile = /dev/null\n"
        "[color]\n\tui = always\n[core]\n\tquotePath = false\n\tabbrev = 7\n[format]\n\tsignature = mine\n\tpretty = oneline\n",
        "[apply]\n\twhitespace = fix\n\tignoreWhitespace = change\n[core]\n\twhitespace = cr-at-eol\n",
    ],
    ids=["autocrlf", "gpgsign", "diff-settings", "whitespace-fix"],
)
def test_the_users_git_configuration_changes_no_byte(tiny, add_patch, config):
    name = add_patch(tiny, "vllm/two.py", "b = 2\r\n", "b = 3\r\n", "change two")
    patch, commits = (tiny.root / "patches" / name).read_bytes(), tiny.commits()
    shutil.rmtree(tiny.root / "build")
    (Path(tiny.env["HOME"]) / ".gitconfig").write_text(config)
    env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.autocrlf", "GIT_CONFIG_VALUE_0": "true", "GIT_DIR": "/nowhere"}
    tiny.run("apply", env=env)
    assert (tiny.tree / "vllm" / "two.py").read_bytes() == b"a = 1\r\nb = 3\r\n"
    tiny.run("refresh", env=env)
    assert (tiny.root / "patches" / name).read_bytes() == patch
    (Path(tiny.env["HOME"]) / ".gitconfig").unlink()
    assert tiny.commits() == commits


def test_a_git_am_in_progress_is_kept_and_named(tiny):
    state = tiny.tree / ".git" / "rebase-apply"
    state.mkdir()
    (state / "next").write_text("2\n")
    said = tiny.run("apply", code=9)
    assert "git am" in said
    assert "in progress" in said
    assert (state / "next").read_text() == "2\n"


def test_it_works_with_an_empty_home_and_no_identity(tiny):
    shutil.rmtree(tiny.root / "build")
    tiny.run("apply", env={"HOME": "", "XDG_CONFIG_HOME": "", "USER": "", "LOGNAME": ""})
    assert "vLLM-for-gfx936" in tiny.git("log", "-1", "--format=%cn")


def test_global_hooks_and_templates_are_not_run(tiny, tmp_path):
    hooks, told = tmp_path / "hooks", tmp_path / "told"
    hooks.mkdir()
    for hook in ("pre-commit", "post-checkout", "post-commit", "applypatch-msg", "reference-transaction", "post-index-change"):
        (hooks / hook).write_text(f"#!/bin/sh\necho {hook} >> {told}\n")
        (hooks / hook).chmod(0o755)
    (tmp_path / "template" / "hooks").mkdir(parents=True)
    shutil.copy(hooks / "post-checkout", tmp_path / "template" / "hooks" / "post-checkout")
    (Path(tiny.env["HOME"]) / ".gitconfig").write_text(
        f"[core]\n\thooksPath = {hooks}\n[init]\n\ttemplateDir = {tmp_path / 'template'}\n[user]\n\tname = a\n\temail = b@example.invalid\n"
    )
    shutil.rmtree(tiny.root / "build")
    tiny.run("apply")
    assert not told.exists()
    subprocess.run(["git", "init", "-q", tmp_path / "control"], env=tiny.env, check=True)
    (tmp_path / "control" / "f").write_text("")
    subprocess.run(["git", "add", "f"], cwd=tmp_path / "control", env=tiny.env, check=True)
    assert told.exists(), "the control: these hooks do run for a person's own git"


def test_a_tree_owned_by_another_user_works_without_touching_the_users_configuration(tiny):
    import os

    if os.geteuid() != 0:
        from tests.support import not_run

        not_run("only root can give a tree to another user")
    for path in [tiny.tree, *tiny.tree.rglob("*")]:
        os.chown(path, 4242, 4242, follow_symlinks=False)
    assert "nothing to do" in tiny.run("apply")
    assert not (Path(tiny.env["HOME"]) / ".gitconfig").exists()


def test_an_enclosing_repository_is_neither_used_nor_changed(tiny, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], env=tiny.env, check=True)
    before = sorted(p for p in (tmp_path / ".git").rglob("*"))
    shutil.rmtree(tiny.root / "build")
    tiny.run("apply")
    assert sorted(p for p in (tmp_path / ".git").rglob("*")) == before
    assert len(tiny.commits()) == 2


def test_a_folder_we_did_not_make_is_left_alone(tiny):
    shutil.rmtree(tiny.tree)
    tiny.tree.mkdir()
    (tiny.tree / "thesis.tex").write_text("years of work")
    assert "thesis" not in tiny.run("apply", code=9)
    assert (tiny.tree / "thesis.tex").read_text() == "years of work"


def patch_text(old: str, new: str, before: str, after: str) -> bytes:
    return (
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        "From: x <x@example.invalid>\nDate: Thu, 1 Jan 2026 00:00:00 +0000\nSubject: some change\n\n"
        "Why: a test\nDrop-when: never\nUpstream-Status: inappropriate\n\n"
        f"diff --git a/vllm/one.py b/vllm/one.py\nindex {before}..{after} 100644\n--- a/vllm/one.py\n+++ b/vllm/one.py\n"
        f"@@ -18,5 +18,5 @@\n line 18\n line 19\n-{old}\n+{new}\n line 21\n line 22\n"
    ).encode()


def blob(tiny: Checkout) -> str:
    return tiny.git("rev-parse", "HEAD:vllm/one.py").strip()


def refused(tiny: Checkout, raw: bytes) -> str:
    commits = tiny.commits()
    tiny.write_patch("some-change.patch", raw)
    tiny.series("some-change.patch")
    said = tiny.run("refresh", code=8)
    assert tiny.commits() == commits
    assert (tiny.tree / "vllm" / "one.py").read_bytes() == TINY["vllm/one.py"]
    return said


def test_a_patch_made_for_other_bytes_is_refused_even_where_its_context_fits(tiny):
    assert "other content" in refused(tiny, patch_text("line 20", "line twenty", "1" * 40, "2" * 40))


def test_a_hunk_that_would_need_fuzz_is_refused(tiny):
    assert "git refuses it" in refused(tiny, patch_text("line 200", "line twenty", blob(tiny), "2" * 40))


def test_a_hunk_that_would_land_elsewhere_is_refused(tiny):
    raw = patch_text("line 20", "line twenty", blob(tiny), "2" * 40)
    assert "became blob" in refused(tiny, raw.replace(b"@@ -18,5 +18,5 @@", b"@@ -10,5 +10,5 @@"))


def test_a_patch_that_is_already_in_the_tree_is_refused_not_dropped(tiny, add_patch):
    name = add_patch(tiny, "vllm/one.py", "line 20\n", "line twenty\n", "change line twenty")
    again = "again-" + name
    raw = (tiny.root / "patches" / name).read_bytes().replace(b"Subject: change", b"Subject: again change")
    tiny.write_patch(again, raw)
    tiny.series(name, again)
    assert "other content" in tiny.run("refresh", code=8)


def test_a_patch_lost_from_the_series_does_not_pass_the_lock(tiny, add_patch):
    name = add_patch(tiny, "vllm/one.py", "line 20\n", "line twenty\n", "change line twenty")
    tiny.series()
    (tiny.root / "patches" / name).unlink()
    commits = tiny.commits()
    assert "series.lock says 3" in tiny.run("apply", code=11)
    assert tiny.commits() == commits


def test_a_changed_overlay_does_not_pass_the_lock(tiny):
    (tiny.root / "overlay" / "vllm" / "dcu" / "new.py").write_text("NEW = 666\n")
    assert "series comes to tree" in tiny.run("apply", code=11)
    assert (tiny.tree / "vllm" / "dcu" / "new.py").read_text() == "NEW = 1\n"


def test_an_overlay_file_may_not_replace_one_of_upstream(tiny):
    (tiny.root / "overlay" / "vllm" / "one.py").write_text("mine\n")
    assert "exists upstream" in tiny.run("refresh", code=7)


@pytest.mark.parametrize(
    ("series", "files", "says"),
    [
        (["gone.patch"], [], "not in patches/"),
        ([], ["stray.patch"], "is not in patches/series"),
        (["a.patch", "a.patch"], ["a.patch"], "twice"),
        (["../a.patch"], [], "names '../a.patch'"),
    ],
    ids=["names a missing file", "a patch not in the series", "a duplicate", "a path"],
)
def test_series_and_folder_must_agree(tiny, series, files, says):
    for name in files:
        tiny.write_patch(name, b"")
    tiny.series(*series)
    commits = tiny.commits()
    assert says in tiny.run("apply", code=7)
    assert tiny.commits() == commits


def test_an_unknown_version_is_named(tiny):
    said = tiny.run("fetch", "--version", "9.9.9", code=3)
    assert "'9.9.9' is not known" in said


def test_two_runs_at_once_give_one_tree(tiny):
    shutil.rmtree(tiny.root / "build")
    runs = [tiny.popen("apply") for _ in range(3)]
    outputs = [r.communicate(timeout=120) for r in runs]
    assert [r.returncode for r in runs] == [0, 0, 0], outputs
    assert sorted("applied" in out for out, _ in outputs) == [False, False, True]


def test_a_run_that_must_wait_says_who_holds_the_lock(tiny):
    import fcntl

    with (tiny.root / "build" / ".lock").open("a+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.truncate(0)
        stream.write("process 1234 (apply)\n")
        stream.flush()
        process = tiny.popen("apply")
        assert "held by process 1234 (apply)" in process.stderr.readline()
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


def whole(checkout: Checkout, trees: set[str]) -> None:
    """No half state is taken for a whole one: build/vllm is absent, or what it says of itself is true."""
    import json

    if not checkout.tree.exists():
        return
    state = json.loads((checkout.tree / ".git" / "gfx936-state.json").read_text())
    assert state["tree"] in trees
    if not state["moving_to"]:
        assert checkout.git("rev-parse", f"{state['head']}^{{tree}}").strip() == state["tree"]


def test_killed_at_25_random_moments_of_a_first_apply_it_needs_nothing_but_another_run(real):
    moments = random.Random(20260101)
    started = time.monotonic()
    real.run("apply")
    duration = time.monotonic() - started
    commits, tree = real.commits(), lock(real)["tree"]
    shutil.rmtree(real.root / "build")
    killed = 0
    for _ in range(25):
        process = real.popen("apply")
        try:
            process.communicate(timeout=moments.uniform(0, duration))
            shutil.rmtree(real.root / "build")  # it came to its end: begin anew
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
        whole(real, {tree})
    assert killed >= 15
    real.run("apply")
    assert real.commits() == commits
    assert not list((real.root / "build").glob(".vllm.new-*"))


def test_killed_at_25_random_moments_of_a_move_it_needs_nothing_but_another_run(tiny):
    moments = random.Random(936)
    overlay = tiny.root / "overlay" / "vllm" / "dcu"
    versions = []
    for value in (1, 2):
        for i in range(60):
            (overlay / f"file{i}.py").write_text(f"V = {value}\n" * 2000)
        tiny.run("refresh")
        versions.append((value, (tiny.root / "patches" / "series.lock").read_text(), lock(tiny)["tree"], tiny.commits()))
    trees = {v[2] for v in versions}
    started = time.monotonic()
    tiny.run("apply")
    duration = 2 * (time.monotonic() - started)
    killed = 0
    for turn in range(25):
        value, locked, _, commits = versions[turn % 2]
        for i in range(60):
            (overlay / f"file{i}.py").write_text(f"V = {value}\n" * 2000)
        (tiny.root / "patches" / "series.lock").write_text(locked)
        process = tiny.popen("apply")
        try:
            process.communicate(timeout=moments.uniform(0, duration))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
        whole(tiny, trees)
        tiny.run("apply")
        assert tiny.commits() == commits
        assert (tiny.tree / "vllm" / "dcu" / "file0.py").read_text().startswith(f"V = {value}\n")
    assert killed >= 10


def test_an_edit_made_after_a_killed_move_is_not_destroyed(tiny):
    import json

    (tiny.root / "overlay" / "vllm" / "dcu" / "new.py").write_text("NEW = 2\n")
    old = tiny.commits()[0]
    tiny.run("refresh")
    new = tiny.commits()[0]
    file = tiny.tree / ".git" / "gfx936-state.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps({**state, "head": old, "moving_to": new}))  # as a kill midway leaves it
    (tiny.tree / "vllm" / "one.py").write_text("mine\n")
    assert "edited after a run that was stopped midway" in tiny.run("apply", code=9)
    assert (tiny.tree / "vllm" / "one.py").read_text() == "mine\n"
    tiny.git("checkout", "--", "vllm/one.py")
    tiny.run("apply")
    assert (tiny.tree / "vllm" / "dcu" / "new.py").read_text() == "NEW = 2\n"
