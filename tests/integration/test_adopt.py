"""ADOPT=1 on invented releases: it asks first, comes whole or not at all, and brings along what a release brings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.common.errors import CheckFailed, DirtyTree, UserError
from scripts.common.paths import ROOT
from tests.integration.synthetic import Project, lines, make_project

GATE, LIST = "vllm/gate.py", "vllm/list.py"
OVERLAY = {"overlay/vllm/dcu/__init__.py": "# ours\n"}
SERIES = [
    ("Hook the gate", {GATE: lines((20, "line 20 with our hook\n"))}),
    ("Name the device", {LIST: lines((5, "item 5 for gfx936\n"), word="item")}),
]
LIMITS = '[vllm]\nat_least = "1.0.0"\nbelow = "1.0.1"\nknown = "1.0.0, the pin"\nwhy = "vLLM 1.0.0 only"\ndo = "x"\n'
# In place of drift and matrix, which judge real releases: they answer what the test says, and leave what they were asked.
JUDGE = """
import os, pathlib, sys
def main(argv):
    with open("cache/asked", "a") as asked:
        asked.write(" ".join(argv[:1]) + "\\n")
    if "--as-pin" in argv:
        folder = pathlib.Path(argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "matrix.md").write_text("pinned " + argv[0] + "\\n")
        if "ROW" in os.environ:
            (folder / "matrix.json").write_text('{"rows": [{"version": "1.1.0", "dispatch": "' + os.environ["ROW"] + '"}]}')
    return int(os.environ.get("ANSWER_{name}", "0"))
"""


@pytest.fixture
def p(tmp_path: Path) -> Project:
    base = {GATE: lines(), LIST: lines(word="item")}
    releases = {"1.0.0": base, "1.1.0": {**base, GATE: lines((18, "eighteen\n"))}, "1.2.0": {**base, GATE: lines((20, "twenty\n"))}}
    made = make_project(tmp_path, releases, "1.0.0", SERIES, OVERLAY)
    for module, name in (("drift/scan.py", "DRIFT"), ("matrix/verb.py", "MATRIX")):
        (made.root / "scripts" / module).write_text(JUDGE.replace("{name}", name))
    (made.root / "README.md").write_text("the pinned vLLM **1.0.0**: 1.0.0+gfx936.1, vllm-1.0.0.tar.gz; not 11.0.0, not 1.0.0.1\n")
    (made.root / "versions.toml").write_text(LIMITS)
    (made.root / "docs").mkdir()
    (made.root / "docs" / "matrix.md").write_text("pinned 1.0.0\n")
    (made.root / ".gitignore").write_text("build*/\ncache/\n__pycache__/\n")
    assert made.run("refresh").returncode == 0
    git(made, "init", "-q", "-b", "trunk")
    git(made, "config", "user.name", "A Person")
    git(made, "config", "user.email", "a@person.invalid")
    git(made, "add", "-A")
    git(made, "commit", "-q", "-m", "start")
    return made


def git(p: Project, *argv: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(["git", *argv], cwd=p.root, env=env, capture_output=True, text=True, check=True).stdout


TWO = ["Carry the series to vLLM 1.1.0 (mechanical: `make rebase`)", "Pin vLLM 1.1.0", "start"]


def test_it_makes_two_commits_and_what_the_release_brings_is_in_them(p: Project) -> None:
    (p.root / "notes.txt").write_text("mine\n")
    git(p, "add", "notes.txt")
    done = p.run("rebase", "1.1.0", "--adopt")
    assert done.returncode == 0, done.stderr
    assert git(p, "log", "--format=%s").splitlines() == TWO
    assert git(p, "show", "--name-only", "--format=", "HEAD~1").split() == ["README.md", "upstream.toml", "versions.toml"]
    assert git(p, "show", "--name-only", "--format=", "HEAD").split() == [
        "docs/matrix.md",
        "patches/hook-the-gate.patch",
        "patches/series.lock",
    ]
    assert git(p, "status", "--porcelain") == "A  notes.txt\n", "what else was staged stays staged, and is in no commit"
    assert (p.root / "README.md").read_text() == "the pinned vLLM **1.1.0**: 1.1.0+gfx936.1, vllm-1.1.0.tar.gz; not 11.0.0, not 1.0.0.1\n"
    assert (p.root / "versions.toml").read_text() == LIMITS.replace("1.0.1", "1.1.1").replace("1.0.0", "1.1.0")
    assert git(p, "log", "-1", "--format=%an") == "A Person\n"
    assert (p.root / "cache/asked").read_text() == "1.1.0\n1.1.0\n"
    assert p.run("refresh").returncode == 0
    assert git(p, "status", "--porcelain") == "A  notes.txt\n"


def test_a_linked_worktree_is_a_repository_of_its_own(p: Project, tmp_path: Path) -> None:
    git(p, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    linked = Project(tmp_path / "linked")
    (linked.root / "cache").mkdir()
    done = linked.run("rebase", "1.1.0", "--adopt", env={"GFX936_CACHE": str(p.root / "cache")})
    assert done.returncode == 0, done.stderr
    assert git(linked, "log", "--format=%s").splitlines() == TWO
    assert [git(q, "status", "--porcelain") for q in (linked, p)] == ["", ""]
    assert git(p, "log", "--format=%s") == "start\n"


def test_a_second_time_there_is_nothing_to_be_done(p: Project) -> None:
    p.run("rebase", "1.1.0", "--adopt")
    head = git(p, "rev-parse", "HEAD")
    done = p.run("rebase", "1.1.0", "--adopt")
    assert done.returncode == 0, done.stderr
    assert "nothing to be done: vLLM 1.1.0 is the pinned release" in done.stdout
    assert git(p, "rev-parse", "HEAD") == head
    assert git(p, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"ANSWER_MATRIX": "14"}, "vLLM 1.1.0 is not adopted: `make matrix VLLM=1.1.0` ends with 14"),
        ({"ANSWER_MATRIX": "15"}, "`make matrix VLLM=1.1.0` ends with 15"),
        ({"ANSWER_MATRIX": "15", "ROW": ""}, "`make matrix VLLM=1.1.0` ends with 15"),
        ({"ANSWER_MATRIX": "14", "ROW": "passed (7)"}, "`make matrix VLLM=1.1.0` ends with 14"),
        ({"ANSWER_DRIFT": "1"}, "`make drift VLLM=1.1.0` ends with 1"),
    ],
)
def test_an_open_block_is_not_adopted(p: Project, answers: dict[str, str], says: str) -> None:
    before = p.snapshot()
    done = p.run("rebase", "1.1.0", "--adopt", env=answers)
    assert done.returncode == CheckFailed.exit_code
    assert says in done.stderr
    assert p.snapshot() == before
    assert git(p, "log", "--format=%s") == "start\n"


@pytest.mark.parametrize("answers", [{"ANSWER_DRIFT": "14"}, {"ANSWER_DRIFT": "15"}, {"ANSWER_MATRIX": "15", "ROW": "passed (7)"}])
def test_what_the_series_closes_or_a_person_must_read_is_no_refusal(p: Project, answers: dict[str, str]) -> None:
    assert p.run("rebase", "1.1.0", "--adopt", env=answers).returncode == 0


@pytest.mark.parametrize("path", ["patches/series", "overlay/vllm/dcu/__init__.py", "README.md", "docs/new.md", "build/vllm/vllm/gate.py"])
def test_uncommitted_work_is_neither_swept_in_nor_left_behind(p: Project, path: str) -> None:
    file = p.root / path
    file.write_text((file.read_text() if file.is_file() else "") + "# mine\n")
    done = p.run("rebase", "1.1.0", "--adopt")
    assert done.returncode == DirtyTree.exit_code, done.stderr
    assert "uncommitted work" in done.stderr or "build/vllm holds edits" in done.stderr
    assert not (p.root / "cache/asked").exists(), "it is said before minutes are spent"
    assert git(p, "log", "--format=%s") == "start\n"


def test_a_copy_inside_another_repository_is_no_repository_of_its_own(p: Project, tmp_path: Path) -> None:
    (p.root / ".git").rename(tmp_path / ".git")
    assert "is no git repository of its own" in p.run("rebase", "1.1.0", "--adopt").stderr


def test_a_decision_made_on_the_way_is_still_known_when_it_is_taken_over(p: Project) -> None:
    p.run("rebase", "1.2.0")
    (p.root / "build/rebase/work" / GATE).write_text(lines((20, "twenty with our hook\n")))
    finished = p.run("rebase-continue")
    assert finished.returncode == 0, finished.stderr
    adopted = p.run("rebase", "1.2.0", "--adopt")
    assert adopted.returncode == 0, adopted.stdout + adopted.stderr
    assert "+twenty with our hook" in (p.root / "patches/hook-the-gate.patch").read_text()


def test_going_on_can_take_over_at_once_and_a_folder_cannot_be_adopted(p: Project, tmp_path: Path) -> None:
    p.run("rebase", "1.2.0")
    assert p.run("rebase-continue", "--drop", "--adopt").returncode == 0
    assert (p.root / "patches/series").read_text().split("\n")[1:] == ["name-the-device.patch", ""]
    assert not (p.root / "patches/hook-the-gate.patch").exists()
    assert p.run("rebase", "--dir", str(tmp_path), "--adopt").returncode == UserError.exit_code


def killing(p: Project, task: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the driver of `killing.py` in a project. Returns the run that was left alone, and one row a kill."""
    driver = ROOT / "tests" / "integration" / "killing.py"
    done = subprocess.run(
        [sys.executable, str(driver)], cwd=p.root, env=p.environment(), input=json.dumps(task), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    whole, *rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert whole["whole"] == 0, whole["output"]
    return whole, rows


def test_killed_at_40_moments_it_is_finished_or_taken_back_and_nothing_is_left(p: Project) -> None:
    """Every third kill is taken back instead."""
    adopt = ["rebase", "1.1.0", "--adopt"]
    whole, rows = killing(p, {"verb": adopt, "points": 40, "then": [adopt, adopt, ["rebase-abort"]]})
    assert whole["subjects"] == TWO
    assert [row["killed"] for row in rows] == [-9] * 40
    assert len([row for row in rows if row["midway"]["note"]]) >= 6, "some of the moments must be in the middle of the take-over"
    for row in rows:
        finished = row["then"] == adopt or (row["midway"]["subjects"] == TWO and not row["midway"]["note"])
        assert row["again"] == 0 or (row["then"] == ["rebase-abort"] and not row["midway"]["note"]), row["output"]
        assert row["subjects"] == (TWO if finished else ["start"]), row
        assert row["tree"] == whole["tree"] if finished else True
        assert (row["status"], row["left"], row["note"]) == ("", [], False), row
        if row["midway"]["note"]:
            assert row["other"] == DirtyTree.exit_code, "another verb would take a half state for a whole one"
            assert "`make rebase VLLM=1.1.0 ADOPT=1` finishes it, `make rebase-abort` takes it back" in row["said"]


def test_locks_that_a_killed_git_left_on_head_do_not_stop_the_rerun(p: Project) -> None:
    locks = [p.root / ".git/HEAD.lock", p.root / ".git/refs/heads/trunk.lock"]
    midway = f"import scripts.rebase.settle as s, os\nfrom scripts.cli import run\ns._unlock = lambda r: ([open(x, 'w') for x in {[*map(str, locks)]}], os._exit(9))\nrun(['rebase', '1.1.0', '--adopt'])"
    subprocess.run([sys.executable, "-c", midway], cwd=p.root, env=p.environment(), capture_output=True, check=False)
    assert all(lock.exists() for lock in locks)
    done = p.run("rebase", "1.1.0", "--adopt")
    assert done.returncode == 0, done.stderr
    assert git(p, "log", "--format=%s").splitlines() == TWO
    assert not any(lock.exists() for lock in locks)


def test_what_a_person_did_after_a_kill_is_kept_and_named(p: Project) -> None:
    midway = "import scripts.rebase.settle as s, os\ns._index = lambda *a: os._exit(9)\nfrom scripts.cli import run\nrun(['rebase', '1.1.0', '--adopt'])"
    subprocess.run([sys.executable, "-c", midway], cwd=p.root, env=p.environment(), capture_output=True, check=False)
    (p.root / "README.md").write_text("mine\n")
    for verb in (["rebase", "1.1.0", "--adopt"], ["rebase-abort"]):
        done = p.run(*verb)
        assert done.returncode == DirtyTree.exit_code
        assert "README.md was changed since" in done.stderr
        assert (p.root / "README.md").read_text() == "mine\n"
    assert p.run("rebase", "1.2.0").returncode == DirtyTree.exit_code, "another target while one is half done"


@pytest.mark.parametrize("verb", [["rebase", "1.1.0"], ["rebase-continue"]])
def test_killed_on_the_way_the_same_command_comes_to_the_same_end_and_no_correction_is_lost(p: Project, verb: list[str]) -> None:
    """The next run completes, and no half state is taken for a whole one."""
    if verb == ["rebase-continue"]:
        p.run("rebase", "1.2.0")
        (p.root / "build/rebase/work" / GATE).write_text(lines((20, "twenty with our hook\n")))
    finish = "rebase 1.2.0" if verb == ["rebase-continue"] else "rebase 1.1.0"
    whole, rows = killing(p, {"verb": verb, "points": 8, "then": [finish.split() if verb[0] == "rebase" else verb]})
    assert "tree " in whole["output"]
    for row in rows:
        late = row["again"] == UserError.exit_code and "no rebase is under way" in row["output"]  # killed after its last step
        assert late or (row["again"] == 0 and whole["output"].splitlines()[-3:-1] == row["output"].splitlines()[-3:-1]), row["output"]
