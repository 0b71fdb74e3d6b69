"""`refresh` loses nothing, invents nothing, and writes the same bytes for the same commits."""

from __future__ import annotations

import json
import random
import subprocess
import time

import pytest

from tests.conftest import Checkout


def files(checkout: Checkout) -> dict[str, bytes]:
    return {
        str(p.relative_to(checkout.root)): p.read_bytes()
        for top in ("patches", "overlay", "csrc")
        for p in sorted((checkout.root / top).rglob("*"))
        if p.is_file()
    }


def test_the_real_patches_are_byte_identical_after_refresh(real):
    before = files(real)
    real.run("apply")
    assert "nothing changed" in real.run("refresh")
    assert files(real) == before


def test_refresh_from_files_alone_is_byte_identical_too(tiny, add_patch):
    import shutil

    add_patch(tiny, "vllm/one.py", "line 20\n", "line twenty\n", "change line twenty")
    before, commits = files(tiny), tiny.commits()
    shutil.rmtree(tiny.root / "build")
    assert "nothing changed" in tiny.run("refresh")
    assert files(tiny) == before
    assert tiny.commits() == commits


def test_a_patch_in_another_form_is_normalised(tiny, add_patch):
    name = add_patch(tiny, "vllm/one.py", "line 20\n", "line twenty\n", "change line twenty")
    patch = tiny.root / "patches" / name
    good = patch.read_bytes()
    patch.write_bytes(good.replace(b"vLLM-for-gfx936 <maintainers@vllm-for-gfx936.invalid>", b"A Person\n <person@example.invalid>"))
    tiny.run("refresh")
    assert patch.read_bytes() == good


def test_new_changed_and_deleted_overlay_files_come_back(tiny):
    (tiny.tree / "vllm" / "dcu" / "more.py").write_text("MORE = 1\n")
    (tiny.tree / "vllm" / "dcu" / "new.py").unlink()
    (tiny.tree / "csrc").mkdir()
    (tiny.tree / "csrc" / "kernel.cu").write_text("// native\n")
    tiny.run("refresh")
    assert set(files(tiny)) >= {"overlay/vllm/dcu/more.py", "csrc/kernel.cu"}
    assert "overlay/vllm/dcu/new.py" not in files(tiny)
    assert "nothing to do" in tiny.run("apply")


def test_an_edit_of_upstream_without_a_patch_name_is_refused_with_the_candidates(tiny, add_patch):
    name = add_patch(tiny, "vllm/one.py", "line 20\n", "line twenty\n", "change line twenty")
    (tiny.tree / "vllm" / "two.py").write_bytes(b"a = 9\r\n")
    before = files(tiny)
    assert name in tiny.run("refresh", code=2)
    assert files(tiny) == before


def test_an_edit_is_folded_into_the_named_patch_and_later_ones_are_carried(tiny, add_patch):
    first = add_patch(tiny, "vllm/one.py", "line 10\n", "line ten\n", "first change")
    second = add_patch(tiny, "vllm/one.py", "line 30\n", "line thirty\n", "second change")
    file = tiny.tree / "vllm" / "one.py"
    file.write_text(file.read_text().replace("line 12\n", "line twelve\n"))
    tiny.run("refresh", "--patch", first)
    assert b"+line twelve\n" in files(tiny)[f"patches/{first}"]
    assert b"twelve" not in files(tiny)[f"patches/{second}"].replace(b" line twelve", b"")
    text = file.read_text()
    assert all(line in text for line in ("line ten\n", "line twelve\n", "line thirty\n"))
    assert "nothing to do" in tiny.run("apply")


def test_an_edit_of_a_later_patchs_lines_does_not_go_into_an_earlier_one(tiny, add_patch):
    first = add_patch(tiny, "vllm/one.py", "line 10\n", "line ten\n", "first change")
    add_patch(tiny, "vllm/one.py", "line 30\n", "line thirty\n", "second change")
    file = tiny.tree / "vllm" / "one.py"
    file.write_text(file.read_text().replace("line thirty\n", "line XXX\n"))
    before = files(tiny)
    assert "does not fit" in tiny.run("refresh", "--patch", first, code=2).replace("do not fit", "does not fit")
    assert files(tiny) == before
    assert "line XXX" in file.read_text()


def test_a_commit_on_top_becomes_a_patch_and_its_new_files_go_to_the_overlay(tiny):
    (tiny.tree / "vllm" / "one.py").write_text("mine\n")
    (tiny.tree / "vllm" / "dcu" / "more.py").write_text("MORE = 1\n")
    tiny.git("add", "-A")
    message = "my own change\n\nWhy: a test\nDrop-when: never\nUpstream-Status: inappropriate\n"
    tiny.git("-c", "user.name=me", "-c", "user.email=me@example.invalid", "commit", "-qm", message)
    tiny.run("refresh")
    assert set(files(tiny)) >= {"patches/my-own-change.patch", "overlay/vllm/dcu/more.py"}
    assert b"me@example" not in files(tiny)["patches/my-own-change.patch"]
    assert "nothing to do" in tiny.run("apply")


def test_edits_on_both_sides_are_refused(tiny):
    (tiny.tree / "vllm" / "dcu" / "new.py").write_text("NEW = 2\n")
    (tiny.root / "overlay" / "vllm" / "dcu" / "new.py").write_text("NEW = 3\n")
    before = files(tiny)
    assert "cannot be told which" in tiny.run("refresh", code=9)
    assert files(tiny) == before


def test_a_merge_in_the_tree_is_refused(tiny):
    me = ("-c", "user.name=me", "-c", "user.email=me@example.invalid")
    tiny.git("checkout", "-q", "-b", "side")
    (tiny.tree / "vllm" / "one.py").write_text("side\n")
    tiny.git(*me, "commit", "-qam", "side")
    tiny.git("checkout", "-q", "-")
    (tiny.tree / "vllm" / "two.py").write_text("main\n")
    tiny.git(*me, "commit", "-qam", "main")
    tiny.git(*me, "merge", "-q", "side")
    assert "straight line" in tiny.run("refresh", code=9)


def test_killed_at_20_random_moments_a_refresh_needs_nothing_but_another_run(tiny):
    moments = random.Random(17)
    overlay = tiny.tree / "vllm" / "dcu"
    (overlay / "many.py").write_text("V = 0\n")
    started = time.monotonic()
    tiny.run("refresh")
    duration, killed = time.monotonic() - started, 0
    for turn in range(1, 21):
        for i in range(20):
            (overlay / f"file{i}.py").write_text(f"V = {turn}\n")
        process = tiny.popen("refresh")
        try:
            process.communicate(timeout=moments.uniform(0.2, 1.0) * duration)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
        tiny.run("refresh")
        home = tiny.root / "overlay" / "vllm" / "dcu"
        assert {(home / f"file{i}.py").read_text() for i in range(20)} == {f"V = {turn}\n"}
        assert "nothing to do" in tiny.run("apply")
    assert killed >= 8


@pytest.mark.parametrize("verb", ["apply", "refresh"])
def test_the_part_of_a_file_that_a_killed_run_left_is_not_taken_for_a_file(tiny, verb):
    """A refresh that was killed while it wrote left its temporary file in overlay/; the next run took it for one of ours."""
    from scripts.common.files import TEMPORARY

    left = [tiny.root / top / f".new.py.abc123{TEMPORARY}" for top in ("overlay/vllm/dcu", "csrc", "patches")]
    for part in left:
        part.write_text("NEW =")
    commits = tiny.commits()
    tiny.run(verb)
    assert tiny.commits() == commits
    assert not any(part.exists() for part in left)


def test_a_journal_that_names_a_foreign_file_is_refused(tiny):
    journal = tiny.root / "build" / "refresh-journal.json"
    journal.write_text(json.dumps([{"path": "../outside", "data": "eA==", "x": False}]))
    assert "is not a file of patches/, overlay/ or csrc/" in tiny.run("refresh", code=7)
    assert not (tiny.root.parent / "outside").exists()


@pytest.mark.parametrize("count", [1, 2])
def test_a_patch_name_without_edits_is_refused(tiny, count):
    assert "has nothing to take" in tiny.run("refresh", "--patch", "x.patch", code=2)
