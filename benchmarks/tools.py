"""How long the tools take here: a first apply, a second one, a wheel. Seconds of one machine, with the target beside each.

    python benchmarks/tools.py [--repeat 3]

Run by hand (or `make bench`) on an otherwise idle machine, with the downloads in the cache. Not a test.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def seconds(checkout: Path, *argv: str) -> float:
    """Wall-clock seconds of one verb, started as a person starts it."""
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "scripts", *argv],
        cwd=checkout,
        check=True,
        capture_output=True,
        env={**os.environ, "TOOLS_PYTHON": sys.executable},
    )
    return time.monotonic() - started


def main() -> int:
    """Measure in a copy of this checkout; print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    rows: dict[str, list[float]] = {"apply, first": [], "apply, second": [], "build TARGET=cpu": []}
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns("build", "dist", ".git"))
        for _ in range(repeat):
            shutil.rmtree(checkout / "build", ignore_errors=True)
            shutil.rmtree(checkout / "dist", ignore_errors=True)
            rows["apply, first"].append(seconds(checkout, "apply"))
            rows["apply, second"].append(seconds(checkout, "apply"))
            rows["build TARGET=cpu"].append(seconds(checkout, "build", "--target", "cpu"))
    targets = {"apply, first": 10, "apply, second": 1, "build TARGET=cpu": 60}
    print(
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {repeat} runs\n\n{'step':20} {'median s':>9} {'worst s':>9} {'target s':>9}"
    )
    for step, times in rows.items():
        print(f"{step:20} {statistics.median(times):9.2f} {max(times):9.2f} {targets[step]:9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
