"""The order of the rooms: this repository keeps it, and each way to break it is named and fails `make lint`."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import cli
from scripts.checks import lint, rooms

SOUND = {"low/__init__.py": "", "low/a.py": "", "high/b.py": "from p.low import a\n", "door.py": "from p.high.b import x\n"}
PLANTED = {
    "tests": ({"low/a.py": "import tests.support\n"}, "p/low/a.py imports tests.support: what both need belongs outside of tests/"),
    "tests in a function": (
        {"low/a.py": "def f():\n    from tests import support\n"},
        "p/low/a.py imports tests: what both need belongs outside of tests/",
    ),
    "tests in a benchmark": (
        {"../benchmarks/b.py": "from tests.native import x\n"},
        "benchmarks/b.py imports tests.native: what both need belongs outside of tests/",
    ),
    "upwards": ({"low/a.py": "import p.high.b\n"}, "p.low.a imports p.high.b, which is a later room"),
    "upwards in a function": ({"low/a.py": "def f():\n    from p.high import b\n"}, "p.low.a imports p.high.b, which is a later room"),
    "upwards to a door": ({"low/a.py": "from p import door\n"}, "p.low.a imports p.door, which is a later room"),
    "circle": ({"low/a.py": "from p.low import c\n", "low/c.py": "from p.low.a import x\n"}, "circle: p.low.a -> p.low.c -> p.low.a"),
    "no room": ({"attic/d.py": ""}, "p.attic.d has no room: give it one, or add the room to ORDER in scripts/checks/rooms.py"),
    "no room, beside the doors": (
        {"stray.py": ""},
        "p.stray has no room: give it one, or add the room to ORDER in scripts/checks/rooms.py",
    ),
}


def found(folder: Path, changed: dict[str, str]) -> list[str]:
    for name, text in {**SOUND, **changed}.items():
        file = (folder / "p" / name).resolve()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return rooms.faults(folder, {"p": ("p", ("low", "high", "door"))})


def test_this_repository_keeps_the_order_and_every_room_is_used() -> None:
    assert rooms.faults() == []
    for folder, names in rooms.ORDER.values():
        assert [n for n in names if not (rooms.ROOT / folder / n).is_dir() and not (rooms.ROOT / folder / f"{n}.py").is_file()] == []


def test_a_sound_house_has_no_fault(tmp_path: Path) -> None:
    assert found(tmp_path, {}) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(tmp_path: Path, name: str) -> None:
    changed, sentence = PLANTED[name]
    assert sentence in found(tmp_path, changed)


def test_a_fault_in_the_order_fails_lint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rooms, "faults", lambda: ["p.a imports p.b, which is a later room"])
    monkeypatch.setattr(lint, "echoed", lambda *_, **__: 0)
    monkeypatch.setitem(cli.VERBS, "lint", ("checks.lint", False))
    assert cli.run(["lint"]) == 14
    out, err = capsys.readouterr()
    assert "p.a imports p.b, which is a later room" in out
    assert "1 fault(s) in the order of the rooms" in err
