"""Upstream and the patched tree, asked every arch-dependent question for every arch: only gfx936 may differ."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from scripts.rehearsal import platform_table
from scripts.rehearsal.platform_table import DCU, OTHERS, Table, archs_of, compare, differences, measure, render, trees
from scripts.rehearsal.scenarios import FAKES, Zygote, link_tree


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, Table]:
    """(upstream, patched), measured once."""
    return compare(sys.executable, tmp_path_factory.mktemp("both"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(upstream, patched): the trees."""
    return trees(tmp_path_factory.mktemp("trees"))


def test_on_every_arch_but_gfx936_each_answer_is_upstreams_and_on_gfx936_nothing_is_open(both: tuple[Table, Table]) -> None:
    assert differences(*both) == []


def test_the_document_is_what_the_code_answers(both: tuple[Table, Table]) -> None:
    assert platform_table.DOCUMENT.read_text(encoding="utf-8") == render(*both), "run `make platform-table`, review the difference"


def test_the_table_covers_every_arch_that_upstream_names(both: tuple[Table, Table], unpacked: tuple[Path, Path]) -> None:
    upstream, patched = both
    assert list(upstream) == list(patched) == [DCU, *archs_of(unpacked[0]), *OTHERS]
    assert {"gfx906", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201", "gfx928", "gfx999"} <= set(patched)


def test_every_predicate_and_argless_method_of_rocm_py_is_a_row(both: tuple[Table, Table]) -> None:
    for rows in (both[0]["gfx942"], both[1]["gfx942"]):
        for row in ("rocm._ON_GFX9", "rocm.on_mi3xx()", "platform.supports_fp8()", "platform.use_custom_allreduce()"):
            assert row in rows
        assert len(rows) > 100


def planted(package: Path, folder: Path, old: str, new: str) -> Path:
    """The patched package with one change in rocm.py."""
    copy = folder / "planted"
    tree = link_tree(package, copy) / "vllm"
    (tree / "platforms").unlink()
    shutil.copytree(package / "platforms", tree / "platforms")
    file = tree / "platforms" / "rocm.py"
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")
    return tree


ON_GFX9 = '_ON_GFX9 = any(arch in _GCN_ARCH for arch in ["gfx90a", "gfx942", "gfx950"])'


def test_a_widened_gfx9_is_closed_again_by_our_platform(
    runner: Zygote, both: tuple[Table, Table], unpacked: tuple[Path, Path], tmp_path: Path
) -> None:
    """As the vendor's plugin edits it: the set says yes to gfx936, and nothing that asks it does."""
    package = planted(unpacked[1] / "vllm", tmp_path, ON_GFX9, ON_GFX9.replace('"gfx90a"', '"gfx936", "gfx90a"'))
    assert differences({DCU: both[0][DCU]}, measure(runner, package, [DCU])) == []


@pytest.mark.parametrize(
    ("new", "arch", "named"),
    [
        (ON_GFX9.replace('"gfx90a", ', ""), "gfx90a", "rocm._ON_GFX9 is False, upstream has True"),
        (ON_GFX9.replace('"gfx950"', '"gfx950", "gfx928"'), "gfx928", "rocm.on_gfx9() is True, upstream has False"),
        (ON_GFX9 + "\n_ON_GFX936 = True", "gfx90a", "rocm._ON_GFX936, which the series adds, is True, not False"),
    ],
)
def test_a_planted_change_of_on_gfx9_fails_the_check(
    runner: Zygote, both: tuple[Table, Table], unpacked: tuple[Path, Path], tmp_path: Path, new: str, arch: str, named: str
) -> None:
    package = planted(unpacked[1] / "vllm", tmp_path, ON_GFX9, new)
    found = differences({arch: both[0][arch]}, measure(runner, package, [arch]))
    assert any(named in line for line in found), found


def test_a_planted_substring_test_opens_nothing_because_the_string_is_sealed(
    runner: Zygote, both: tuple[Table, Table], unpacked: tuple[Path, Path], tmp_path: Path
) -> None:
    package = planted(unpacked[1] / "vllm", tmp_path, ON_GFX9, '_ON_GFX9 = any(arch in _GCN_ARCH for arch in ["gfx9"])')
    assert differences({DCU: both[0][DCU]}, measure(runner, package, [DCU])) == []


def test_upstream_itself_finds_no_platform_on_a_dcu_without_amdsmi(runner: Zygote, unpacked: tuple[Path, Path], tmp_path: Path) -> None:
    """The control of the detection tests: without the series their subject is not there."""
    tree = link_tree(unpacked[0] / "vllm", tmp_path / "upstream")
    code = "from vllm.platforms import current_platform; result = type(current_platform).__name__"
    assert runner.run(code, [tree], device="gfx936").value == "UnspecifiedPlatform"
    answer = runner.run("from vllm.platforms import rocm; result = dir(rocm)", [tree, FAKES], {"FAKE_AMDSMI_FAIL": "KeyError"})
    assert (answer.error or "").startswith("KeyError")
