"""test: all tests that this machine can run, with a list of what it could not and why (STRICT=1: that list must be empty).

Suites, in order: unit and integration and native in the tools environment, runtime in the serving environment with the
patched wheel installed, service against real servers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.paths import ROOT
from scripts.common.run import echoed

__all__ = ["SUITES", "main", "run_suites"]

SUITES = ("unit", "integration", "native", "runtime", "service")

# Suites whose tests share nothing but the download cache.
_PARALLEL = ("unit", "integration", "native")


@dataclass(frozen=True)
class _Outcome:
    suite: str
    code: int
    passed: int
    failed: int
    not_run: tuple[tuple[str, str], ...]


def _python(suite: str) -> Path:
    if suite in ("runtime",):
        from scripts.serving.ready import ready_python

        return ready_python()
    return Path(sys.executable)


def _run(suite: str, extra: Sequence[str]) -> _Outcome:
    with tempfile.TemporaryDirectory(prefix="gfx936-test-") as folder:
        report = Path(folder) / "report.json"
        argv: list[str | Path] = [_python(suite), "-m", "pytest", f"tests/{suite}", "-q", "-p", "tests.report"]
        argv += ["-n", str(os.cpu_count() or 1), "--dist", "loadfile", *extra] if suite in _PARALLEL else extra
        code = echoed(argv, cwd=ROOT, env={"GFX936_TEST_REPORT": str(report), "PYTHONPATH": os.pathsep.join([str(ROOT)])})
        data = json.loads(report.read_text()) if report.is_file() else {}
    rows = tuple((str(a), str(b)) for a, b in data.get("not_run", []))
    return _Outcome(suite, code, int(data.get("passed", 0)), int(data.get("failed", 0)), rows)


def run_suites(suites: Sequence[str], strict: bool, extra: Sequence[str] = ()) -> int:
    """Run suites one after the other and print one closing table.

    Raises:
        errors.CheckFailed: a suite failed, or executed no test.
        errors.NotRun: `strict`, and something could not run here.
    """
    outcomes = [_run(suite, extra) for suite in suites if (ROOT / "tests" / suite).is_dir()]
    print(f"\n{'suite':12} {'passed':>7} {'failed':>7} {'not run':>8}")
    for o in outcomes:
        print(f"{o.suite:12} {o.passed:7} {o.failed:7} {len(o.not_run):8}")
    for o in outcomes:
        for test, why in o.not_run:
            print(f"not run: {test}: {why}")
    passed, failed, skipped = (sum(o.passed for o in outcomes), sum(o.failed for o in outcomes), sum(len(o.not_run) for o in outcomes))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    bad = [o.suite for o in outcomes if o.code or o.failed or not (o.passed or o.not_run)]
    if bad:
        raise errors.CheckFailed(f"tests failed in: {', '.join(bad)}", "they are listed above", "read the first failure first")
    if strict and skipped:
        raise errors.NotRun(
            f"{skipped} test(s) could not run here", "STRICT=1 counts what did not run as failed", "the reasons are listed above"
        )
    return 0


def main(argv: Sequence[str]) -> int:
    """Command line of `test`."""
    parser = argparse.ArgumentParser(prog="test", description=__doc__)
    parser.add_argument("--strict", action="store_true", default=os.environ.get("STRICT") == "1")
    parser.add_argument("--suite", action="append", choices=SUITES)
    args, extra = parser.parse_known_args(argv)
    return run_suites(args.suite or SUITES, args.strict, extra)
