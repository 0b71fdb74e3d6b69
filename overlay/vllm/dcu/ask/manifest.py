# SPDX-License-Identifier: Apache-2.0
"""manifest: what build this is, and whether it is whole: the files, and the code that Python runs in the place of the decisive ones."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vllm.dcu.device.footing import other_code
from vllm.dcu.manifest import Verdict, as_text, examine

__all__ = ["looked_through", "main"]


def looked_through(package: Path, search: Sequence[str] | None = None) -> Verdict:
    """`examine`, and compiled code that is not its text's."""
    verdict = examine(package, search)
    return replace(verdict, problems=(*verdict.problems, *other_code(verdict.package)))


def main(argv: Sequence[str]) -> int:
    """Command line of `manifest`. Exit 0: this build is whole and is the one that runs; 1: it is not."""
    parser = argparse.ArgumentParser(prog="python -m vllm.dcu manifest", description="what build this is, and whether it is whole")
    parser.add_argument("--json", action="store_true", help="the manifest and the findings, for programs")
    args = parser.parse_args(argv)
    verdict = looked_through(Path(__file__).resolve().parents[2])
    if args.json:
        known = json.loads(verdict.manifest.to_json()) if verdict.manifest else None
        data = {"package": str(verdict.package), "manifest": known, "problems": verdict.problems, "notes": verdict.notes}
        print(json.dumps(data, indent=1))
    else:
        print(as_text(verdict))
    return 1 if verdict.problems else 0
