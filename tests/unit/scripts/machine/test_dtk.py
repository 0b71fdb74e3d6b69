"""The DTK's environment is taken without trusting its env.sh, and its compiler is judged by what it makes."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from scripts.common import errors
from scripts.machine import dtk, envsh
from tests.machine import env_sh, fake_toolchain, program

BASE = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


def test_an_env_sh_that_prints_reads_unset_variables_and_ends_non_zero_is_taken(tmp_path: Path) -> None:
    env, status = envsh.source(env_sh(tmp_path), BASE)
    assert status == 1
    assert env["ROCM_PATH"] == str(tmp_path)
    assert env["LD_LIBRARY_PATH"] == f"{tmp_path}/lib:"
    assert env["HOME"] == "/nonexistent"


@pytest.mark.parametrize(
    "ending",
    [
        "set -a", "return 0", "exec 1>/dev/null", "trap 'exit 9' EXIT", "trap 'kill -9 $$' EXIT", "sleep 300 &", "set -x; set +x",
        "(trap '' TERM HUP; sleep 300) & disown",
    ],
)  # fmt: skip
def test_the_environment_comes_back_however_the_file_behaves(tmp_path: Path, ending: str) -> None:
    """A job that it leaves in the background is not waited for, and a trap of its own is not run."""
    started = time.monotonic()
    env, _ = envsh.source(env_sh(tmp_path, ending), BASE)
    assert env["ROCM_PATH"] == str(tmp_path)
    assert not [name for name in env if name.startswith(("gfx936", "BASH_XTRACEFD", "SHELLOPTS"))]
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        ("echo 'no driver' >&2; exit 3", r"stopped midway, at line 4 \(`exit 3`\).*it said: no driver"),
        ("set -eu; false", r"stopped midway, at line 4 \(`false`\)"),
        ("set -u; : $NEVER_SET_AT_ALL", r"NEVER_SET_AT_ALL: unbound variable"),
        ("echo 'no driver' >&2; return 7", r"gave up at line 4 \(`return 7`\); it said: no driver"),
        ("if true; then", "bash cannot read it: .*syntax error"),
        (
            "trap 'true' EXIT; exit 0",
            r"ended the shell at line 4 \(`exit 0`\), under the trap of its line 4 \(`trap 'true' EXIT; exit 0`\)",
        ),
        ("exec true", r"no environment came back: it ended the shell at line 4 \(`exec true`\)"),
        ("kill -9 $$", r"line 4 \(`kill -9"),
    ],
)
def test_a_file_that_did_not_reach_its_end_is_refused_with_its_line_and_its_words(tmp_path: Path, ending: str, says: str) -> None:
    with pytest.raises(errors.CannotBuild) as caught:
        envsh.source(env_sh(tmp_path / "a b é", ending), BASE)
    assert re.search(says, caught.value.why), caught.value.why


def test_a_file_whose_last_line_is_exit_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "env.sh"
    file.write_text(f"export ROCM_PATH={tmp_path}\nexit 1\n# end\n")
    assert envsh.source(file, BASE)[0]["ROCM_PATH"] == str(tmp_path)


def test_one_that_never_ends_is_waited_for_aloud_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(envsh, "WAIT_SECONDS", 0.6)
    monkeypatch.setattr(envsh, "_TOLD_AFTER", 0.3)
    with pytest.raises(errors.CannotBuild, match=r"did not end within 1 s: it stands at line 4 \(`sleep 300`\)"):
        envsh.source(env_sh(tmp_path, "sleep 300"), BASE)
    assert "to end, at most 1 s; it is at line 4: sleep 300" in capsys.readouterr().err


@pytest.mark.parametrize(
    "modes", [{"SHELLOPTS": "braceexpand:errexit:nounset:pipefail"}, {"BASHOPTS": "extdebug"}, {"POSIXLY_CORRECT": "1"}]
)
def test_the_strict_modes_of_the_callers_shell_do_not_leak_in(tmp_path: Path, modes: dict[str, str]) -> None:
    env, status = envsh.source(env_sh(tmp_path, "false; : $NEVER_SET_AT_ALL; export LATE=1"), {**BASE, **modes})
    assert (env["LATE"], status) == ("1", 1)
    assert not set(modes) & set(env)


def test_a_value_with_newlines_and_equal_signs_comes_back_whole(tmp_path: Path) -> None:
    env, _ = envsh.source(env_sh(tmp_path, "export ODD=$'a=b\\nPATH=evil\\n'"), BASE)
    assert env["ODD"] == "a=b\nPATH=evil\n"
    assert env["PATH"] == BASE["PATH"]


@pytest.mark.parametrize("name", ["a b", "$(touch planted)", "`touch planted`", "x;touch planted", "-c"])
def test_the_path_is_never_read_as_shell_text(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env, _ = envsh.source(env_sh(tmp_path / name), BASE)
    assert env["ROCM_PATH"]
    assert not list(tmp_path.rglob("planted"))


def test_the_users_shell_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "bash_env").write_text("export PLANTED=1\n")
    env, _ = envsh.source(env_sh(tmp_path), {**BASE, "BASH_ENV": str(tmp_path / "bash_env"), "ENV": str(tmp_path / "bash_env")})
    assert "PLANTED" not in env


def test_c37_rocm_path_of_the_environment_wins_over_what_is_in_opt(tmp_path: Path) -> None:
    other = env_sh(tmp_path / "opt-dtk")
    found = dtk.find({**BASE, "ROCM_PATH": str(tmp_path)}, default_env=other)
    assert found is not None
    assert found.prefix == tmp_path


def test_c37_a_rocm_path_that_is_no_folder_is_refused_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingInput, match="ROCM_PATH=/nowhere"):
        dtk.find({**BASE, "ROCM_PATH": "/nowhere"}, default_env=env_sh(tmp_path))


def test_dtk_env_names_the_file_to_source(tmp_path: Path) -> None:
    found = dtk.find({**BASE, "DTK_ENV": str(env_sh(tmp_path / "mine"))}, default_env=tmp_path / "none")
    assert found is not None
    assert found.prefix == tmp_path / "mine"
    assert "ended with 1" in found.origin


def test_a_machine_without_one_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtk, "_OTHER_PREFIXES", ())
    assert dtk.find(BASE, default_env=tmp_path / "none" / "env.sh") is None


def test_the_compiler_of_the_prefix_is_found_and_hipcxx_wins(tmp_path: Path) -> None:
    fake_toolchain(tmp_path)
    assert dtk.hip_compiler(dtk.Dtk(tmp_path, {}, "")) == tmp_path / "lib/llvm/bin/clang++"
    mine = program(tmp_path / "mine" / "clang++", "#!/bin/sh\n")
    assert dtk.hip_compiler(dtk.Dtk(tmp_path, {"HIPCXX": str(mine)}, "")) == mine


@pytest.mark.parametrize(("made", "expected"), [("gfx936", "gfx936"), ("gfx906", "gfx906"), ("gfx936:sramecc+:xnack-", "gfx936"), ("", "")])
def test_a_compiler_is_judged_by_the_code_it_makes(tmp_path: Path, made: str, expected: str) -> None:
    compiler = dtk.hip_compiler(dtk.Dtk(fake_toolchain(tmp_path, made), {}, ""))
    assert compiler is not None
    arch, why = dtk.made_for(compiler, "gfx936", BASE)
    assert arch == expected
    assert ("invalid target ID" in why) == (not expected)


def test_the_cmake_package_of_the_hip_language_is_found_wherever_the_dtk_keeps_it(tmp_path: Path) -> None:
    fake_toolchain(tmp_path / "hip")
    fake_toolchain(tmp_path / "moved" / "dtk-26.04")
    assert dtk.hip_lang_root(dtk.Dtk(tmp_path, {}, "")) == tmp_path / "hip"
    assert dtk.hip_lang_root(dtk.Dtk(tmp_path / "moved", {}, "")) == tmp_path / "moved" / "dtk-26.04"
    assert dtk.hip_lang_root(dtk.Dtk(tmp_path / "x", {"HIP_PATH": str(tmp_path / "hip")}, "")) == tmp_path / "hip"
    assert dtk.hip_lang_root(dtk.Dtk(tmp_path / "else", {}, "")) is None
