"""The audit of this very tree, in three layers with its controls, and what it says of trees with a planted fault.

The first run compiles for some minutes; the user's cache keeps objects and refusals under the hash of all they were made of.
"""

from __future__ import annotations

import shutil
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from scripts.audit import census, verb
from scripts.audit.configure import Bench, commands, configure
from scripts.audit.layers import routing_faults
from scripts.audit.objects import private_tools
from scripts.common import errors
from scripts.common.paths import TREE
from scripts.upstream.releases import read_pin
from tests.support import not_run


@pytest.fixture(scope="module")
def bench() -> Bench:
    try:
        made = verb.bench_of()
    except errors.NotRun as error:
        not_run(f"{error.what} ({error.why})")
    verb.upstream_tree()
    return made


@pytest.fixture(scope="module")
def report(bench: Bench) -> verb.Report:
    return verb.audit_tree()


def test_every_statement_of_the_audit_holds(report: verb.Report) -> None:
    assert [(row["statement"], row["faults"]) for row in report.rows if row["faults"]] == []


def test_no_layer_and_no_control_was_left_out(report: verb.Report) -> None:
    assert Counter(str(row["layer"]) for row in report.rows) == {"routing": 5, "objects": 4, "radius": 4, "control": 6}


def test_the_report_says_what_no_device_has_shown(report: verb.Report) -> None:
    assert report.border["device"].startswith("none")
    assert "stand in" in report.border["gfx936"]
    assert "libamdhip64-dev" in report.border["packages"]


@pytest.fixture(scope="module")
def module(report: verb.Report, bench: Bench) -> Path:
    return configure(bench, TREE, "gfx906", stand_in="gfx906").folder / "_rocm_C.abi3.so"


def test_a_linked_library_is_audited_by_path(module: Path) -> None:
    assert verb.audit_wheel(module, "gfx906").faults == 0


def test_a_library_without_gfx936_is_refused(module: Path) -> None:
    (row,) = verb.audit_wheel(module, "gfx936").rows
    assert row["faults"] == ["0 code objects for gfx936, 1 expected"]


def test_a_wheel_is_audited_by_its_extension(module: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(module, "vllm/_rocm_C.abi3.so")
    assert verb.audit_wheel(wheel, "gfx906").faults == 0


def test_a_wheel_without_a_device_library_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
    with pytest.raises(errors.MissingInput, match="holds 0 vllm/_rocm_C"):
        verb.audit_wheel(wheel)


def test_an_unsplit_module_is_refused(report: verb.Report, bench: Bench) -> None:
    """The other archs' half of the mixed module, taken for a DCU's: hundreds of kernels that are not LLMM1's."""
    mixed = configure(bench, TREE, "gfx900;gfx906", stand_in="gfx900").folder / "_rocm_C.abi3.so"
    found = verb.device_code(mixed, private_tools(bench.toolchain))
    faults = verb.split_faults(found, "gfx906", frozenset({"gfx900"}))
    assert any("wvSplitK" in fault for fault in faults)
    assert any("s_trap" in fault for fault in faults)


@pytest.fixture
def planted(bench: Bench, tmp_path: Path) -> Path:
    """A copy of what CMake needs of the patched tree, to plant a fault in."""
    for name in ("cmake", "csrc"):
        shutil.copytree(TREE / name, tmp_path / "tree" / name)
    shutil.copy(TREE / "CMakeLists.txt", tmp_path / "tree")
    return tmp_path / "tree"


def test_a_build_whose_split_does_not_run_is_found_by_the_routing_layer(planted: Path, bench: Bench) -> None:
    dcu = planted / "cmake" / "dcu.cmake"
    call = "cmake_language(DEFER CALL dcu_split_rocm_extension)"
    text = dcu.read_text()
    assert call in text
    dcu.write_text(text.replace(call, ""))
    built = configure(bench, planted, "gfx936")
    faults = routing_faults("gfx936", commands(built))
    shutil.rmtree(built.folder)
    assert "gfx936: csrc/rocm/skinny_gemms.hip is compiled for gfx936, and should not be" in faults
    assert "gfx936: csrc/rocm/attention.hip is compiled for gfx936, and should not be" in faults


def test_a_new_target_of_upstream_with_a_device_unit_is_refused_at_configure_time(planted: Path, bench: Bench) -> None:
    lists = planted / "CMakeLists.txt"
    new = "add_library(_rocm_C_new STATIC ${CMAKE_CURRENT_BINARY_DIR}/csrc/rocm/skinny_gemms.hip)\n"
    lists.write_text(lists.read_text() + new + "set_target_properties(_rocm_C_new PROPERTIES HIP_ARCHITECTURES gfx936)\n")
    with pytest.raises(errors.CheckFailed, match=r"target _rocm_C_new would compile .*skinny_gemms\.hip for gfx936"):
        configure(bench, planted, "gfx936")


def test_the_census_is_what_the_build_registers(bench: Bench) -> None:
    ops = census.take(configure(bench, TREE, "gfx936"))
    assert [op.name for op in ops if op.standing == "record" and op.library == "_rocm_C"] == ["LLMM1"]
    assert {op.library for op in ops if op.standing == "record" and op.name != "LLMM1"} == {"_dcu_C"}
    assert {op.name for op in ops if op.standing == "absent"} == {"wvSplitK", "wvSplitKrc", "wvSplitKQ", "paged_attention"}
    assert census.CENSUS.read_text() == census.render(ops, read_pin().version)
