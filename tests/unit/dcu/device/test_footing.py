"""The files that a decision rests on are the ones that our patches touch, and those that call the operator."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm.dcu.device.footing import RESTS_ON, Footing, look
from vllm.dcu.device.marks import FILE_NAME
from vllm.dcu.env import package_name

from scripts.series import patch


def test_every_file_of_the_package_that_a_patch_touches_is_looked_at() -> None:
    touched = {name for p in patch.load() for name in re.findall(r"(?m)^\+\+\+ b/vllm/(\S+)$", p.raw.decode())}
    assert touched <= set(RESTS_ON)
    assert set(RESTS_ON) - touched == {"model_executor/layers/linear.py", "model_executor/layers/vocab_parallel_embedding.py"}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            Footing("1", ("a is not",)),
            "DCU: every capability is shut: a is not. Remedy: pip install --force-reinstall --no-deps of the wheel of vllm 1;",
        ),
        (Footing("1", ("a", "b", "c")), "shut: a (and 2 more)."),
        (Footing(unknown="no manifest"), "shut: no manifest. Remedy: pip install --force-reinstall --no-deps of the wheel."),
    ],
)
def test_one_line_names_file_and_remedy(found: Footing, words: str) -> None:
    assert words in found.sentence
    assert not Footing("1").sentence


@pytest.mark.parametrize("name", [f"dcu/{FILE_NAME}", RESTS_ON[0]])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path)])
def test_what_is_no_file_in_the_package_is_not_waited_for(tmp_path: Path, name: str, make: Callable[[Path], object]) -> None:
    package = tmp_path / "vllm"
    (package / "dcu").mkdir(parents=True)
    (package / "dcu" / FILE_NAME).write_text('{"version": "1", "files": {}}')
    path = package / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    found = look(package)
    assert found.unknown if FILE_NAME in name else any(str(path) in edit for edit in found.edits)


def test_a_manifest_that_says_a_key_twice_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "dcu").mkdir()
    (tmp_path / "dcu" / FILE_NAME).write_text('{"version": "1", "files": {"a": "1", "a": "2"}}')
    assert look(tmp_path).unknown


@pytest.mark.parametrize("name", ["vllm_hcu", "VLLM.HCU", " vllm-hcu ", "vllm__hcu"])
def test_names_of_packages_are_compared_as_pip_does(name: str) -> None:
    assert package_name(name) == "vllm-hcu"
