"""What did not run is listed with its reason, and nothing drops out of the count unseen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

BODY = {
    "passes": "def test_it():\n    assert True\n",
    "fails": "def test_it():\n    assert False\n",
    "not run": "from tests.support import not_run\n\ndef test_it():\n    not_run('there is no DCU')\n",
    "skipped without a reason": "import pytest\n\ndef test_it():\n    pytest.skip('later')\n",
    "module not run": "import pytest\n\npytest.skip('not run: no torch', allow_module_level=True)\n",
    "module skipped without a reason": "import pytest\n\npytest.skip('later', allow_module_level=True)\n",
    "does not import": "import nothing_of_this_name\n",
}


def outcome(tmp_path: Path, body: str, *extra: str) -> tuple[int, dict]:
    (tmp_path / "test_it.py").write_text(body)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {"GFX936_TEST_REPORT": str(tmp_path / "report.json"), "PYTHONPATH": str(ROOT)}
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.report",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
        *extra,
    ]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    return done.returncode, json.loads((tmp_path / "report.json").read_text())


@pytest.mark.parametrize(
    ("case", "green", "passed", "failed", "reason"),
    [
        ("passes", True, 1, 0, None),
        ("fails", False, 0, 1, None),
        ("not run", True, 0, 0, "there is no DCU"),
        ("skipped without a reason", False, 0, 1, None),
        ("module not run", None, 0, 0, "no torch"),
        ("module skipped without a reason", False, 0, 1, None),
        ("does not import", False, 0, 1, None),
    ],
)
def test_each_outcome_is_counted_for_what_it_is(tmp_path, case, green, passed, failed, reason):
    code, report = outcome(tmp_path, BODY[case])
    assert (report["passed"], report["failed"]) == (passed, failed)
    assert [why for _, why in report["not_run"]] == ([reason] if reason else [])
    if green is not None:
        assert (code == 0) is green


def suites_say(monkeypatch, capsys, strict: bool, **row) -> tuple[int, str]:
    from scripts import cli
    from scripts.checks import test

    data = {"suite": "unit", "code": 0, "passed": 3, "failed": 0, "not_run": (), **row}
    monkeypatch.setattr(test, "_run", lambda suite, extra: test._Outcome(**{**data, "suite": suite}))
    monkeypatch.setitem(cli.VERBS, "test", ("checks.test", False))
    monkeypatch.delenv("STRICT", raising=False)  # of the run that runs this test
    code = cli.run(["test", "--suite", "unit", *(["--strict"] if strict else [])])
    return code, "".join(capsys.readouterr())


def test_strict_turns_what_did_not_run_into_a_failure(monkeypatch, capsys):
    row = {"not_run": (("t", "there is no DCU"),)}
    code, said = suites_say(monkeypatch, capsys, strict=False, **row)
    assert code == 0
    assert "not run: t: there is no DCU" in said
    assert "3 passed, 0 failed, 1 skipped" in said
    assert suites_say(monkeypatch, capsys, strict=True, **row)[0] == 15


def test_a_failed_suite_fails_the_run(monkeypatch, capsys):
    assert suites_say(monkeypatch, capsys, strict=False, code=1, failed=1)[0] == 14


def test_a_suite_that_executed_nothing_fails_the_run(monkeypatch, capsys):
    assert suites_say(monkeypatch, capsys, strict=False, passed=0)[0] == 14
