"""What of the caller's environment reaches a child: where the index is and how it is reached passes, where results go does not."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.common import childenv, errors, tools
from scripts.common.paths import ROOT
from scripts.wheel.pack import Entry, write_wheel

PIP_CONF = """[global]
proxy = http://proxy.example:3128
trusted-host = mirror.example
    other.example:8443
user = true
constraint = /nowhere/constraints.txt
index-url = https://mirror.example/global/
[install]
index-url = https://mirror.example/install/
target = /nowhere/target
"""
HOSTILE = {
    "PIP_USER": "1", "PIP_TARGET": "/nowhere", "PIP_PREFIX": "/nowhere", "PIP_CONSTRAINT": "/nowhere/c.txt", "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_DRY_RUN": "1", "PIP_REPORT": "/nowhere", "PIP_NO_DEPS": "1", "PYTHONUSERBASE": "/nowhere", "PYTHONPATH": "/nowhere",
}  # fmt: skip


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "pip.conf").write_text(PIP_CONF)
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    return {**plain, **HOSTILE, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_TIMEOUT": "7"}


def test_of_pips_settings_the_index_and_the_way_to_it_pass_and_nothing_else(environ: dict[str, str]) -> None:
    found = childenv.for_pip(environ)
    assert found["PIP_INDEX_URL"] == "https://mirror.example/install/"
    assert (found["PIP_PROXY"], found["PIP_TIMEOUT"]) == ("http://proxy.example:3128", "7")
    assert found["PIP_TRUSTED_HOST"].split() == ["mirror.example", "other.example:8443"]
    assert found["PIP_CONFIG_FILE"] == os.devnull
    assert not set(HOSTILE) & set(found)


def test_a_variable_wins_over_the_files_as_it_does_in_pip(environ: dict[str, str]) -> None:
    assert childenv.for_pip({**environ, "PIP_INDEX_URL": "https://mine.example/"})["PIP_INDEX_URL"] == "https://mine.example/"


def test_uv_goes_the_same_way(environ: dict[str, str]) -> None:
    found, options = childenv.for_uv({**environ, "UV_INDEX_URL": "https://other.example/", "UV_TARGET": "/nowhere"})
    assert options == [
        "--allow-insecure-host", "mirror.example", "--allow-insecure-host", "other.example:8443",
        "--default-index", "https://mirror.example/install/",
    ]  # fmt: skip
    assert (found["HTTPS_PROXY"], found["UV_HTTP_TIMEOUT"], found["UV_NO_CONFIG"]) == ("http://proxy.example:3128", "7", "1")
    assert not {"UV_INDEX_URL", "UV_TARGET", *HOSTILE} & set(found)


def test_a_configuration_that_pip_cannot_read_is_named(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("nonsense\n")
    with pytest.raises(errors.UserError, match="pip's configuration cannot be read"):
        childenv.pip_settings(environ)


def test_a_build_gets_neither_other_places_for_its_results_nor_other_words() -> None:
    hostile = {"DESTDIR": "/x", "NINJA_STATUS": "%p ", "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de", "CLICOLOR_FORCE": "1", "PYTHONHOME": "/x"}
    kept = {"PATH": "/bin", "CXXFLAGS": "-O1", "ROCM_PATH": "/opt/dtk", "LD_LIBRARY_PATH": "/opt/dtk/lib"}
    assert childenv.for_build({**hostile, **kept}) == {**kept, "LC_ALL": "C"}


def strict_readers(source: str) -> list[int]:
    """Lines of calls that read another program's words and break on a byte of another encoding than the locale's."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            if isinstance(text := named.get("text"), ast.Constant) and text.value is True and "errors" not in named:
                found.append(node.lineno)
    return found


def test_no_childs_words_in_another_encoding_end_in_a_traceback() -> None:
    assert strict_readers("subprocess.run(x, text=True)") == [1]
    found = {str(path): strict_readers(path.read_text(encoding="utf-8")) for path in (ROOT / "scripts").rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("given", ["venv/bin/python", "./venv/bin/python", "../{here}/venv/bin/python"])
def test_a_path_is_absolute_on_entry_and_its_link_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    environ = {"PYTHON": given.format(here=tmp_path.name), "DTK_ENV": "env.sh", "PATH": ""}
    childenv.absolute(environ)
    assert Path(environ["PYTHON"]).is_absolute()
    assert Path(environ["PYTHON"]).parent.samefile(python.parent)
    assert Path(environ["PYTHON"]).is_symlink()
    assert environ["DTK_ENV"] == str(tmp_path / "env.sh")


def test_a_bare_name_is_looked_up_and_an_unknown_one_left_to_be_named(tmp_path: Path) -> None:
    program = tmp_path / "python3.10"
    program.symlink_to(sys.executable)
    environ = {"PYTHON": "python3.10", "HIPCXX": "clang++", "PATH": str(tmp_path)}
    childenv.absolute(environ)
    assert environ == {"PYTHON": str(program), "HIPCXX": "clang++", "PATH": str(tmp_path)}


# The tools' environment, made for real of one tiny wheel, in a folder whose name has a blank and another alphabet.


@pytest.fixture
def tiny_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "a b 工具"
    wheel = root / "offline" / "wheels" / "tiny-1-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    text = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1\n"
    said = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    entries = [Entry("tiny.py", b""), Entry("tiny-1.dist-info/METADATA", text), Entry("tiny-1.dist-info/WHEEL", said)]
    write_wheel(wheel, "tiny-1.dist-info", entries, 1_600_000_000)
    (root / "tools.txt").write_text(f"tiny==1 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    for name, value in {
        "REQUIREMENTS": root / "tools.txt", "OFFLINE": root / "offline", "BUILD": root / "build", "_NEEDED": ("tiny",),
        "FOLDER": root / "build" / "env" / "tools-first",
    }.items():  # fmt: skip
        monkeypatch.setattr(tools, name, value)
    monkeypatch.delenv("TOOLS_PYTHON", raising=False)
    return root


def test_the_tools_environment_is_made_under_hostile_settings_of_pip(tiny_tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    python = tools.tools_python()
    done = subprocess.run([python, "-I", "-c", "import tiny; print(tiny.__file__)"], capture_output=True, text=True, check=True)
    assert str(tools.FOLDER) in done.stdout
    assert (tiny_tools / "build" / "env" / "tools").resolve() == tools.FOLDER
    assert tools.made()
    # Another Python has another one, and coming back nothing is made anew.
    first, stamp = tools.FOLDER, (tools.FOLDER / "stamp").stat().st_mtime_ns
    monkeypatch.setattr(tools, "FOLDER", first.with_name("tools-second"))
    assert not tools.made()
    monkeypatch.setattr(tools, "FOLDER", first)
    assert tools.tools_python() == python
    assert (first / "stamp").stat().st_mtime_ns == stamp


def test_two_pythons_have_two_folders() -> None:
    code = "import sys; sys.base_prefix = sys.argv[1]; from scripts.common import tools; print(tools.FOLDER)"
    said = {
        subprocess.run([sys.executable, "-c", code, prefix], capture_output=True, text=True, check=True).stdout
        for prefix in (sys.base_prefix, "/other")
    }
    assert len(said) == 2


def test_what_was_not_imported_from_is_not_stamped(tiny_tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [[sys.executable, "-m", "venv", "--without-pip", str(tools.FOLDER)], ["true"]]
    monkeypatch.setattr(tools, "ways", lambda: made)
    with pytest.raises(errors.CannotBuild, match="No module named 'tiny'"):
        tools.tools_python()
    assert not tools.made()


def test_without_ensurepip_uv_makes_it_and_without_either_it_is_said(
    tiny_tools: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = tools.importlib.util.find_spec
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else find(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.CannotBuild, match="has no ensurepip module, and there is no uv on PATH") as caught:
        tools.tools_python()
    assert "python3" in caught.value.do
    (tmp_path / "uv").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m uv "$@"\n')
    (tmp_path / "uv").chmod(0o755)
    assert tools.tools_python() == tools.FOLDER / "bin" / "python"
    assert tools.made()


def test_a_tools_python_that_is_no_file_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLS_PYTHON", "/nowhere/python")
    with pytest.raises(errors.MissingInput, match="TOOLS_PYTHON=/nowhere/python is not a file"):
        tools.tools_python()
