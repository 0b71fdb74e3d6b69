"""The bundle: unpacked on a machine without a network, it applies and builds; a damaged file in it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.common import errors
from scripts.upstream.releases import read_pin
from scripts.wheel import bundle
from tests.support import not_run

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "DIST", folder / "dist")
        (folder / "dist").mkdir()
        (folder / "dist" / "vllm-0-py3-none-any.whl").write_bytes(b"a finished wheel")
        try:
            return bundle.make_bundle(folder / "bundle.tar", [HERE])
        except errors.NoNetwork as error:
            not_run(f"a bundle is made where there is a network: {error.what}")


@pytest.fixture(scope="module")
def there(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("there")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder / "vllm-for-gfx936"


def run(there: Path, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A verb in the unpacked bundle, with every way out of the machine shut."""
    shut = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    home = there.parent / "home"
    home.mkdir(exist_ok=True)
    plain = {"PATH": os.environ["PATH"], "HOME": str(home), "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", **shut}
    argv = (sys._base_executable if hasattr(sys, "_base_executable") else sys.executable, "-m", "scripts", *argv)
    return subprocess.run(argv, cwd=there, env={**plain, **(env or {})}, capture_output=True, text=True, check=False, timeout=600)


def test_the_checksums_are_those_of_every_file(there: Path) -> None:
    assert subprocess.run(["sha256sum", "--quiet", "-c", bundle.SUMS], cwd=there, check=False).returncode == 0
    listed = {line.split("  ", 1)[1] for line in (there / bundle.SUMS).read_text().splitlines()}
    assert listed == {f.relative_to(there).as_posix() for f in there.rglob("*") if f.is_file()} - {bundle.SUMS}
    assert {f"offline/{read_pin().sdist.name}", "offline/bundle.json", "offline/dist/vllm-0-py3-none-any.whl", "Makefile"} <= listed


def test_a_changed_wheel_of_the_tools_is_refused(there: Path) -> None:
    wheel = next((there / "offline" / "wheels").glob("ninja-*.whl"))
    good = wheel.read_bytes()
    wheel.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    try:
        done = run(there, "apply")
        assert done.returncode == errors.CannotBuild.exit_code
        assert "hash" in done.stderr.lower()
    finally:
        wheel.write_bytes(good)


def test_without_a_network_the_unpacked_bundle_applies_and_builds(there: Path) -> None:
    doctor = run(there, "doctor", "--target", "empty")
    assert "not needed: all that is fetched is here" in doctor.stdout
    assert doctor.returncode == 0
    done = run(there, "apply")
    assert done.returncode == 0, done.stderr
    assert run(there, "build", "--target", "empty").returncode == 0
    assert len(list((there / "dist").glob("*.whl"))) == 1


def test_a_changed_sdist_is_refused(there: Path) -> None:
    sdist = there / "offline" / read_pin().sdist.name
    good = sdist.read_bytes()
    sdist.write_bytes(good[:-1])
    try:
        done = run(there, "fetch", env={"GFX936_CACHE": str(there.parent / "other-cache")})
        assert done.returncode == errors.DamagedDownload.exit_code
        assert "the pin says" in done.stderr
    finally:
        sdist.write_bytes(good)


def test_without_the_offline_folder_the_same_machine_can_not(there: Path) -> None:
    """The control: it was the bundle, not a network that happened to be open."""
    (there / "offline").rename(there / "gone")
    try:
        assert run(there, "fetch", env={"GFX936_CACHE": str(there.parent / "empty-cache")}).returncode == errors.NoNetwork.exit_code
    finally:
        (there / "gone").rename(there / "offline")


LOCKED = """\
# made by a tool
a==1 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
b==2 ; python_full_version < '3.11' \\
    --hash=sha256:cc
c==3 ; python_full_version >= '3.11.5' --hash=sha256:dd
"""


@pytest.mark.parametrize(
    ("python", "names"), [("3.10.12", ["a==1", "b==2"]), ("3.11.0", ["a==1"]), ("3.11.99", ["a==1", "c==3"]), ("3.12.0", ["a==1", "c==3"])]
)
def test_markers_are_read_for_the_python_of_the_other_machine(python: str, names: list[str]) -> None:
    lines = bundle.requirement_lines(LOCKED, python)
    assert [line.split()[0] for line in lines] == names
    assert all("--hash=sha256:" in line and ";" not in line for line in lines)
