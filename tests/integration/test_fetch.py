"""A wrong, truncated or hostile sdist is refused by name and leaves nothing behind."""

from __future__ import annotations

import shutil
import tarfile

import pytest

from tests.conftest import TINY, Checkout, make_sdist, pin_to


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.fixture
def fresh(tiny: Checkout) -> Checkout:
    shutil.rmtree(tiny.root / "build")
    return tiny


def given(checkout: Checkout):
    from pathlib import Path

    return Path(checkout.env["UPSTREAM_SDIST"])


def test_a_truncated_sdist_is_refused_by_size(fresh):
    sdist = given(fresh)
    sdist.write_bytes(sdist.read_bytes()[:-10])
    assert "bytes, the pin says" in fresh.run("apply", code=5)
    assert not fresh.tree.exists()


def test_one_changed_byte_is_refused_by_sha256(fresh):
    sdist = given(fresh)
    data = bytearray(sdist.read_bytes())
    data[100] ^= 1
    sdist.write_bytes(data)
    assert "has sha256" in fresh.run("apply", code=5)
    assert not fresh.tree.exists()


def test_a_damaged_cache_is_refused_not_trusted(fresh, tmp_path):
    fresh.run("fetch")
    cached = tmp_path / "cache" / "vllm-0.18.1.tar.gz"
    data = bytearray(cached.read_bytes())
    data[100] ^= 1
    cached.write_bytes(data)
    assert "has sha256" in fresh.run("apply", code=5, env={"UPSTREAM_SDIST": ""})


def test_a_missing_file_is_named(fresh):
    assert "is not a file" in fresh.run("apply", code=12, env={"UPSTREAM_SDIST": "/nowhere/x.tar.gz"})


TOP = "vllm-0.18.1"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (member(f"{TOP}/../x"), "leaves its folder"),
        (member("/tmp/x"), "leaves its folder"),
        (member("other/x"), f"is outside {TOP}/"),
        (member(f"{TOP}/dev", tarfile.CHRTYPE), "is not a plain file"),
        (member(f"{TOP}/fifo", tarfile.FIFOTYPE), "is not a plain file"),
        (member(f"{TOP}/hard", tarfile.LNKTYPE, "/etc/passwd"), "is not a plain file"),
        (member(f"{TOP}/soft", tarfile.SYMTYPE, "../../etc/passwd"), "links outside"),
        (member(f"{TOP}/soft", tarfile.SYMTYPE, "/etc/passwd"), "links outside"),
        (member(f"{TOP}/.git/config"), "git folder"),
    ],
)
def test_a_hostile_member_is_refused_and_nothing_is_unpacked(fresh, bad, says, tmp_path):
    sdist = make_sdist(given(fresh), TINY, [bad])
    pin_to(fresh.root, sdist)
    said = fresh.run("apply", code=6)
    assert says in said
    assert bad.name in said
    assert not fresh.tree.exists()
    assert not (tmp_path / "x").exists()


def test_writing_through_a_symbolic_link_is_refused(fresh):
    links = [member(f"{TOP}/inner", tarfile.SYMTYPE, "vllm"), member(f"{TOP}/inner/one.py")]
    pin_to(fresh.root, make_sdist(given(fresh), TINY, links))
    assert "through a symbolic link" in fresh.run("apply", code=6)


def test_something_that_is_no_archive_is_refused(fresh):
    given(fresh).write_bytes(b"not a tar file at all")
    pin_to(fresh.root, given(fresh))
    assert "cannot be unpacked" in fresh.run("apply", code=5)
