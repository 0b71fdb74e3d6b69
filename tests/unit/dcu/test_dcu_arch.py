"""The DCU arch facts: one fact in three languages, and which strings name a DCU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.dcu.arch import DCU_ARCHS, WAVEFRONT_SIZE, base_arch, is_dcu_arch

ROOT = Path(__file__).resolve().parents[3]
CMAKE = ROOT / "overlay/cmake/dcu.cmake"
HEADER = ROOT / "csrc/rocm/dcu_arch.h"


def cmake_archs(text: str) -> frozenset[str]:
    found = re.findall(r'^set\(DCU_ARCHS "([^"]*)"\)$', text, flags=re.M)
    assert len(found) == 1, f"dcu.cmake states DCU_ARCHS {len(found)} times, once is needed"
    return frozenset(found[0].split(";"))


def header_archs(text: str) -> frozenset[str]:
    found = re.findall(r'^#define VLLM_DCU_ARCHS "([^"]*)"$', text, flags=re.M)
    assert len(found) == 1, f"dcu_arch.h states VLLM_DCU_ARCHS {len(found)} times, once is needed"
    return frozenset(found[0].split(";"))


def header_device_archs(text: str) -> frozenset[str]:
    found = re.findall(r"^#if (defined\(__gfx\w+__\).*)\n\s*#define VLLM_DCU_DEVICE_CODE 1$", text, flags=re.M)
    assert len(found) == 1, f"dcu_arch.h states VLLM_DCU_DEVICE_CODE {len(found)} times, once is needed"
    return frozenset(re.findall(r"defined\(__(gfx\w+)__\)", found[0]))


def header_wavefront(text: str) -> int:
    found = re.findall(r"^#define VLLM_DCU_WAVEFRONT (\d+)$", text, flags=re.M)
    assert len(found) == 1, f"dcu_arch.h states VLLM_DCU_WAVEFRONT {len(found)} times, once is needed"
    return int(found[0])


def disagreements(cmake: str, header: str) -> list[str]:
    """Which of the other two statements differs from vllm/dcu/arch.py."""
    return [
        f"{name} says {value}, vllm/dcu/arch.py says {wanted}"
        for name, value, wanted in (
            ("overlay/cmake/dcu.cmake", cmake_archs(cmake), DCU_ARCHS),
            ("csrc/rocm/dcu_arch.h (archs)", header_archs(header), DCU_ARCHS),
            ("csrc/rocm/dcu_arch.h (device code)", header_device_archs(header), DCU_ARCHS),
            ("csrc/rocm/dcu_arch.h (wavefront)", header_wavefront(header), WAVEFRONT_SIZE),
        )
        if value != wanted
    ]


def test_python_cmake_and_cpp_state_the_same_archs() -> None:
    missing = [str(path.relative_to(ROOT)) for path in (CMAKE, HEADER) if not path.is_file()]
    assert not missing, f"no statement of the DCU archs in: {', '.join(missing)}"
    assert disagreements(CMAKE.read_text(), HEADER.read_text()) == []


@pytest.mark.parametrize(
    ("cmake_edit", "header_edit", "named"),
    [
        (('"gfx936"', '"gfx936;gfx928"'), None, "dcu.cmake"),
        (None, ('"gfx936"', '"gfx938"'), "dcu_arch.h (archs)"),
        (None, ("__gfx936__", "__gfx938__"), "dcu_arch.h (device code)"),
        (None, ("VLLM_DCU_WAVEFRONT 64", "VLLM_DCU_WAVEFRONT 32"), "dcu_arch.h (wavefront)"),
    ],
)
def test_a_planted_disagreement_is_named(cmake_edit: tuple[str, str] | None, header_edit: tuple[str, str] | None, named: str) -> None:
    def edited(path: Path, edit: tuple[str, str] | None) -> str:
        text = path.read_text()
        assert edit is None or edit[0] in text, f"{path.name} has no {edit}"
        return text.replace(*edit) if edit else text

    found = disagreements(edited(CMAKE, cmake_edit), edited(HEADER, header_edit))
    assert len(found) == 1
    assert named in found[0]


@pytest.mark.parametrize("arch", ["gfx936", "gfx936:sramecc+:xnack-", "gfx936:sramecc-", "gfx936:"])
def test_gfx936_with_any_features_is_a_dcu_arch(arch: str) -> None:
    assert is_dcu_arch(arch)
    assert base_arch(arch) == "gfx936"


@pytest.mark.parametrize(
    "arch", ["gfx9360", "gfx93", "GFX936", "", "gfx928", "gfx938", "gfx906", "gfx90a", " gfx936", "gfx936 ", ":gfx936", "gfx936;gfx928"]
)
def test_what_is_not_exactly_gfx936_is_not_a_dcu_arch(arch: str) -> None:
    assert not is_dcu_arch(arch)


@given(st.text())
def test_only_the_name_before_the_features_counts(text: str) -> None:
    assert is_dcu_arch(text) == (text == "gfx936" or text.startswith("gfx936:"))
