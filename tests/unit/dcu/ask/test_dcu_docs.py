"""The documentation's tables are what the code says, and the command line behaves."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from vllm.dcu import __main__ as command
from vllm.dcu.ask import documents, explain
from vllm.dcu.ask.documents import BEGIN, END, PAGES, regenerated
from vllm.dcu.dispatch.rules import Call
from vllm.dcu.records.catalog import CATALOG

DOCS = Path(__file__).parents[4] / "docs"


def test_the_pages_are_as_the_code_says() -> None:
    assert documents.main([str(DOCS)]) == 0, "run `make generate`"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_was_edited_by_hand_is_caught_and_brought_back(tmp_path: Path, page: str) -> None:
    for name in PAGES:
        shutil.copy(DOCS / name, tmp_path / name)
    text = (tmp_path / page).read_text()
    (tmp_path / page).write_text(text.replace(f"\n{END}", f"| planted |\n{END}"))
    assert documents.main([str(tmp_path)]) == 1
    assert documents.main([str(tmp_path), "--write"]) == 0
    assert (tmp_path / page).read_text() == text


def test_a_page_without_its_markers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "capabilities.md").write_text("# nothing generated here\n")
    assert documents.main([str(tmp_path)]) == 1
    assert "lacks its marker lines" in capsys.readouterr().err
    with pytest.raises(ValueError, match="lacks its marker lines"):
        regenerated(END + BEGIN, str)


def test_the_command_line_lists_its_verbs_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(verb in listed for verb in ("explain", "survey", "counters", "manifest"))
    assert command.main([]) == 2
    assert command.main(["dance"]) == 2
    assert "'dance' is not a verb" in capsys.readouterr().err


def test_a_verb_that_this_build_lacks_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(command.VERBS, "later", ("vllm.dcu.later", "not there"))
    assert command.main(["later"]) == 2
    assert "is not part of this build" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "environ", "code", "out", "err"),
    [
        (["explain", "--arch", "gfx936", "--m", "34816", "--k", "5120"], {}, 0, "runs      LLMM1", ""),
        (["explain", "--arch", "gfx936", "--m", "34816", "--k", "5120", "--bias"], {}, 0, "[bias]", ""),
        (["explain", "--arch", "gfx936", "--m", "34816", "--k", "5120", "--strided-weight"], {}, 0, "[weight-not-contiguous]", ""),
        (["explain", "--arch", "gfx936", "--m", "34816", "--k", "5120", "--hip", "6.3"], {}, 0, "hip is 6.3, verified with 6.2", ""),
        (["explain", "--arch", "gfx936", "--m", "8", "--k", "8"], {}, 0, "[no-record]", ""),
        (["explain", "--arch", "gfx936", "--m", "34816", "--k", "5120"], {"VLLM_ROCM_USE_SKINNY_GEMM": "0"}, 0, "[skinny-gemm-off]", ""),
        (["explain", "--arch", "gfx936", "--m", "8", "--k", "8"], {"VLLM_DCU_CAPABILITIES": "x"}, 1, "", "error: VLLM_DCU_CAPABILITIES"),
        (["survey", "nowhere"], {}, 1, "", "cannot be read"),
    ],
)
def test_a_verb_answers_in_one_place_and_an_error_is_one_sentence(
    words: list[str],
    environ: dict[str, str],
    code: int,
    out: str,
    err: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert command.main(words) == code
    said = capsys.readouterr()
    assert out in said.out
    assert err in said.err


def test_versions_can_only_be_assumed_with_an_arch(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["explain", "--m", "8", "--k", "8", "--hip", "6.3"])
    assert "need --arch" in capsys.readouterr().err


@pytest.mark.parametrize(("said", "shown"), [("_dcu_C", ""), ("left out: DCU_KERNELS=0", "left out: DCU_KERNELS=0"), ("", "")])
def test_explain_says_why_our_own_kernels_are_not_there(said: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "read_manifest", lambda: SimpleNamespace(toolchain={"dcu_kernels": said}))
    found = explain.explain(Call("bfloat16", 1, 34816, 5120), explain.context_for("gfx936"), CATALOG)
    assert explain.as_json(found)["own_kernels"] == shown
    assert (f"_dcu_C    {shown}: no record of GEMV can open" in explain.as_text(found)) == bool(shown)
