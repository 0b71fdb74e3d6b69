"""The soak in its short form, a minute; GFX936_SOAK_SECONDS=1800 is the full one."""

from __future__ import annotations

import os

import pytest

from scripts.rehearsal.soak import Soaked, soak, wrong
from scripts.serving.ready import ready_python
from tests.support import not_run


@pytest.fixture(scope="module")
def seen() -> Soaked:
    return soak(float(os.environ.get("GFX936_SOAK_SECONDS", "60")), ready_python())


def test_nothing_is_lost_and_every_count_is_exact(seen: Soaked) -> None:
    assert wrong(seen) == [], seen


def test_the_disk_was_really_full(seen: Soaked) -> None:
    if "MiB" not in seen.disk:
        not_run(seen.disk.removeprefix("not run: "))
    assert seen.done_to_it["disk filled"] >= 2
