# SPDX-License-Identifier: Apache-2.0
"""counters: add up the dispatch counters of a run, also while it runs.

    python -m vllm.dcu counters FOLDER

FOLDER is what VLLM_DCU_STATS_DIR was set to. It reads only, so that it may be anybody's folder and a mount that cannot be written. Simulated
and real devices are never added together. What was never hit is said of the last run; a run is the processes that count in one folder
without a moment between them in which none lived.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm.dcu.dispatch.countfiles import merge, read_folder

__all__ = ["as_text", "main"]


def as_text(merged: Mapping[str, Any]) -> str:
    """The sums for people."""
    lines: list[str] = []
    for group in merged["groups"]:
        label = f"{group['arch']}, simulated: {group['simulated']}" if group["simulated"] else group["arch"]
        pids = ", ".join(str(pid) for pid in group["processes"])
        before = f" and {group['folded']} before them" if group["folded"] else ""
        lines.append(f"device {label}; processes {pids}{before}; dispatches, graph replays not counted")
        lines += [f"  hit   {value:>12}  {ident}" for ident, value in group["hits"].items()]
        lines += [
            f"  launch{value:>12}  {ident}: by the kernel's own count, graph replays included" for ident, value in group["launches"].items()
        ]
        for miss in group["misses"]:
            rows = "" if miss["rows"] == "any" else f", N {'= 1' if miss['rows'] == '1' else '!= 1'}"
            record = f", {miss['record']}" if miss["record"] else ""
            shape = f"{miss['dtype']} {miss['m']} x {miss['k']}{rows}"
            lines.append(f"  miss  {miss['count']:>12}  {shape}: {miss['reason']}{record}")
        lines += [f"  NEVER HIT although open: {ident}" for ident in group["never_hit"]]
    lines += merged["problems"]
    return "\n".join(lines) or "no process has dispatched anything yet"


def main(argv: Sequence[str]) -> int:
    """Command line of `counters`. Exit 0: added up; 1: no such folder; 3: a capability was open in the last run and never hit in it."""
    parser = argparse.ArgumentParser(prog="python -m vllm.dcu counters", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="what VLLM_DCU_STATS_DIR was set to")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if not args.folder.is_dir():
        print(f"error: {args.folder} is not a folder; set VLLM_DCU_STATS_DIR for the run that is to be counted", file=sys.stderr)
        return 1
    processes, problems = read_folder(args.folder)
    merged: dict[str, Any] = {"groups": merge(processes), "problems": problems}
    print(json.dumps(merged, indent=2) if args.json else as_text(merged))
    return 3 if any(group["never_hit"] for group in merged["groups"]) else 0
