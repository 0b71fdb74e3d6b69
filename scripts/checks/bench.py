"""bench: the kernel against F.linear on this machine's DCU, and how long the dispatch and the tools take.

Ratios and medians of this machine, run by hand on an idle one; no test depends on them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scripts.checks.verify import interpreter
from scripts.common import errors
from scripts.common.paths import ROOT
from scripts.common.run import echoed
from scripts.machine import facts
from scripts.serving.ready import ready_python

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Command line of `bench`. Arguments go to `python -m vllm.dcu bench`.

    Raises:
        errors.CheckFailed: a benchmark did not end well.
    """
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", choices=("kernel", "dispatch", "tools"), action="append")
    args, rest = parser.parse_known_args(argv)
    wanted = args.only or ("kernel", "dispatch", "tools")
    failed = []
    if "kernel" in wanted:
        if facts.resolve("auto") != "rocm":
            print("not run: kernel: no DCU, DTK or torch for HIP is here, so that there is nothing to measure")
        else:
            python, env = interpreter()
            if echoed([python, "-m", "vllm.dcu", "bench", *rest], base=env):
                failed.append("kernel")
    for name in ("dispatch", "tools"):
        script = ROOT / "benchmarks" / f"{name}.py"
        if name not in wanted:
            continue
        if not script.is_file():
            print(f"not run: {name}: {script.name} is not part of this checkout")
        elif echoed([ready_python() if name == "dispatch" else sys.executable, script]):
            failed.append(name)
    if failed:
        raise errors.CheckFailed(f"benchmarks failed: {', '.join(failed)}", "what they said stands above", "read the first failure first")
    return 0
