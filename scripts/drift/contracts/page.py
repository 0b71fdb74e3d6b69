"""The page a person acts on: findings as Markdown and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from scripts.drift.contracts.model import BLOCK, INFO, LEVELS, OPEN, REVIEW, Finding

__all__ = ["counts", "to_json", "to_markdown"]

_MEANING = {
    BLOCK: "do not ship this release for gfx936 before it is resolved",
    OPEN: "a question that the stand-ins could not answer: not known to be harmless, and it counts in the exit code",
    REVIEW: "a person decides whether our hook or record still holds",
    INFO: "for the record",
}


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """How many of each level, all levels named."""
    have = Counter(f.level for f in findings)
    return {level: have[level] for level in LEVELS}


def to_json(base: str, version: str, findings: Sequence[Finding], before: Mapping[str, str] | None = None) -> str:
    """Stable JSON for other tools and for comparison between runs; `before`: contract:key -> the release that said it first."""
    rows = [asdict(f) | {"said_by": (before or {}).get(f"{f.contract}:{f.key}", "")} for f in findings]
    data = {"base": base, "version": version, "counts": counts(findings), "findings": rows}
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def to_markdown(base: str, version: str, findings: Sequence[Finding], before: Mapping[str, str] | None = None) -> str:
    """One table of what no earlier release said, one line for each that did, then the upstream text behind each row."""
    have, said = counts(findings), before or {}
    fresh = [f for f in findings if f"{f.contract}:{f.key}" not in said]
    lines = [f"# Drift of vLLM {version} against {base}", ""]
    lines += [f"- **{have[level]} {level}**: {_MEANING[level]}" for level in LEVELS]
    lines += ["", "| level | contract | place | what |", "|---|---|---|---|"]
    for finding in fresh:
        place = f"{finding.path}:{finding.line}" if finding.line else finding.path
        lines.append(f"| {finding.level} | {finding.contract} | `{place}` | {_cell(finding.sentence)} |")
    if said:
        lines += ["", "Counted above and said already by an earlier release:", ""]
        for release in dict.fromkeys(said.values()):
            old = counts([f for f in findings if said.get(f"{f.contract}:{f.key}") == release])
            lines.append(f"- {release}: " + ", ".join(f"{n} {level}" for level, n in old.items() if n) + f" (`make drift VLLM={release}`)")
    for finding in fresh:
        if finding.hunk and finding.level != INFO:
            lines += ["", f"## {finding.level} {finding.contract} `{finding.path}:{finding.line}`", "", finding.sentence, "", "```diff"]
            lines += [*finding.hunk.splitlines(), "```"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")
