"""Upstream's kernel text and compilers for the tests that execute the kernel without a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.audit import toolchain as public
from scripts.common import errors
from tests.integration import upstream
from tests.support import not_run

SKINNY = "csrc/rocm/skinny_gemms.cu"


@pytest.fixture(scope="session")
def skinny() -> str:
    """The text of the pinned release's skinny_gemms.cu."""
    return upstream.tree("0.18.1").text(SKINNY)


@pytest.fixture(scope="session")
def toolchain() -> Any:
    """The public AMDGPU toolchain, unpacked privately, or `not run`."""
    try:
        return public.ensure()
    except (errors.NoNetwork, errors.MissingInput) as error:
        not_run(f"no AMDGPU toolchain: {error.what}")


@pytest.fixture(scope="session")
def watched(request: pytest.FixtureRequest) -> Callable[..., Path]:
    """`watched(text, kind, wave=64)` builds the program under a sanitizer; MemorySanitizer needs the toolchain's clang."""
    from scripts.rehearsal.wave import build

    def make(text: str, kind: str, wave: int = 64) -> Path:
        clang = request.getfixturevalue("toolchain").tool("clang++") if kind == "memory" else None
        return build.build(text, kind=kind, wave=wave, clang=clang)

    return make
