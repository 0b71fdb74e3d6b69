"""The build manifest: what was built is what runs, or the difference is named."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.common.overlay import overlay_module

m = overlay_module("manifest")
FILES = {"__init__.py": b"", "dcu/manifest.py": b"x = 1\n", "_C.abi3.so": b"\x7fELF"}
MANIFEST = m.Manifest(
    version="0.18.1+gfx936.1.cpu",
    target="cpu",
    upstream="0.18.1",
    upstream_sha256="0" * 64,
    patches=(m.Patch("a.patch", "1" * 64),),
    tree="2" * 40,
    base_commit="3" * 40,
    head_commit="4" * 40,
    archs=(),
    toolchain={"native": "some.whl"},
    files={name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()},
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages with our build installed."""
    return install(tmp_path / "site", MANIFEST.version)


def install(folder: Path, version: str, *, ours: bool = True) -> Path:
    for name, data in FILES.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if ours:
        (folder / "vllm" / "dcu" / m.FILE_NAME).write_bytes(MANIFEST.to_json())
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n")
    return folder


def test_what_is_wrong_is_said_and_never_called_whole(site: Path) -> None:
    assert m.as_text(m.examine(site / "vllm", [str(site)])).endswith("whole: every file is the one that was built")
    (site / "vllm/__init__.py").write_bytes(b"edited")
    text = m.as_text(m.examine(site / "vllm", [str(site)]))
    assert text.endswith(f"PROBLEM: {site / 'vllm/__init__.py'} is not the file that was built")


def test_a_manifest_survives_writing_and_reading() -> None:
    assert m.parse(MANIFEST.to_json()) == MANIFEST
    assert m.parse(MANIFEST.to_json()).to_json() == MANIFEST.to_json()


def test_an_untouched_install_has_no_problem(site: Path) -> None:
    verdict = m.examine(site / "vllm", [str(site)])
    assert (verdict.problems, verdict.notes, verdict.manifest) == ((), (), MANIFEST)


@pytest.mark.parametrize("name", sorted(FILES))
def test_an_edited_file_is_named(site: Path, name: str) -> None:
    (site / "vllm" / name).write_bytes(b"edited")
    assert m.examine(site / "vllm", [str(site)]).problems == (f"{site / 'vllm' / name} is not the file that was built",)


def test_a_missing_file_is_named(site: Path) -> None:
    (site / "vllm/_C.abi3.so").unlink()
    assert m.examine(site / "vllm", [str(site)]).problems == (f"{site / 'vllm/_C.abi3.so'} is missing",)


@pytest.mark.parametrize("name", ["extra.py", "dcu/_rocm_C.abi3.so"])
def test_code_that_the_build_does_not_know_is_named(site: Path, name: str) -> None:
    (site / "vllm" / name).write_bytes(b"")
    assert m.examine(site / "vllm", [str(site)]).problems == (f"{site / 'vllm' / name} does not belong to the build",)


def test_compiled_bytecode_is_no_foreign_code(site: Path) -> None:
    (site / "vllm/__pycache__").mkdir()
    (site / "vllm/__pycache__/__init__.cpython-311.pyc").write_bytes(b"")
    assert m.examine(site / "vllm", [str(site)]).problems == ()


def test_a_stock_vllm_that_runs_although_ours_is_installed_is_named(site: Path, tmp_path: Path) -> None:
    stock = install(tmp_path / "stock", "0.18.1", ours=False)
    verdict = m.examine(stock / "vllm", [str(stock), str(site)])
    assert "has no build manifest" in verdict.problems[0]
    assert verdict.package == (stock / "vllm").resolve()
    assert verdict.notes == (f"another vllm is on the search path: {site / 'vllm'}",)


def test_code_of_one_copy_under_the_metadata_of_another_is_a_mismatch(site: Path, tmp_path: Path) -> None:
    first = tmp_path / "first" / "vllm-0.18.1.dist-info"
    first.mkdir(parents=True)
    (first / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 0.18.1\n")
    problems = m.examine(site / "vllm", [str(first.parent), str(site)]).problems
    assert problems == (f"the installed metadata says vllm 0.18.1, the running code is {MANIFEST.version}",)


def test_a_package_that_was_copied_without_metadata_is_a_problem(site: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (site / "vllm").rename(tmp_path / "bare" / "vllm")
    problems = m.examine(tmp_path / "bare" / "vllm", [str(tmp_path / "bare")]).problems
    assert [problem for problem in problems if "no installed metadata names vllm" in problem] == list(problems)
    assert problems


def test_the_first_copy_on_the_path_is_the_one_that_is_imported(site: Path, tmp_path: Path) -> None:
    stock = install(tmp_path / "stock", "0.18.1", ours=False)
    assert m.copies([str(tmp_path), str(stock), str(site), str(stock)]) == [stock / "vllm", site / "vllm"]
    (tmp_path / "vllm").symlink_to("vllm")  # a link to itself
    assert m.copies([str(tmp_path), str(stock)]) == [stock / "vllm"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged"),
        (b"[]", "damaged"),
        (b"{}", "damaged"),
        (b'{"schema": 2}', "field 'schema': 2 is not one of 1"),
        (MANIFEST.to_json().replace(b'"version": "0.18.1+gfx936.1.cpu"', b'"version": 1'), "field 'version': 1 is not a text"),
        (MANIFEST.to_json().replace(b'"tree"', b'"three"'), "field 'three': is no field here"),
        (MANIFEST.to_json().replace(b'"dcu/manifest.py"', b'"../../etc/passwd"'), "not a path inside the package"),
        (MANIFEST.to_json().replace(b'"target"', b'"target": "rocm", "target"'), "field 'target': stands twice"),
        (replace(MANIFEST, patches=()).to_json().replace(b'"patches": []', b'"patches": [1]'), "damaged"),
    ],
)
def test_a_damaged_manifest_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(m.ManifestError, match=message):
        m.parse(data)
