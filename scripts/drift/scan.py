"""drift: scan an upstream release against what we rely on, without any rebase (VLLM=x.y.z).

Reads the verified sdist (or a directory), takes the facts of every contract in scripts/drift/contracts/, and judges them
against the facts of the pinned release. Writes build/drift/VERSION.md and .json. Exit 14 when a finding is BLOCK.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, say
from scripts.common.paths import BUILD, shown
from scripts.drift import contracts
from scripts.drift.contracts import page
from scripts.drift.contracts.model import BLOCK, Facts, Finding, tree_from_directory, tree_from_sdist
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import read_pin

__all__ = ["facts_of_release", "main", "scan_release"]

OUT = BUILD / "drift"


def facts_of_release(version: str) -> Facts:
    """Facts of a known release, taken once: the cache key is the sdist's sha256 and the contracts' own text."""
    artifact = read_pin().release(version)
    cached = OUT / "facts" / f"{version}-{artifact.sha256[:12]}-{contracts.tool_id()[:12]}.json"
    if cached.is_file():
        return Facts.from_json(cached.read_text(encoding="utf-8"))
    facts = contracts.collect(tree_from_sdist(fetch(artifact), version))
    atomic_write(cached, facts.to_json().encode())
    return facts


def facts_of_directory(root: Path) -> Facts:
    """Facts of a tree somebody gives (for example a vendor's); it is only read."""
    if not (root / "vllm").is_dir():
        raise errors.MissingInput(
            f"{shown(root)} is no vLLM source tree", "it has no vllm folder", "give the folder that holds CMakeLists.txt and vllm/"
        )
    return contracts.collect(tree_from_directory(root, root.name))


def scan_release(version: str, against: str) -> list[Finding]:
    """Findings of one known release."""
    return contracts.judge(facts_of_release(against), facts_of_release(version))


def main(argv: Sequence[str]) -> int:
    """Command line of `drift`."""
    parser = argparse.ArgumentParser(prog="drift", description=__doc__)
    parser.add_argument("version", nargs="?", default=os.environ.get("VLLM"), help="a known release (or VLLM=...)")
    parser.add_argument("--dir", type=Path, default=os.environ.get("UPSTREAM_DIR"), help="a source tree instead of a release")
    parser.add_argument("--against", help="base release; the pinned one where not given")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    args = parser.parse_args(argv)
    base = args.against or read_pin().version
    if args.dir:
        root = Path(args.dir)
        version, findings = root.name, contracts.judge(facts_of_release(base), facts_of_directory(root))
    elif args.version:
        version, findings = args.version, scan_release(args.version, base)
    else:
        raise errors.UserError("drift needs a release", "there is nothing to compare the pin with", "run `make drift VLLM=x.y.z`")
    markdown, data = page.to_markdown(base, version, findings), page.to_json(base, version, findings)
    atomic_write(OUT / f"{version}.md", markdown.encode())
    atomic_write(OUT / f"{version}.json", data.encode())
    sys.stdout.write(data if args.json else markdown)
    have = page.counts(findings)
    say(f"drift {base} -> {version}: " + ", ".join(f"{n} {level}" for level, n in have.items()) + f"; page: {shown(OUT / f'{version}.md')}")
    if have[BLOCK]:
        raise errors.CheckFailed(
            f"vLLM {version} has {have[BLOCK]} BLOCK finding(s)",
            "as it is, upstream opens or breaks something for gfx936 that nobody has proven",
            f"read {shown(OUT / f'{version}.md')}; `make matrix` says which of them the series already resolves",
        )
    return 0
