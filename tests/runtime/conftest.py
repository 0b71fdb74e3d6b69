"""Fixtures of the tests that run in the serving interpreter, with the patched wheel installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import vllm  # noqa: F401  the installed one, before a tool puts the overlay's files in its place
from vllm.dcu.device.footing import RESTS_ON

from scripts.rehearsal.scenarios import Zygote, link_tree, own_copy, zygote
from tests.runtime.platform_scenarios import Ask, installed_package


@pytest.fixture(scope="session")
def runner() -> Iterator[Zygote]:
    """One zygote for the whole run: torch is imported once."""
    with zygote(sys.executable) as made:
        yield made


@pytest.fixture(scope="session")
def gpu_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed package as a GPU build, for sys.path."""
    return link_tree(installed_package(), tmp_path_factory.mktemp("gpu-build") / "tree")


@pytest.fixture
def ask(runner: Zygote, gpu_tree: Path, tmp_path: Path) -> Ask:
    """Ask a process of the installed vLLM."""
    return Ask(runner, gpu_tree, tmp_path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The installed package as a GPU build; the files that a decision rests on, and one more, may be written."""
    made = link_tree(installed_package(), tmp_path / "site")
    for name in (*RESTS_ON, "v1/engine/core.py"):
        own_copy(made, name)
    return made


@pytest.fixture
def there(runner: Zygote, tree: Path, tmp_path: Path) -> Ask:
    (tmp_path / "asked").mkdir()
    return Ask(runner, tree, tmp_path / "asked")
