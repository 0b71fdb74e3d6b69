"""The serving environment: locked by content, made once, and every refusal says what to do."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from scripts.common import errors
from scripts.common.paths import ROOT
from scripts.runtime import environment
from scripts.serving import ready


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build folder of its own, and uv and apt that only write down what they are asked."""
    monkeypatch.delenv("RUNTIME_PYTHON", raising=False)
    monkeypatch.setattr(environment, "BUILD", tmp_path)
    monkeypatch.setattr(environment, "SERVE", tmp_path / "env" / "serve")
    return tmp_path


@pytest.fixture
def calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    made: list[tuple[str, ...]] = []

    def uv(*argv: str, from_index: bool = False) -> None:
        made.append(argv)
        if argv[0] == "venv":
            (environment.SERVE / "bin").mkdir(parents=True)

    monkeypatch.setattr(environment, "_uv", uv)
    monkeypatch.setattr(environment, "_imports", lambda python: None)
    return made


def test_it_is_made_once_and_left_alone_afterwards(calls: list[tuple[str, ...]]) -> None:
    environment.ensure_serving()
    assert [argv[0] for argv in calls] == ["venv", "pip", "pip"]
    environment.ensure_serving()
    assert len(calls) == 3


def test_everything_is_installed_by_hash_and_nothing_is_resolved(calls: list[tuple[str, ...]]) -> None:
    environment.ensure_serving()
    for argv in calls[1:]:
        assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(argv)


def test_a_changed_lock_makes_it_anew(calls: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.ensure_serving()
    other = tmp_path / "other.txt"
    other.write_text("x==1")
    monkeypatch.setattr(environment, "LOCKED", (other,))
    environment.ensure_serving()
    assert [argv[0] for argv in calls] == ["venv", "pip", "pip", "venv", "pip"]


def test_a_run_killed_while_installing_is_not_taken_for_a_whole_one(calls: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = environment._uv

    def killed(*argv: str, from_index: bool = False) -> None:
        whole(*argv)
        if argv[0] == "pip":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, "_uv", killed)
        with pytest.raises(KeyboardInterrupt):
            environment.ensure_serving()
    environment.ensure_serving()
    assert [argv[0] for argv in calls] == ["venv", "pip", "venv", "pip", "pip"]


def test_a_run_killed_while_removing_the_old_one_is_not_taken_for_a_whole_one(
    calls: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.ensure_serving()
    other = tmp_path / "other.txt"
    other.write_text("x==1")

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, "LOCKED", (other,))
        patch.setattr(environment, "remove_tree", killed)
        with pytest.raises(KeyboardInterrupt):
            environment.ensure_serving()
    environment.ensure_serving()
    assert [argv[0] for argv in calls] == ["venv", "pip", "pip"] * 2, "back to the old lock: made anew all the same"


def test_a_running_server_keeps_installs_out_but_not_a_look(calls: list[tuple[str, ...]], tmp_path: Path) -> None:
    wheel = tmp_path / "vllm.whl"
    wheel.write_bytes(b"one")
    environment.install_wheel(wheel)
    with environment.in_use("a server"):
        assert environment.install_wheel(wheel) == environment.runtime_python()


def test_a_wheel_is_installed_again_only_when_its_bytes_change(calls: list[tuple[str, ...]], tmp_path: Path) -> None:
    wheel = tmp_path / "vllm.whl"
    for data, installs in ((b"one", 1), (b"one", 1), (b"two", 2)):
        wheel.write_bytes(data)
        environment.install_wheel(wheel)
        assert sum(str(wheel) in argv for argv in calls) == installs


def test_a_given_interpreter_is_used_and_nothing_is_installed(calls: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_PYTHON", "/somewhere/python")
    assert ready.ready_python() == environment.ensure_serving() == Path("/somewhere/python")
    assert calls == []


def test_a_python_without_locked_packages_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PYTHONS", ((2, 7),))
    with pytest.raises(errors.CannotBuild, match=r"(?s)locked for 2\.7.*RUNTIME_PYTHON"):
        environment.ensure_serving()


@pytest.mark.parametrize("name", ["libtcmalloc_minimal.so.4", "libc.so.6"])
def test_tcmalloc_given_by_hand_must_be_a_tcmalloc_that_is_there(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCMALLOC", str(folder / name))
    if "tcmalloc" not in name:
        (folder / name).touch()
    with pytest.raises(errors.UserError, match="is not a libtcmalloc file"):
        environment.preload(folder / "bin" / "python")


def test_a_missing_openmp_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.platform, "machine", lambda: "x86_64")
    library = folder / "libtcmalloc.so.4"
    library.touch()
    monkeypatch.setenv("TCMALLOC", str(library))
    with pytest.raises(errors.MissingInput, match=r"libiomp5\.so is missing"):
        environment.preload(folder / "bin" / "python")
    (folder / "lib").mkdir()
    (folder / "lib" / "libiomp5.so").touch()
    assert environment.preload(folder / "bin" / "python") == f"{library}:{folder / 'lib' / 'libiomp5.so'}"


def test_without_tcmalloc_and_apt_the_sentence_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TCMALLOC", raising=False)
    monkeypatch.setattr(environment, "_candidates", lambda private: iter(()))
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    with pytest.raises(errors.MissingInput, match=r"(?s)apt-get is not here.*install libtcmalloc-minimal4"):
        environment.preload(Path(sys.executable))


@pytest.mark.parametrize("name", ["serve", "runtime-tests"])
def test_the_locks_hold_names_versions_and_hashes_and_no_address(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    for block in re.split(r"\n(?=\S)", text.strip()):
        head, *hashes = block.split(" \\\n")
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; .*)?", head), head
        assert hashes
        assert all(re.fullmatch(r"\s+--hash=sha256:[0-9a-f]{64}", line) for line in hashes)


def test_the_lock_of_the_serving_environment_holds_what_its_list_names() -> None:
    listed = (ROOT / "requirements" / "serve.in").read_text().split()
    locked = re.findall(r"(?m)^(\S+==\S+)", (ROOT / "requirements" / "serve.txt").read_text())
    assert sorted(locked) == sorted(listed)
    assert "torch==2.10.0" in locked
