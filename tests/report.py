"""pytest plugin: tells `scripts/checks/test.py` what passed, failed and did not run, and why.

A skip that does not say `not run: why` is a failure: nothing may drop out of the count unseen. Works with and without
pytest-xdist: reports are counted where they arrive, in the process that a person started.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support import NOT_RUN

_passed: set[str] = set()
_failed: set[str] = set()
_not_run: dict[str, str] = {}


def _reason(report) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail") and not _reason(report).startswith(NOT_RUN):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped without a reason of the form '{NOT_RUN}why': {_reason(report)!r}"


def pytest_runtest_logreport(report):
    if report.failed:
        _failed.add(report.nodeid)
    elif report.skipped and not hasattr(report, "wasxfail"):
        _not_run[report.nodeid] = _reason(report).removeprefix(NOT_RUN)
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_collectreport(report):
    if report.failed:
        _failed.add(report.nodeid)
    elif report.skipped:  # a whole module that took itself out
        reason = _reason(report)
        if reason.startswith(NOT_RUN):
            _not_run[report.nodeid] = reason.removeprefix(NOT_RUN)
        else:
            _failed.add(report.nodeid)


def pytest_sessionfinish(session, exitstatus):
    if hasattr(session.config, "workerinput"):
        return
    if _failed and exitstatus == 0:
        session.exitstatus = 1
    if target := os.environ.get("GFX936_TEST_REPORT"):
        data = {"passed": len(_passed - _failed), "failed": len(_failed), "not_run": sorted(_not_run.items())}
        Path(target).write_text(json.dumps(data))
