"""The arch string that rocm.py tests: no family matches a DCU's, every other device keeps its plain string."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.dcu.detect import SealedArch

ARCH = "gfx936:sramecc+:xnack-"


def upstream_predicates(arch: str) -> dict[str, bool]:
    """Substring tests as upstream writes them, the one of 0.27.1 (`_ON_CDNA`) included."""
    return {
        "_ON_GFX1X": any(a in arch for a in ["gfx11", "gfx12"]),
        "_ON_MI3XX": any(a in arch for a in ["gfx942", "gfx950"]),
        "_ON_GFX9": any(a in arch for a in ["gfx90a", "gfx942", "gfx950"]),
        "_ON_CDNA": any(a in arch for a in ["gfx9", "gfx1250"]),
        "is_fp8_fnuz": "gfx94" in arch,
        "gfx93": "gfx93" in arch,
        "startswith": arch.startswith("gfx9"),
        "startswith one of": arch.startswith(("gfx94", "gfx9")),
    }


def test_without_the_seal_a_family_test_opens_gfx936() -> None:
    assert upstream_predicates(ARCH)["_ON_CDNA"], "the control: this is what the seal is for"


@pytest.mark.parametrize("arch", ["gfx936", ARCH])
def test_no_family_test_matches_a_sealed_arch(arch: str) -> None:
    assert set(upstream_predicates(SealedArch(arch)).values()) == {False}


def test_its_own_name_matches() -> None:
    arch = SealedArch(ARCH)
    for name in ("gfx936", ARCH, "gfx"):
        assert name in arch
        assert arch.startswith(name)


def test_everything_else_is_the_string() -> None:
    arch = SealedArch(ARCH)
    assert arch == ARCH
    assert hash(arch) == hash(ARCH)
    assert f"{arch}" == ARCH
    assert arch.split(":")[0] == "gfx936"
    assert re.match(r"gfx(\d+)", arch).group(1) == "936"  # type: ignore[union-attr]
    assert pickle.loads(pickle.dumps(arch)) == ARCH


@given(st.text(alphabet="gfx936:sramec+-"))
def test_a_fragment_matches_only_as_a_whole_name(fragment: str) -> None:
    assert (fragment in SealedArch(ARCH)) == (fragment in ("", "gfx", "gfx936", ARCH))
