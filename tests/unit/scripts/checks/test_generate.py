"""`make generate`: a stale page, an edited figure and a page of another command are each named; the remedy works as printed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import cli
from scripts.checks import generate
from scripts.checks.generate import PAGES, Page
from scripts.common import errors

MADE = Page(("docs/a.md", "docs/a.json"), ("a-verb",), inputs=("in/*.txt",))
LATER = Page(("docs/later.md",), ("b-verb",), inputs=("in/later.data",))
MEASURED = Page(("docs/m.md",), inputs=("in/fact.cmake:set.SUM",), device="run it there")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {
        "in/one.txt": "1",
        "in/fact.cmake": "set(SUM 1)\n# words\n",
        "docs/a.md": "| 7 |",
        "docs/a.json": "7",
        "docs/m.md": "| 1.5 us |",
        "in/later.data": "1",
        "docs/later.md": "| 3 |",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "BUILD", tmp_path / "build")
    monkeypatch.setattr(generate, "PAGES", (MADE, MEASURED))
    for page in (MADE, MEASURED):
        generate._save(page)
    monkeypatch.setitem(cli.VERBS, "generate", ("checks.generate", False))
    return tmp_path


def named(root: Path) -> list[str]:
    return [sentence for _, sentence in generate.faults(root, (MADE, MEASURED))]


def test_what_was_just_made_has_no_fault(root: Path) -> None:
    assert named(root) == []
    assert cli.run(["generate", "--check"]) == 0


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("in/one.txt", "2", "docs/a.md is stale, what it is made from has changed: make generate"),
        ("in/new.txt", "", "docs/a.md is stale, what it is made from has changed: make generate"),
        ("docs/a.md", "| 8 |", "docs/a.md is not as its command wrote it: make generate"),
        ("docs/a.json", "8", "docs/a.json is not as its command wrote it: make generate"),
        ("docs/m.md", "| 1.4 us |", "docs/m.md is not as its command wrote it: run it there"),
        ("in/fact.cmake", "set(SUM 2)\n", "docs/m.md is stale, what it is made from has changed: run it there"),
    ],
)
def test_a_planted_change_is_named_with_its_remedy_and_fails(root: Path, path: str, text: str, sentence: str) -> None:
    (root / path).write_text(text)
    assert len(named(root)) == 1
    assert named(root)[0].startswith(sentence)
    assert cli.run(["generate", "--check"]) == 14


def test_a_line_that_a_measurement_is_not_about_may_change(root: Path) -> None:
    (root / "in/fact.cmake").write_text("set(SUM 1)\n# other words\n")
    assert named(root) == []


def test_a_deleted_page_and_a_deleted_input_are_named(root: Path) -> None:
    (root / "docs/a.json").unlink()
    assert named(root) == ["docs/a.json is not as its command wrote it: make generate"]
    (root / "in/one.txt").unlink()
    with pytest.raises(errors.MissingInput, match="nothing matches"):
        named(root)


def test_generate_runs_only_what_is_stale_and_leaves_the_device_to_a_person(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(generate, "_run", lambda words: ran.append(tuple(words)) or (0, ""))
    assert cli.run(["generate"]) == 0
    assert ran == []
    (root / "in/one.txt").write_text("2")
    (root / "docs/m.md").write_text("edited")
    assert cli.run(["generate"]) == 15
    assert ran == [("a-verb",)]
    assert len(named(root)) == 1
    assert cli.run(["generate", "--measured", "docs/m.md"]) == 0
    assert named(root) == []
    assert cli.run(["generate", "--measured", "docs/a.md"]) == 2


def test_a_command_that_fails_is_said_and_nothing_is_recorded(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "_run", lambda words: (14, "error: no compiler here"))
    (root / "in/one.txt").write_text("2")
    assert cli.run(["generate"]) == 14
    assert "no compiler here" in capsys.readouterr().err
    assert named(root)[0].startswith("docs/a.md is stale")


@pytest.mark.parametrize("text", ['{"a": {}, "a": {}}', '{"a": {"inputs": NaN}}', '{"a": []}', "{"])
def test_a_record_that_cannot_be_believed_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / generate.RECORD).parent.mkdir(parents=True)
    (tmp_path / generate.RECORD).write_text(text)
    with pytest.raises(errors.UserError, match="git checkout"):
        generate.faults(tmp_path)


def test_the_committed_pages_are_what_their_sources_make() -> None:
    recorded = [page for page in PAGES if page.inputs]
    assert [sentence for _, sentence in generate.faults(pages=recorded)] == []


def test_every_committed_evidence_file_and_table_is_a_page() -> None:
    docs = generate.ROOT / "docs"
    known = {name for page in PAGES for name in page.files}
    assert {f"docs/evidence/{p.name}" for p in (docs / "evidence").iterdir()} <= known
    assert set(json.loads((generate.ROOT / generate.RECORD).read_text())) == {page.files[0] for page in PAGES if page.inputs}


def test_what_an_adoption_could_not_make_is_named_at_every_check_until_it_is_made(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "in/one.txt").write_text("2")
    assert cli.run(["generate", "--carried", "9.9.9"]) == 0
    assert cli.run(["generate", "--check"]) == 0
    assert "not made: docs/a.md was not made for vLLM 9.9.9 yet: make generate" in capsys.readouterr().out
    (root / "docs/a.md").write_text("| 8 |")
    assert cli.run(["generate", "--check"]) == 14, "an edited page is no page that is only late"
    (root / "docs/a.md").write_text("| 7 |")
    monkeypatch.setattr(generate, "PAGES", (MADE, MEASURED, LATER))
    generate._save(LATER)
    (root / "in/later.data").write_text("2")
    monkeypatch.setattr(generate, "_run", lambda words: (14, "error: no such vllm here") if words == MADE.command else (0, ""))
    assert cli.run(["generate"]) == 15, "what cannot be made here is said at the end, the others are made"
    said = capsys.readouterr()
    assert "docs/a.md was not made for vLLM 9.9.9 yet: make generate (no such vllm here)" in said.err
    assert "written: docs/later.md" in said.out
    cli.run(["generate", "--check"])
    assert "not made: docs/a.md" in capsys.readouterr().out
    monkeypatch.setattr(generate, "_run", lambda words: (0, ""))
    assert cli.run(["generate"]) == 0
    assert cli.run(["generate", "--check"]) == 0
    assert "not made" not in capsys.readouterr().out


@pytest.mark.parametrize(("counts", "code"), [(True, 0), (False, 14)])
def test_a_page_that_counts_what_was_not_evaluated_is_written_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], counts: bool, code: int
) -> None:
    monkeypatch.setattr(generate, "PAGES", (replace(MADE, counts=counts),))
    monkeypatch.setattr(generate, "_run", lambda words: (15, "error: 3 question(s) were not evaluated"))
    (root / "in/one.txt").write_text("2")
    assert cli.run(["generate"]) == code
    assert ("written: docs/a.json\n3 question(s) were not evaluated" in capsys.readouterr().out) == counts
    assert cli.run(["generate", "--check"]) == code
