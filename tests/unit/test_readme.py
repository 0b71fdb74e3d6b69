"""What the README says to run is what the tools take."""

from __future__ import annotations

import re

import pytest

from scripts.paths import ROOT
from tests.unit.test_repository import makefile_targets

README = ROOT / "README.md"


def shell_blocks(text: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", text, re.S)


def make_words(text: str) -> set[str]:
    """Every target that a text calls through make, in code spans and blocks."""
    spans = re.findall(r"`([^`]*)`|(?m:^    (.*)$)", text) + [(b, "") for b in shell_blocks(text)]
    words = set()
    for span in (a or b for a, b in spans):
        for call in re.findall(r"\bmake ([a-z][a-z-]*)", span):
            words.add(call)
    return words


def test_every_make_target_that_the_readme_names_exists():
    named = make_words(README.read_text())
    assert {"apply", "build", "test", "help", "doctor"} <= named
    assert named <= set(makefile_targets())


def test_a_target_that_does_not_exist_is_found():
    assert make_words("run `make nonsense`") - set(makefile_targets()) == {"nonsense"}


def test_the_three_commands_of_the_readme_are_what_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text()
    blocks = [line for block in shell_blocks(README.read_text()) for line in block.strip().splitlines()]
    for command in (part.strip() for line in blocks for part in line.split("&&")):
        if command != "make help":
            assert command in ci, command


@pytest.mark.parametrize("name", ["UPSTREAM_SDIST", "TOOLS_PYTHON", "STRICT"])
def test_variables_that_the_readme_names_are_read_by_the_tools(name):
    assert name in README.read_text()
    assert any(name in p.read_text() for p in [*(ROOT / "scripts").glob("*.py"), ROOT / "Makefile"])
