"""A first download is verified before it has the file's name, and wrong bytes are not resumed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.common import errors, paths
from scripts.machine import doctor
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


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose user's cache folder, with the file in it, cannot be written; root here may write everywhere."""
    monkeypatch.delenv("GFX936_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    mine = tmp_path / "home" / "vllm-for-gfx936"
    mine.mkdir(parents=True)
    (mine / SDIST.name).write_bytes(GOOD)
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: real(path, mode) and not (mode == os.W_OK and Path(path) == mine))
    return mine / SDIST.name


def test_what_a_cache_that_cannot_be_written_holds_is_not_fetched_again(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(paths.kept(SDIST.name)) == [read_only]
    before = arriving(monkeypatch, GOOD)
    assert fetch.fetch(SDIST) == paths.BUILD / "cache" / SDIST.name
    assert before == []
    monkeypatch.setenv("GFX936_CACHE", str(paths.BUILD / "other"))
    assert list(paths.kept(SDIST.name)) == [], "a cache that was chosen is the only one"


def test_a_damaged_one_there_does_not_stop_a_download(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_only.write_bytes(b"x" * len(GOOD))
    assert arriving(monkeypatch, GOOD) == []
    assert fetch.fetch(SDIST).read_bytes() == GOOD


def test_the_doctor_sees_it_too(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPSTREAM_SDIST", raising=False)
    monkeypatch.setattr(doctor, "read_pin", lambda: SimpleNamespace(sdist=SDIST, cpu_wheels={}))
    assert doctor._sdist("cpu").found == f"{SDIST.name} is here"
    read_only.unlink()
    assert "is not in the cache" in doctor._sdist("cpu").found
