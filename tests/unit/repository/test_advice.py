"""What a message or a page advises to type is taken: every variable named with a make target reaches that target."""

from __future__ import annotations

import re

import pytest

from scripts.common.paths import ROOT

_VARIABLE = r"[A-Z][A-Z0-9_]*"


def advised(text: str) -> set[tuple[str, str]]:
    """(target, variable) of every `make TARGET VAR=value` and `VAR=value make TARGET`."""
    after = re.findall(rf"\bmake ([a-z][a-z-]*)((?:\s+{_VARIABLE}=[^\s`]+)+)", text)
    before = [(target, words) for words, target in re.findall(rf"((?:\b{_VARIABLE}=[^\s`]+\s+)+)make ([a-z][a-z-]*)", text)]
    return {(target, name) for target, words in (*after, *before) for name in re.findall(rf"({_VARIABLE})=", words)}


def taken() -> tuple[dict[str, set[str]], set[str]]:
    """Variables that each recipe of the Makefile passes on, and those that the tools read from the environment, which make passes."""
    recipes: dict[str, set[str]] = {}
    for names, recipe in re.findall(r"^([a-z][a-z -]*):[^\n]*\n((?:\t[^\n]*\n)+)", (ROOT / "Makefile").read_text(), re.M):
        found = set(re.findall(rf"\b({_VARIABLE})\b", recipe))
        recipes |= dict.fromkeys(names.split(), found)
    read: set[str] = set()
    for path in (ROOT / "scripts").rglob("*.py"):
        read |= set(re.findall(rf'["\']({_VARIABLE})["\']', path.read_text(encoding="utf-8")))
    return recipes, read


def not_taken(text: str) -> set[tuple[str, str]]:
    recipes, read = taken()
    return {(target, name) for target, name in advised(text) if name != "PYTHON" and name not in recipes.get(target, set()) | read}


def texts() -> list[str]:
    paths = [
        *(ROOT / "scripts").rglob("*.py"),
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "deploy").iterdir(),
        ROOT / "versions.toml",
    ]
    return [path.read_text(encoding="utf-8") for path in paths if path.is_file()]


def test_every_variable_that_is_advised_reaches_its_target() -> None:
    found = set().union(*map(advised, texts()))
    assert {("clean", "DROP_EDITS"), ("apply", "DROP_EDITS"), ("build", "MAX_JOBS"), ("build", "TARGET")} <= found
    assert set().union(*map(not_taken, texts())) == set()


@pytest.mark.parametrize("text", ["`make clean NONSENSE=1`", "NONSENSE=1 make build TARGET=rocm", "make lint TARGET=rocm DROP_EDITS=1"])
def test_one_that_does_not_is_found(text: str) -> None:
    assert not_taken(text)
