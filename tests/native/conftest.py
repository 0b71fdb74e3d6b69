"""Upstream's kernel text and compilers for the tests that execute the kernel without a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.audit import toolchain as public
from scripts.common import errors
from scripts.rehearsal.wave import build, host_llmm1
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
def clang(request: pytest.FixtureRequest) -> Path | None:
    """The toolchain's clang++, which builds and runs the host kernel in two thirds of g++'s time; None: what the machine has."""
    try:
        return Path(request.getfixturevalue("toolchain").tool("clang++"))
    except pytest.skip.Exception:
        return None


@pytest.fixture(scope="session")
def hosted(skinny: str, clang: Path | None) -> Callable[..., host_llmm1.Raw]:
    """`hosted(wave=64, believed=None, text=upstream's)` is LLMM1 on the host."""

    def load(wave: int = 64, believed: int | None = None, text: str = skinny) -> host_llmm1.Raw:
        return host_llmm1.load_raw("", wave, believed=believed, text=text, clang=clang)

    return load


@pytest.fixture(scope="session")
def wave64(hosted: Callable[..., host_llmm1.Raw]) -> host_llmm1.Raw:
    return hosted()


@pytest.fixture(scope="session")
def watched(request: pytest.FixtureRequest, clang: Path | None) -> Callable[..., Path]:
    """`watched(text, kind, wave=64)` builds the program under a sanitizer; MemorySanitizer needs the toolchain's clang."""

    def make(text: str, kind: str, wave: int = 64) -> Path:
        if kind == "memory":
            request.getfixturevalue("toolchain")
        return build.build(text, kind=kind, wave=wave, clang=clang)

    return make
