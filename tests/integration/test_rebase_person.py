"""What a person meets at a stop: what is named, what is refused, and that every printed command works."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tarfile
import time
from pathlib import Path

import pytest

from scripts.common.errors import CheckFailed, RebaseConflict
from scripts.common.paths import ROOT
from tests.integration.synthetic import Project, lines, make_project
from tests.integration.test_rebase import GATE, conflicted, project, stopped, verdicts

WORK = f"build/rebase/work/{GATE}"
GOOD = lines((20, "upstream's own 20 with our hook\n"))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gate.py.orig", "x\n", "is a leftover of an editor"),
        ("gate.py.rej", "x\n", "is a leftover"),
        ("gate.py~", "x\n", "is a leftover"),
        (".gate.py.swp", "x\n", "is a leftover"),
        ("#gate.py#", "x\n", "is a leftover"),
        ("gate_BACKUP_417.py", "x\n", "is a leftover"),
        ("new.py", "def broken(:\n", "is no Python (line 1:"),
        ("nul.py", "x = 1\n\0\n", "is no Python"),
        ("__init__.py", "x = (\n", "is no Python (line 1:"),
        ("list.py", "a = 1\n<<<<<<< mine\nb = 2\n", "still has conflict markers"),
        ("notes.txt", "||||||| base\n", "still has conflict markers"),
    ],
)
def test_what_is_no_part_of_a_patch_is_refused_by_name(tmp_path: Path, name: str, text: str, says: str) -> None:
    p = stopped(tmp_path)
    (p.root / WORK).write_text(GOOD)
    (p.root / WORK).with_name(name).write_text(text)
    done = p.run("rebase-continue")
    assert done.returncode == RebaseConflict.exit_code, done.stdout
    assert f"vllm/{name} {says}" in done.stderr
    assert (p.root / "build/rebase/state.json").exists()


def test_what_upstream_ships_under_such_a_name_is_upstreams(tmp_path: Path) -> None:
    theirs = {GATE: lines((20, "upstream's own 20\n")), "vllm/a.orig": "x\n", "vllm/old.py": "print 1\n", "vllm/doc.txt": "<<<<<<< shown\n"}
    p = project(tmp_path, v1_1_0=theirs)
    p.run("rebase", "1.1.0")
    (p.root / WORK).write_text(GOOD)
    (p.root / WORK).with_name("doc.txt").write_text("<<<<<<< shown\nand ours\n")
    (p.root / WORK).with_name("old.py").write_text("print 2\n")
    done = p.run("rebase-continue")
    assert done.returncode == 0, done.stderr
    assert "carried: 3 file(s)\n  vllm/doc.txt: +1 -0\n  vllm/gate.py: +1 -1\n  vllm/old.py: +1 -1\n" in done.stdout


def test_a_correction_that_leaves_nothing_of_the_patch_asks_for_the_decision(tmp_path: Path) -> None:
    p = stopped(tmp_path)
    (p.root / WORK).write_text(lines((20, "upstream's own 20\n")))
    done = p.run("rebase-continue")
    assert done.returncode == RebaseConflict.exit_code
    assert "nothing of the patch is left" in done.stderr
    assert p.run("rebase-continue", "--drop").returncode == 0


def test_the_checkout_that_was_asked_for_is_made_at_the_end(tmp_path: Path) -> None:
    p, out = conflicted(tmp_path), tmp_path / "out"
    assert p.run("rebase", "1.2.0", "--checkout", str(out)).returncode == RebaseConflict.exit_code
    assert not out.exists()
    (p.root / WORK).write_text(GOOD)
    assert p.run("rebase-continue").returncode == 0
    assert (out / GATE).read_text() == lines((20, "upstream's own 20 with our hook\n"), (3, "three\n"))


def judged(p: Project) -> Project:
    """The project with our real overlay, which the matrix reads and draws with."""
    ours = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "overlay" / "vllm" / "dcu", p.root / "overlay" / "vllm" / "dcu", dirs_exist_ok=True, ignore=ours)
    return p


def commands(text: str) -> list[list[str]]:
    """Every `make` line that a report prints, as a verb of the tools."""
    found = []
    for words in (shlex.split(m[1]) for m in re.finditer(r"(?:^|`)\s*(make [a-z][^`\n]*?)\s*(?:`|$)", text, re.M)):
        given = dict(w.split("=", 1) for w in words[2:])
        options = {"VLLM": None, "UPSTREAM_DIR": "--dir", "CHECKOUT": "--checkout", "DROP": "--drop", "ADOPT": "--adopt"}
        argv = [words[1]] + ([given["VLLM"]] if "VLLM" in given and words[1] != "apply" else [])
        for name, value in given.items():
            option = options[name]
            argv += [] if option is None else [option] if value == "1" else [option, value]
        if argv not in found:
            found.append(argv)
    return found


@pytest.mark.parametrize("begin", [["rebase", "1.2.0"], ["rebase", "--dir", "given"], ["apply", "--version", "1.2.0"], ["matrix", "1.2.0"]])
def test_every_command_that_a_conflict_prints_works(tmp_path: Path, begin: list[str]) -> None:
    """Each of them, tried in a project of its own: a command that says that nothing is under way is one that does not work."""
    printed: list[list[str]] = []
    for turn in range(9):
        p = judged(conflicted(tmp_path / str(turn)))
        (p.root / "given" / "vllm").mkdir(parents=True)
        (p.root / "given" / GATE).write_text(lines((20, "upstream's own 20\n")))
        (p.root / "given" / "vllm/list.py").write_text(lines(word="item"))
        done = p.run(*begin)
        assert done.returncode == (CheckFailed if begin[0] == "matrix" else RebaseConflict).exit_code, done.stderr
        printed = commands(done.stdout + done.stderr)
        assert printed
        if turn == len(printed):
            return
        if (p.root / WORK).is_file():
            (p.root / WORK).write_text(GOOD)
        tried = p.run(*printed[turn])
        fine = (0, RebaseConflict.exit_code) if printed[turn][0] == "rebase" else (0,)
        assert tried.returncode in fine, f"{printed[turn]}: {tried.stderr}"
    raise AssertionError(f"more commands than expected: {printed}")


def test_a_conflict_in_a_given_folder_is_resolved_like_any_other(tmp_path: Path) -> None:
    p, given, out = conflicted(tmp_path), tmp_path / "vendor", tmp_path / "out"
    (given / "vllm").mkdir(parents=True)
    (given / GATE).write_text(lines((20, "the vendor's 20\n")))
    (given / "vllm/list.py").write_text(lines(word="item"))
    assert p.run("rebase", "--dir", str(given), "--checkout", str(out)).returncode == RebaseConflict.exit_code
    (p.root / WORK).write_text(lines((20, "the vendor's 20 with our hook\n")))
    (given / "vllm/list.py").write_text("another\n")
    moved = p.run("rebase-continue")
    assert "the given folder changed since" in moved.stderr
    (given / "vllm/list.py").write_text(lines(word="item"))
    done = p.run("rebase-continue")
    assert done.returncode == 0, done.stderr
    assert (out / GATE).read_text() == lines((20, "the vendor's 20 with our hook\n"))


def test_what_was_decided_for_a_release_is_known_to_apply_and_to_the_matrix(tmp_path: Path) -> None:
    p = judged(stopped(tmp_path))
    (p.root / WORK).write_text(GOOD)
    assert p.run("rebase-continue").returncode == 0
    assert p.run("apply", "--version", "1.2.0").returncode == 0
    assert "with our hook" in (p.root / "build/vllm-1.2.0" / GATE).read_text()
    assert "`make rebase VLLM=1.2.0` lays the conflict out" not in p.run("matrix", "1.2.0", "--no-dispatch").stderr
    (p.root / "build/rebase/1.2.0/resolutions.json").write_text("{")
    assert p.run("rebase", "1.2.0").returncode == RebaseConflict.exit_code, "what cannot be read is asked again"


MADE: list[tuple[str, dict[str, str], str]] = [
    (
        "a symbolic link",
        {GATE: "link:moved/gate.py", "vllm/moved/gate.py": lines()},
        f"hook-the-gate.patch: {GATE} (a symbolic link to moved/gate.py now)",
    ),
    ("a link to other text", {GATE: "link:other.py", "vllm/other.py": "x\n"}, f"{GATE} (a symbolic link to other.py now)"),
    ("a folder", {GATE: "deleted", f"{GATE}/a.py": "x\n"}, f"{GATE} (a folder now)"),
    ("CRLF", {GATE: lines().replace("\n", "\r\n")}, f"{GATE}: lines 1-83; its line ends are CRLF now, they were LF"),
    ("mixed line ends", {GATE: lines((20, "line 20\r\n"))}, "its line ends are mixed now, they were LF"),
    ("binary", {GATE: lines((20, "\0\n"))}, "a binary file now"),
]


@pytest.mark.parametrize(("files", "says"), [row[1:] for row in MADE], ids=[row[0] for row in MADE])
def test_a_patched_file_that_became_something_else_is_named_as_that(tmp_path: Path, files: dict[str, str], says: str) -> None:
    done = project(tmp_path, v1_1_0=files).run("rebase", "1.1.0")
    assert done.returncode == RebaseConflict.exit_code
    assert says in done.stdout


def test_gits_own_copy_of_the_patched_file_is_not_carried(tmp_path: Path) -> None:
    p = project(tmp_path, v1_1_0=MADE[0][1])
    p.run("rebase", "1.1.0")
    copy = next((p.root / "build/rebase/work/vllm").glob("gate.py~*"))
    assert f"vllm/{copy.name} is a leftover" in p.run("rebase-continue").stderr
    copy.unlink()
    (p.root / "build/rebase/work/vllm/moved/gate.py").write_text(lines((20, "line 20 with our hook\n")))
    done = p.run("rebase-continue")
    assert done.returncode == 0, done.stderr
    assert "+++ b/vllm/moved/gate.py" in p.result("1.1.0")["hook-the-gate.patch"]


@pytest.mark.parametrize("version", ["1.2.0", "0.9.0"])
def test_a_folder_and_an_sdist_of_the_same_tree_give_the_same_answer(tmp_path: Path, version: str) -> None:
    """Stepped through every release on the way there, where a jump would conflict; a link is a link, whatever it leads to."""
    taken, later = (
        {"vllm/list.py": lines((5, "item 5 for gfx936\n"), word="item")},
        lines((5, "item 5 for gfx936 and others\n"), word="item"),
    )
    end = {"vllm/list.py": later, "vllm/link.py": "link:list.py", "vllm/to": "link:dcu", "vllm/dead": "link:nowhere"}
    p = project(tmp_path, v0_9_0=end, v0_9_5=taken, v1_1_0=taken, v1_2_0=end)
    by_sdist = p.run("rebase", version, "--checkout", str(tmp_path / "a"))
    assert by_sdist.returncode == 0, by_sdist.stderr
    given = tmp_path / "unpacked"
    with tarfile.open(p.root / f"cache/vllm-{version}.tar.gz") as tar:
        tar.extractall(given, filter="data")
    given = given / f"vllm-{version}"
    for junk in (".git/config", "vllm/inner/.git/HEAD", "vllm/__pycache__/gate.cpython-311.pyc"):
        (given / junk).parent.mkdir(parents=True, exist_ok=True)
        (given / junk).write_text("x\n")
    by_folder = p.run("rebase", "--dir", str(given), "--checkout", str(tmp_path / "b"))
    assert by_folder.returncode == 0, by_folder.stderr
    trees = [re.findall(r"tree ([0-9a-f]{40})", done.stdout) for done in (by_sdist, by_folder)]
    assert trees[0] == trees[1]
    assert verdicts(p, version, by_sdist.stdout) == verdicts(p, version, by_folder.stdout)


def test_what_killed_runs_left_in_the_object_store_is_swept(tmp_path: Path) -> None:
    p = conflicted(tmp_path)
    p.run("rebase", "1.2.0")
    git = p.root / "build/rebase/objects/.git"
    left = [
        "objects/pack/tmp_pack_a1b2c3",
        "objects/pack/tmp_idx_x",
        "objects/0a/tmp_obj_z",
        "index-abc/index",
        "fast_import_crash_1",
        "refs/gfx936/base/1.1.0.lock",
    ]
    whole = {q for q in (git / "objects").rglob("*") if q.is_file()}
    for name in left:
        (git / name).parent.mkdir(parents=True, exist_ok=True)
        (git / name).write_text("x")
    p.run("rebase", "1.2.0")
    assert [name for name in left if (git / name).exists()] == []
    assert whole == {q for q in (git / "objects").rglob("*") if q.is_file()}, "and nothing else"


def test_in_build_vllm_only_what_is_old_is_swept_for_a_persons_git_may_write_there(tmp_path: Path) -> None:
    p = project(tmp_path)
    assert p.run("refresh").returncode == 0
    packs = p.root / "build/vllm/.git/objects/pack"
    for name, age in (("tmp_pack_old", 3600), ("tmp_pack_now", 0)):
        (packs / name).write_text("x")
        os.utime(packs / name, (time.time() - age,) * 2)
    assert p.run("apply").returncode == 0
    assert [q.name for q in packs.glob("tmp_*")] == ["tmp_pack_now"]


def test_a_rebase_to_the_pinned_release_has_nothing_to_do(tmp_path: Path) -> None:
    p: Project = make_project(tmp_path, {"1.0.0": {GATE: lines()}}, "1.0.0", [("Hook", {GATE: GOOD})], {})
    done = p.run("rebase", "1.0.0")
    assert (done.returncode, done.stdout) == (0, "nothing to be done: vLLM 1.0.0 is the pinned release; `make apply` lays it out\n")
