"""The wheel of the real tree: one version, upstream's metadata, every file, the same bytes twice, and clear refusals."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.parser import BytesParser
from pathlib import Path

import pytest

from scripts.cli import run
from scripts.common import errors
from scripts.common.git import open_repo
from scripts.common.overlay import overlay_module
from scripts.common.paths import ROOT, TREE
from scripts.series.worktree import read_lock
from scripts.upstream.releases import read_pin
from scripts.wheel import build, metadata
from scripts.wheel.sources import package_files, read_sources
from scripts.wheel.version import wheel_version
from tests.conftest import Checkout

VERSION = wheel_version(read_pin().version, read_pin().revision, "empty")


@pytest.fixture(scope="module", autouse=True)
def tree() -> Path:
    assert run(["apply"]) == 0
    return TREE


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build("empty", tmp_path_factory.mktemp("dist"))


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_same_tree_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert build.build("empty", tmp_path).read_bytes() == wheel.read_bytes()


def test_source_date_epoch_is_the_only_thing_that_moves_the_dates(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    other = build.build("empty", tmp_path)
    assert other.read_bytes() != wheel.read_bytes()
    assert members(other) == members(wheel)


def test_c40_file_name_metadata_module_and_manifest_say_one_version(wheel: Path) -> None:
    files = members(wheel)
    module: dict[str, object] = {}
    exec(files["vllm/_version.py"], module)
    manifest = overlay_module("manifest").parse(files[build.MANIFEST])
    said = {
        "file name": wheel.name.split("-")[1],
        "METADATA": BytesParser().parsebytes(files[f"vllm-{VERSION}.dist-info/METADATA"])["Version"],
        "vllm.__version__": module["__version__"],
        "manifest": manifest.version,
    }
    assert set(said.values()) == {VERSION}, said


def test_the_metadata_derived_for_upstreams_own_target_is_upstreams_own(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # PKG-INFO was made by upstream's setup.py for CUDA: an oracle that this project did not write.
    monkeypatch.setitem(metadata.REQUIREMENTS_FILE, "cuda", "cuda.txt")
    files = read_sources(open_repo(tree)).files
    assert metadata.metadata(files, read_pin().version, "cuda") == files["PKG-INFO"]


def test_every_file_of_the_package_is_in_the_wheel_whatever_its_suffix(wheel: Path, tree: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "vllm"], cwd=tree, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout.splitlines()
    packed = {name for name in members(wheel) if name.startswith("vllm/")}
    generated = {"vllm/_version.py", build.MANIFEST}
    assert packed - generated == set(listed) - generated
    assert "vllm/dcu/manifest.py" in packed


def test_nothing_of_a_build_or_of_a_test_run_is_packed() -> None:
    left = ["vllm/a.so", "vllm/__pycache__/a.pyc", "vllm/x/tests/t.py", "csrc/a.cpp", "vllm/_version.py"]
    assert package_files(dict.fromkeys([*left, "vllm/contest.py", "vllm/x/a.json"], b"")).keys() == {
        "vllm/contest.py",
        "vllm/x/a.json",
    }


def test_the_manifest_names_upstream_series_and_tree(wheel: Path) -> None:
    manifest = overlay_module("manifest").parse(members(wheel)[build.MANIFEST])
    names = [line for line in (ROOT / "patches/series").read_text().splitlines() if line and not line.startswith("#")]
    lock = read_lock()
    assert (manifest.upstream, manifest.upstream_sha256) == (read_pin().version, read_pin().sdist.sha256)
    assert [patch.name for patch in manifest.patches] == names
    assert (manifest.tree, manifest.head_commit, manifest.target) == (lock["tree"], lock["head"], "empty")


def test_record_holds_exactly_the_files_of_the_wheel(wheel: Path) -> None:
    files = members(wheel)
    rows = csv.reader(io.StringIO(files[f"vllm-{VERSION}.dist-info/RECORD"].decode()))
    assert [row[0] for row in rows] == list(files)


def test_pip_wheel_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", ".", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "TARGET": "empty"}, check=True, capture_output=True)
    (made,) = tmp_path.glob("*.whl")
    assert (made.name, made.read_bytes()) == (wheel.name, wheel.read_bytes())


def test_an_edit_in_the_tree_is_refused_and_not_packed(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "vllm"
    shutil.copytree(tree, copy, symlinks=True)
    assert build.checked_sources(copy)[0].tree == read_lock()["tree"]
    (copy / "vllm" / "new.py").write_text("")
    with pytest.raises(errors.DirtyTree, match=r"holds edits, first vllm/new\.py"):
        build.checked_sources(copy)


@pytest.mark.parametrize("place", ["overlay/vllm/dcu/new.py", "csrc/new.h", "patches/change-one.patch"])
def test_what_is_packed_is_what_was_applied(tiny: Checkout, add_patch: Callable[..., str], place: str) -> None:
    """Of a patch its prose alone is edited: the tree would be the same, and the manifest would name a patch that was never applied."""
    add_patch(tiny, "vllm/one.py", "line 7\n", "line seven\n", "change one")
    tiny.run("apply")
    file = tiny.root / place
    file.write_bytes(file.read_bytes().replace(b"Why: TODO", b"Why: another") if place.startswith("patches") else b"OTHER = 1\n")
    assert "patches/, overlay/ or csrc/ are not what build/vllm was made of" in tiny.run("build", "--target", "empty", code=12)
    assert not list((tiny.root / "dist").glob("*.whl"))


def test_a_tree_that_is_not_the_locked_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingInput, match=r"is not the tree that patches/series\.lock names"):
        build.checked_sources(tmp_path / "nothing")


def test_a_killed_run_leaves_the_previous_wheel_and_the_next_run_completes(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = build.build("empty", tmp_path).read_bytes()

    def killed(path: Path, *_: object) -> None:
        path.write_bytes(b"half a wheel")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build, "write_wheel", killed)
        with pytest.raises(KeyboardInterrupt):
            build.build("empty", tmp_path)
    assert [path.name for path in tmp_path.glob("*.whl") if not path.name.startswith(".")] == [wheel.name]
    assert (tmp_path / wheel.name).read_bytes() == old
    assert build.build("empty", tmp_path).read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == [wheel.name]


@pytest.mark.parametrize(
    ("target", "code", "sentence"),
    [
        ("gfx936", errors.UserError.exit_code, "TARGET='gfx936' is not a build target"),
        ("rocm", errors.CannotBuild.exit_code, "TARGET=rocm: dtk: none found"),
    ],
)
def test_a_target_that_cannot_be_built_is_refused_with_its_reason(
    target: str, code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)  # the tools' Python: it has no torch
    assert run(["build", "--target", target, "--into", str(tmp_path)]) == code
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_cpu_wheel_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "wrong.whl"
    wrong.write_bytes(b"PK")
    monkeypatch.setenv("CPU_WHEEL", str(wrong))
    monkeypatch.setenv("GFX936_CACHE", str(tmp_path / "cache"))
    assert run(["build", "--target", "cpu", "--into", str(tmp_path / "dist")]) == errors.DamagedDownload.exit_code
    assert "wrong.whl has 2 bytes, the pin says" in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()


def test_a_machine_without_pinned_libraries_is_told_so() -> None:
    with pytest.raises(errors.CannotBuild, match="no pinned CPU libraries for riscv64"):
        build.cpu_native(read_pin(), "riscv64")
