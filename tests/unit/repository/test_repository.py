"""What must hold for the repository as a whole."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts import cli
from scripts.common import errors
from scripts.common.paths import ROOT
from scripts.upstream import releases

# A registry's host, this or that machine's folders: none may stand in a file. Written so that this file does not match itself.
FORBIDDEN = re.compile(
    "|".join(("python" + "hosted", "pypi" + r"\.org", "deb" + r"\.debian", "registry" + r"\.npmjs", r"(?<!\w)/work" + "/", "/tmp" + "/w/"))
)


def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    return [ROOT / n.decode() for n in names if n and (ROOT / n.decode()).is_file()]


def named_hosts(files: list[Path]) -> list[str]:
    return [f"{f.name}: {m[0]}" for f in files if (m := FORBIDDEN.search(f.read_text(encoding="utf-8", errors="replace")))]


def test_no_file_names_a_registrys_host_or_a_machines_folder():
    assert named_hosts(tracked()) == []


def test_a_planted_host_name_is_found(tmp_path):
    (tmp_path / "x.txt").write_text("https://files." + "python" + "hosted" + "." + "org/packages\n")
    assert named_hosts([tmp_path / "x.txt"]) != []


def makefile_targets() -> dict[str, str]:
    text = (ROOT / "Makefile").read_text()
    return {m[1]: m[2] for m in re.finditer(r"(?m)^([a-z-]+):\n\t@\$\(RUN\) ([a-z-]+)", text)}


def test_every_make_target_is_one_verb_and_every_verb_has_a_target():
    targets = makefile_targets()
    assert set(targets.values()) <= set(cli.VERBS)
    assert set(cli.VERBS) <= set(targets.values())
    phony = " ".join(re.findall(r"(?m)^\.PHONY: (.*)$", (ROOT / "Makefile").read_text())).split()
    assert sorted(phony) == sorted(targets)


def test_every_verb_says_what_it_does():
    for verb, (module, _) in cli.VERBS.items():
        assert len(cli.summary(module)) > 10, verb


def test_exit_codes_are_unique_and_none_is_zero():
    codes = [row[0] for row in errors.catalogue()]
    assert len(codes) == len(set(codes))
    assert 0 not in codes
    assert all(meaning for _, _, meaning in errors.catalogue())


def test_an_unknown_verb_is_one_sentence_and_exit_code_2(capsys):
    assert cli.run(["frobnicate"]) == 2
    assert "there is no verb 'frobnicate'" in capsys.readouterr().err


def test_0_18_1_is_known_by_the_published_sha256():
    sdist = releases.read_pin().release("0.18.1")
    assert (sdist.version, sdist.size) == ("0.18.1", 30814301)
    assert sdist.sha256 == "8d18eff1c4ed21eb8cf7a45a1d1b34752d5ec287e79186e451d5c2f797cacdb7"


def test_the_known_releases_reach_from_before_the_pin_to_the_newest_that_the_tests_use():
    known = set(releases.read_pin().sdists)
    assert known >= {"0.17.1", "0.18.1", "0.19.0", "0.22.1", "0.27.1", "0.33.0"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[pin]\nversion = 0.18\nrevision = 1\n", "field 'pin.version': 0.18 is not a text"),
        ('[pin]\nversion = "0.18.1"\nrevision = 1.0\n', "field 'pin.revision': 1.0 is not a whole number"),
        ('[pin]\nversion = "0.18.1"\nrevision = true\n', "field 'pin.revision': True is not"),
        ('[pin]\nversion = "0.18.1"\nrevision = 1\n', "no .sdist. entry"),
        (
            '[pin]\nversion = "0.18.1"\nrevision = 1\n[sdist]\n"0.18.1" = { name = "../x", size = 1, sha256 = "aa" }\n',
            "name': '../x' is not a file name",
        ),
        (
            '[pin]\nversion = "0.18.1"\nrevision = 1\n[sdist]\n"0.18.1" = { name = "x", size = 1.0, sha256 = "' + "a" * 64 + '" }\n',
            "size': 1.0 is not a whole number",
        ),
        (
            '[pin]\nversion = "0.18.1"\nrevision = 1\n[sdist]\n"0.18.1" = { name = "x", size = 1, sha256 = "zz" }\n',
            "sha256': 'zz' is not a sha256",
        ),
        ("not toml at all [", "it is not TOML"),
        ('[pin]\nversion = "0.18.1"\nversion = "0.18.2"\n', "it is not TOML"),
        ('[pin]\nversion = "0.18.1"\nrevision = 1\nwhen = 2026-01-01\n', "field 'pin.when'"),
        ('[pin]\nversion = "0.18.1"\nrevision = nan\n', "nan is not a finite number"),
        ('[pin]\nversion = "0.18.1"\nrevision = 1\n[pins]\n', "field 'pins': is no field here"),
    ],
)
def test_a_malformed_pin_is_refused_with_the_fields_name(tmp_path, text, says):
    (tmp_path / "upstream.toml").write_text(text)
    with pytest.raises(errors.UserError, match=says):
        releases.read_pin(tmp_path / "upstream.toml")


@pytest.mark.parametrize("jobs", ["-j1", "-j8"])
def test_make_keeps_the_order_of_its_targets(tmp_path, jobs):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho begin $3 >> {tmp_path}/log\nsleep 0.2\necho end $3 >> {tmp_path}/log\n")
    python.chmod(0o755)
    subprocess.run(["make", jobs, f"PYTHON={python}", "apply", "build"], cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / "log").read_text().splitlines() == ["begin apply", "end apply", "begin build", "end build"]


def test_pins_refuses_a_released_file_that_changed(monkeypatch):
    from dataclasses import replace

    from scripts.upstream import index, update

    good = releases.read_pin()
    rows = [*good.sdists.values(), *good.cpu_wheels.values()]
    written: list[bytes] = []
    monkeypatch.setattr(update, "atomic_write", lambda path, data: written.append(data))
    monkeypatch.setattr(index, "listing", lambda project: [a for a in rows if a.project == project])
    update.main([])
    assert written == [(ROOT / "upstream.toml").read_bytes()]
    rows[3] = replace(rows[3], sha256="f" * 64)
    with pytest.raises(errors.DamagedDownload, match="a released file never changes"):
        update.main([])
    assert len(written) == 1
