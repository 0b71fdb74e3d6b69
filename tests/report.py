"""pytest plugin: tells `scripts/test.py` what passed, failed and did not run, and why.

A skip that does not say `not run: why` is a failure: nothing may drop out of the count unseen.
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


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(NOT_RUN):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped without a reason of the form '{NOT_RUN}why': {reason!r}"
        else:
            _not_run[item.nodeid] = reason.removeprefix(NOT_RUN)
    if report.failed:
        _failed.add(item.nodeid)
    elif report.when == "call" and report.passed:
        _passed.add(item.nodeid)


def pytest_sessionfinish(session, exitstatus):
    if target := os.environ.get("GFX936_TEST_REPORT"):
        data = {"passed": len(_passed - _failed), "failed": len(_failed), "not_run": sorted(_not_run.items())}
        Path(target).write_text(json.dumps(data))
