"""System calls of the verbs made to fail, a few each time: a sentence, a documented exit code, a whole old or new state, a next run that completes."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.faults.campaign import CASES, build_library, lab, run_case
from tests.support import not_run


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        not_run("there is no C compiler (cc) for the library that makes calls fail")
    return build_library(tmp_path_factory.mktemp("inject"))


@pytest.mark.parametrize("name", CASES)
def test_a_refused_system_call_is_a_sentence_and_the_next_run_completes(name: str, tmp_path: Path, library: Path) -> None:
    with lab(name, tmp_path, library) as there:
        most = 3 if name == "bundle" else 8  # pip takes its seconds
        found = run_case(there, kinds=1, most=most)
    assert found.runs >= most
    assert found.faults == []


def _bare(root: Path) -> None:
    file = root / "scripts" / "cli.py"
    file.write_text(file.read_text().replace("except OSError as error:", "except ZeroDivisionError as error:"))


def _in_place(root: Path) -> None:
    file = root / "scripts" / "upstream" / "fetch.py"
    file.write_text(file.read_text().replace('part = final.with_suffix(".given")', "part = final"))


@pytest.mark.parametrize(("plant", "words"), [(_bare, "exit 1"), (_in_place, "neither as before nor as after")])
def test_a_planted_hole_is_found(plant, words, tmp_path, library):  # type: ignore[no-untyped-def]
    with lab("fetch", tmp_path, library, plant) as there:
        found = run_case(there, kinds=1, errors=(errno.ENOSPC,))
    assert any(words in fault for fault in found.faults), found


@pytest.mark.parametrize("taken", ["dist by a file", "the wheel's name by a folder", "build by a file"])
def test_a_name_that_something_else_has_is_a_sentence(taken: str, tmp_path: Path, library: Path) -> None:
    with lab("build", tmp_path, library) as there:
        there.restore()
        name = next(path for path in there.new if path.endswith(".whl"))
        if taken.startswith("the wheel"):
            (there.root / name / "kept").mkdir(parents=True)
        else:
            place = there.root / taken.split()[0]
            shutil.rmtree(place, ignore_errors=True)
            place.write_text("somebody's")
        code, _, _, said = there.run()
    assert code == 17, said
    assert "move what is there away" in said or "move that f" in said
    assert "Traceback" not in said
