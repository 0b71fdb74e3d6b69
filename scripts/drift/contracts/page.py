"""The page a person acts on: findings as Markdown and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from scripts.drift.contracts.model import BLOCK, INFO, LEVELS, REVIEW, Finding

__all__ = ["counts", "to_json", "to_markdown"]

_MEANING = {
    BLOCK: "do not ship this release for gfx936 before it is resolved",
    REVIEW: "a person decides whether our hook or record still holds",
    INFO: "for the record",
}


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """How many of each level, all levels named."""
    have = Counter(f.level for f in findings)
    return {level: have[level] for level in LEVELS}


def to_json(base: str, version: str, findings: Sequence[Finding]) -> str:
    """Stable JSON for other tools and for comparison between runs."""
    data = {"base": base, "version": version, "counts": counts(findings), "findings": [asdict(f) for f in findings]}
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def to_markdown(base: str, version: str, findings: Sequence[Finding]) -> str:
    """One table, then the upstream text behind each BLOCK and REVIEW."""
    have = counts(findings)
    lines = [f"# Drift of vLLM {version} against {base}", ""]
    lines += [f"- **{have[level]} {level}**: {_MEANING[level]}" for level in LEVELS]
    lines += ["", "| level | contract | place | what |", "|---|---|---|---|"]
    for finding in findings:
        place = f"{finding.path}:{finding.line}" if finding.line else finding.path
        lines.append(f"| {finding.level} | {finding.contract} | `{place}` | {_cell(finding.sentence)} |")
    for finding in findings:
        if finding.hunk and finding.level != INFO:
            lines += ["", f"## {finding.level} {finding.contract} `{finding.path}:{finding.line}`", "", finding.sentence, "", "```diff"]
            lines += [*finding.hunk.splitlines(), "```"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")
