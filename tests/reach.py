"""pytest plugin: which test runs which line of which of our files, for `scripts/checks/mutants.py`.

REACH_OUT names the file to write (one for each worker), REACH_ROOTS the folders that are watched. What a test starts as another
process is not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

_roots = tuple(os.path.join(os.path.realpath(root), "") for root in os.environ["REACH_ROOTS"].split(os.pathsep))  # noqa: PTH118
_lines: dict[str, set[int]] = {}
_found: dict[str, dict[str, list[int]]] = {}
_seconds: dict[str, float] = {}
_known: dict[str, str] = {}


def _watch(frame, event, arg):
    name = frame.f_code.co_filename
    real = _known.get(name)
    if real is None:
        real = os.path.realpath(name)
        _known[name] = real = real if real.startswith(_roots) else ""
    if not real:
        return None
    lines = _lines.setdefault(real, set())
    lines.add(frame.f_lineno)

    def line(frame, event, arg):
        lines.add(frame.f_lineno)
        return line

    return line


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    _lines.clear()
    threading.settrace(_watch)
    sys.settrace(_watch)
    begun = time.monotonic()
    yield
    sys.settrace(None)
    threading.settrace(None)
    _seconds[item.nodeid] = time.monotonic() - begun
    _found[item.nodeid] = {file: sorted(lines) for file, lines in _lines.items()}


def pytest_sessionfinish(session, exitstatus):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    with Path(os.environ["REACH_OUT"] + worker).open("w", encoding="utf-8") as out:
        json.dump({"lines": _found, "seconds": _seconds}, out)
