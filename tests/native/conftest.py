"""Upstream's kernel text and compilers for the tests that execute the kernel without a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration import upstream
from tests.support import not_run

SKINNY = "csrc/rocm/skinny_gemms.cu"


@pytest.fixture(scope="session")
def skinny() -> str:
    """The text of the pinned release's skinny_gemms.cu."""
    return upstream.tree("0.18.1").text(SKINNY)


@pytest.fixture(scope="session")
def clang() -> Path | None:
    """clang++ where there is one: MemorySanitizer needs it, everything else can do with g++."""
    from tests.native.wave import build

    given = os.environ.get("CLANGXX")
    found = given or build.compiler_for("memory")
    return Path(found) if found else None


@pytest.fixture(scope="session")
def watched(clang: Path | None) -> Callable[..., Path]:
    """`watched(text, kind, wave=64)` builds the program under a sanitizer, or says `not run`."""
    from tests.native.wave import build

    def make(text: str, kind: str, wave: int = 64) -> Path:
        if kind == "memory" and clang is None:
            not_run("MemorySanitizer exists in clang only, and there is no clang++ here")
        return build.build(text, kind=kind, wave=wave, clang=clang if kind == "memory" else None)

    return make
