"""Which packages the private toolchain takes, and that a version outside the stated range is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scripts.audit.toolchain import PACKAGES, Package, choose, ensure, open_toolchain
from scripts.common import errors
from tests.support import not_run

HIP = next(package for package in PACKAGES if package.name == "libamdhip64-dev")


@pytest.fixture(autouse=True)
def _dpkg() -> None:
    if shutil.which("dpkg") is None:
        not_run("no dpkg to compare versions with")


@pytest.mark.parametrize(
    ("offers", "taken"),
    [
        ([("6.4.3-5", "forky"), ("6.4.3-5", "sid"), ("5.7.1-6", "trixie")], "6.4.3-5"),
        ([("7.1.0-1", "forky"), ("6.4.3-5", "sid")], "6.4.3-5"),
        ([("6.4.1-1", "forky"), ("6.4.10-1", "forky"), ("6.4.3-5", "forky")], "6.4.10-1"),
        ([("5.7.1-6", "trixie"), ("5.7.1-6", "forky")], None),
        ([("7.0.0~rc1-1", "sid")], None),
        ([("6.4.3-5", "experimental")], None),
        ([], None),
    ],
)
def test_the_newest_version_within_the_range_is_taken(offers: list[tuple[str, str]], taken: str | None) -> None:
    assert choose(offers, HIP) == taken


def test_a_pinned_package_takes_nothing_newer() -> None:
    clang = next(package for package in PACKAGES if package.name == "clang-19")
    assert choose([("1:19.1.7-3~deb12u1", "bookworm"), ("1:20.1.0-1", "bookworm")], clang) == "1:19.1.7-3~deb12u1"
    assert choose([("1:20.1.0-1", "bookworm")], clang) is None


def test_a_folder_that_lacks_a_package_is_refused_with_the_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFX936_DEBS", str(tmp_path / "debs"))
    monkeypatch.setenv("GFX936_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GFX936_TOOLCHAIN", raising=False)
    (tmp_path / "debs").mkdir()
    with pytest.raises(errors.MissingInput, match=r"no clang-19 with 1:19\.1\.7"):
        ensure()
    assert list((tmp_path / "cache" / "toolchain").glob("*/*")) == [], "nothing half made is left"


@pytest.mark.parametrize("record", [None, "{", "[]", json.dumps({"versions": {}})])
def test_a_folder_that_is_no_toolchain_is_refused(tmp_path: Path, record: str | None) -> None:
    if record is not None:
        (tmp_path / "toolchain.json").write_text(record)
    with pytest.raises(errors.MissingInput, match="is not a toolchain"):
        open_toolchain(tmp_path)


def test_a_package_names_its_range_and_suites() -> None:
    assert {package.root for package in PACKAGES} == {"llvm", "rocm"}
    assert Package("libamdhip64-dev", ("forky", "sid"), "6.4", "7~", "rocm") == HIP
