"""A first download is verified before it has the file's name, and wrong bytes are not resumed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from scripts.common import errors
from scripts.upstream import fetch, index
from scripts.upstream.releases import Artifact

GOOD = b"the published bytes"
SDIST = Artifact("vllm", "9.9.9", "vllm-9.9.9.tar.gz", hashlib.sha256(GOOD).hexdigest(), len(GOOD))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GFX936_CACHE", str(tmp_path))
    return tmp_path


def arriving(monkeypatch: pytest.MonkeyPatch, data: bytes) -> list[bytes]:
    """What the index delivers; returns what was there before each download."""
    before: list[bytes] = []

    def download(artifact: Artifact, part: Path) -> None:
        before.append(part.read_bytes() if part.exists() else b"")
        part.write_bytes(data)

    monkeypatch.setattr(index, "download", download)
    return before


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if not p.name.endswith(".lock")}


@pytest.mark.parametrize("data", [b"x" * len(GOOD), GOOD[:-1]], ids=["other bytes", "fewer bytes"])
def test_wrong_bytes_are_refused_and_not_resumed(cache: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    before = arriving(monkeypatch, data)
    for _ in range(2):
        with pytest.raises(errors.DamagedDownload):
            fetch.fetch(SDIST)
        assert names(cache) == set()
    assert before == [b"", b""]


def test_the_right_bytes_get_the_files_name_and_are_not_fetched_twice(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = arriving(monkeypatch, GOOD)
    assert fetch.fetch(SDIST) == fetch.fetch(SDIST) == cache / SDIST.name
    assert (names(cache), (cache / SDIST.name).read_bytes(), len(before)) == ({SDIST.name}, GOOD, 1)


def test_a_part_that_was_left_is_handed_to_the_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / f"{SDIST.name}.part").write_bytes(GOOD[:5])
    before = arriving(monkeypatch, GOOD)
    fetch.fetch(SDIST)
    assert before == [GOOD[:5]]
