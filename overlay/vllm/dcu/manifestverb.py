# SPDX-License-Identifier: Apache-2.0
"""manifest: what build of vLLM runs here, and whether it is whole.

python -m vllm.dcu manifest
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from vllm.dcu.manifest import examine

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Command line of `manifest`. Exit 0: the build is whole and is the one that runs; 1: it is not, each problem is printed."""
    parser = argparse.ArgumentParser(prog="python -m vllm.dcu manifest", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the manifest itself")
    args = parser.parse_args(argv)
    found = examine(Path(__file__).parents[1])
    if args.json and found.manifest is not None:
        print(found.manifest.to_json().decode(), end="")
    elif found.manifest is not None:
        facts = found.manifest
        print(f"package   {found.package}")
        print(f"version   {facts.version}, target {facts.target}, tree {facts.tree}")
        print(f"upstream  {facts.upstream}, sha256 {facts.upstream_sha256}")
        print(f"archs     {', '.join(facts.archs) or 'none: no native device code of this build'}")
        print(f"toolchain {json.dumps(dict(facts.toolchain), sort_keys=True)}")
    for note in found.notes:
        print(f"note      {note}")
    for problem in found.problems:
        print(f"problem   {problem}")
    return 1 if found.problems else 0
