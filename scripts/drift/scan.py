"""drift: scan an upstream release against what we rely on, without any rebase (VLLM=x.y.z).

Reads the verified sdist (or a directory), takes the facts of every contract in scripts/drift/contracts/, and judges them against
the facts of the release before it (AGAINST=x.y.z: of another one, and then only what no release between said already is spelled out).
Writes build/drift/VERSION.md and .json. Exit 14 when a finding is BLOCK; 15 when none is and something was not evaluated.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, say
from scripts.common.paths import BUILD, shown
from scripts.drift import contracts
from scripts.drift.contracts import page
from scripts.drift.contracts.model import BLOCK, OPEN, Facts, Finding, tree_from_directory, tree_from_sdist
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import read_pin, version_key

__all__ = ["facts_of_release", "known", "main", "previous", "scan_release", "verdict"]

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


def known() -> list[str]:
    """Every known release, oldest first."""
    return sorted(read_pin().sdists, key=version_key)


def previous(version: str) -> str:
    """The known release before `version` (itself known or not); the oldest one has the one after it to be compared with."""
    older = [v for v in known() if version_key(v) < version_key(version)]
    return older[-1] if older else known()[1]


def release_of(root: Path) -> str:
    """The known release that a source tree is, or comes after: by its PKG-INFO, else by its folder's name, else the pinned one."""
    info = root / "PKG-INFO"
    match = re.search(r"(?m)^Version: (\d+\.\d+\.\d+)", info.read_text(encoding="utf-8", errors="replace")) if info.is_file() else None
    match = match or re.search(r"(\d+\.\d+\.\d+)", root.resolve().name)
    if match is None:
        return read_pin().version
    return match[1] if match[1] in known() else previous(match[1])


def said_before(findings: Sequence[Finding], base: str, last: str) -> dict[str, str]:
    """(contract:key of a finding -> release that said the same already), for the releases after `base` up to `last`."""
    before: dict[str, str] = {}
    wanted = {(f.contract, f.key, f.sentence) for f in findings}
    for version in [v for v in known() if version_key(base) < version_key(v) <= version_key(last)]:
        for finding in scan_release(version, base):
            if (finding.contract, finding.key, finding.sentence) in wanted:
                before.setdefault(f"{finding.contract}:{finding.key}", version)
    return before


def main(argv: Sequence[str]) -> int:
    """Command line of `drift`."""
    parser = argparse.ArgumentParser(prog="drift", description=__doc__)
    parser.add_argument("version", nargs="?", default=os.environ.get("VLLM"), help="a known release (or VLLM=...)")
    parser.add_argument("--dir", type=Path, default=os.environ.get("UPSTREAM_DIR"), help="a source tree instead of a release")
    parser.add_argument("--against", default=os.environ.get("AGAINST"), help="base release; the one before where not given")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    args = parser.parse_args(argv)
    if args.dir:
        root = Path(args.dir)
        stands_on = release_of(root)
        base, last, version = args.against or stands_on, stands_on, root.name
        findings = contracts.judge(facts_of_release(base), facts_of_directory(root))
    elif args.version:
        read_pin().release(args.version)
        base, version = args.against or previous(args.version), args.version
        last = previous(version)
        findings = scan_release(version, base)
    else:
        raise errors.UserError("drift needs a release", "there is nothing to compare", "run `make drift VLLM=x.y.z`")
    before = said_before(findings, base, last)
    markdown, data = page.to_markdown(base, version, findings, before), page.to_json(base, version, findings, before)
    atomic_write(OUT / f"{version}.md", markdown.encode())
    atomic_write(OUT / f"{version}.json", data.encode())
    sys.stdout.write(data if args.json else markdown)
    have = page.counts(findings)
    say(f"drift {base} -> {version}: " + ", ".join(f"{n} {level}" for level, n in have.items()) + f"; page: {shown(OUT / f'{version}.md')}")
    verdict(version, have, shown(OUT / f"{version}.md"))
    return 0


def verdict(version: str, have: Mapping[str, int], where: str) -> None:
    """The exit code's rule: a BLOCK ends with 14; without one, a question that could not be answered ends with 15.

    Raises:
        errors.CheckFailed: there is a BLOCK.
        errors.NotRun: there is none, and something was not evaluated.
    """
    if have[BLOCK]:
        raise errors.CheckFailed(
            f"vLLM {version} has {have[BLOCK]} BLOCK finding(s)",
            "as it is, upstream opens or breaks something for gfx936 that nobody has proven",
            f"read {where}; `make matrix` says which of them the series already closes",
        )
    if have[OPEN]:
        raise errors.NotRun(
            f"vLLM {version} has {have[OPEN]} question(s) that were not evaluated",
            "what could not be answered is not known to be harmless",
            f"read them in {where}, and decide by hand what they mean for gfx936",
        )
