"""Changes are planted where they run, one place at a time; and `mutants` sees which of them no test notices."""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.checks import mutants
from scripts.checks.planted import plants
from scripts.common import errors

SOURCE = '''"""A module."""

__all__ = ["at_most"]
LIMIT = 4


def at_most(value: int = 1) -> bool:
    """Whether value is within the limit."""
    if not value >= 0:
        raise ValueError(f"{value + 1} is negative")
    return value <= LIMIT
'''


def test_each_change_is_one_place_and_a_module_that_can_be_read() -> None:
    found = plants(SOURCE)
    names = [plant.name for plant in found]
    assert len(set(names)) == len(names)
    assert "<module>: 4: one more" in names
    assert "at_most: not value >= 0: never" in names
    assert "at_most: value <= LIMIT: shifted by one" in names
    assert "at_most: raise ValueError(f'{value + 1} is negative'): not raised" in names
    assert not [name for name in names if "'at_most'" in name], "what is exported is left alone"
    assert not [name for name in names if name.startswith("at_most: 1: one more (2)")], "what stands in a message is left alone"
    for plant in found:
        text = plant.applied(SOURCE.encode()).decode()
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(SOURCE)), plant.name
        same = [a == b for a, b in zip(SOURCE.splitlines(), text.splitlines(), strict=False)]
        assert same.count(False) <= 1, plant.name


TESTS = """
from pkg.one import at_most


def test_within():
    assert at_most(2)


def test_without():
    assert not at_most(9)


def test_bytes():
    import hashlib, pathlib, pkg.one
    at_most(3)
    assert hashlib.sha256(pathlib.Path(pkg.one.__file__).read_bytes()).hexdigest() == "%s"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one module, tests that watch half of it, and one that looks at its bytes."""
    root = tmp_path / "root"
    reach = Path(mutants.__file__).parents[2] / "tests/reach.py"
    for name, text in {
        "pkg/__init__.py": "", "pkg/one.py": SOURCE, "tests/__init__.py": "", "tests/reach.py": reach.read_text(), "tests/equivalent.toml": "",
        "tests/unit/test_one.py": TESTS % hashlib.sha256(SOURCE.encode()).hexdigest(),
    }.items():  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    monkeypatch.setattr(mutants, "ROOT", root)
    monkeypatch.setattr(mutants, "BUILD", root / "build")
    monkeypatch.setattr(mutants, "HOME", root / "build/mutants")
    monkeypatch.setattr(mutants, "EQUIVALENT", root / "tests/equivalent.toml")
    monkeypatch.setattr(mutants, "PARTS", {"tools": "pkg"})
    monkeypatch.setattr(mutants, "_SUITES", {"tools": ("unit",)})
    return root


def _said(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    with pytest.raises(errors.CheckFailed, match="of the wanted 90%"):
        mutants.main(["--part", "tools", "--sample", "0", "--json", *argv])
    text = capsys.readouterr().out
    (row,) = json.loads(text)["parts"]
    return row


def test_what_no_test_notices_is_named_and_a_stopped_run_goes_on(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _said(capsys, "--minutes", "0.001")
    kept = project / "build/mutants/results.jsonl"
    begun = len(kept.read_text().splitlines()) if kept.is_file() else 0
    first = _said(capsys)
    assert begun < len(kept.read_text().splitlines()) == first["planted"]
    left = [line.split(": ", 1)[1] for line in first["left"]]
    assert "at_most: value <= LIMIT: shifted by one: survived" in left
    assert not [line for line in left if "LIMIT: negated" in line], "the tests see it"
    assert not [line for line in left if "gives None" in line], "the tests see it"
    assert "at_most: raise ValueError(f'{value + 1} is negative'): not raised: unreached" in left
    test = project / "tests/unit/test_one.py"
    test.write_text(test.read_text() + "\n\ndef test_edge():\n    assert at_most(4)\n")
    (project / "tests/equivalent.toml").write_text('["pkg/one.py"]\n"at_most: 1: one more" = "every caller gives it"\n')
    again = _said(capsys)
    assert again["killed"] > first["killed"]
    assert "LIMIT: shifted by one: survived" not in " ".join(again["left"])
    assert again["equivalent"] == 1


def test_a_suite_that_cannot_be_watched_is_no_measurement(project: Path) -> None:
    (project / "tests/reach.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(errors.CheckFailed, match="could not be watched"):
        mutants.main(["--part", "tools"])


def test_the_interpreter_of_the_tools_runs_the_tests_of_the_tools() -> None:
    assert str(mutants._python(Path("lab"), "unit")) == sys.executable
    assert mutants._python(Path("lab"), "runtime") == Path("lab/build/env/serve/bin/python")
