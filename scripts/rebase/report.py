"""What a rebase tells a person: the table of verdicts, and the three lists of a stop."""

from __future__ import annotations

from scripts.common.paths import shown
from scripts.rebase.state import WORK
from scripts.rebase.threeway import MOVED, UPSTREAMED
from scripts.rebase.walk import RESOLVED, Stop, Walk

__all__ = ["closing", "report", "stop_report"]


def report(walk: Walk) -> str:
    """Markdown: one row a release, and the fate of each patch."""
    names = [row.name for row in walk.steps[0].rows]
    lines = [f"# The series from vLLM {walk.steps[0].version} to {walk.steps[-1].version}", ""]
    lines += ["| release | " + " | ".join(n.removesuffix(".patch") for n in names) + " |", "|---|" + "---|" * len(names)]
    for step in walk.steps[1:]:
        have = {row.name: row for row in step.rows}
        cells = [(have[n].verdict + (f" ({have[n].note})" if have[n].note else "")) if n in have else "gone" for n in names]
        lines.append(f"| {step.version} | " + " | ".join(cells) + " |")
    lines.append("")
    gone = walk.upstreamed()
    for name in names:
        verdicts = [row.verdict for step in walk.steps[1:] for row in step.rows if row.name == name]
        if name in gone:
            lines.append(f"- `{name}`: upstreamed by release {gone[name]}; it leaves the series.")
        else:
            by_hand = verdicts.count(RESOLVED)
            lines.append(f"- `{name}`: {len(verdicts)} release(s), {verdicts.count(MOVED)} with moved context, {by_hand} resolved by hand.")
    return "\n".join(lines) + "\n"


def stop_report(stop: Stop, done: int, laid_out: bool = True) -> str:
    """Three lists (conflicted files, patches to files that are gone, broken patches) and, where it is laid out, the commands to go on."""
    content = [c for c in stop.conflicts if c.kind == "content"]
    deleted = [c for c in stop.conflicts if c.kind in ("deleted", "replaced")]
    broken = [c for c in stop.conflicts if c.kind == "broken"]
    lines = [f"stopped at vLLM {stop.version} after {done} release(s): {stop.patch}", "", "conflicted files:"]
    for c in content:
        have, total = c.upstream_has
        hunks = ", ".join(f"lines {h}" for h in c.hunks) or "whole file"
        lines.append(
            f"  {c.path}: {hunks}"
            + (f"; {have} of {total} hunk(s) are upstream already" if have else "")
            + (f"; {c.became}" if c.became else "")
        )
    lines += [] if content else ["  none"]
    lines += ["patches to files that upstream deleted, moved or replaced:"]
    lines += [f"  {stop.patch}: {c.path}" + (f" ({c.became})" if c.became else "") for c in deleted] or ["  none"]
    lines += ["broken patches (git could not merge them at all):"]
    lines += [f"  {stop.patch}" for _ in broken] or ["  none"]
    if not laid_out:
        return "\n".join(lines)
    lines += ["", "to go on:"]
    lines += [f"  $EDITOR {shown(WORK / c.path)}" for c in content]
    lines += ["  make rebase-continue", "or, if upstream has it in another form:", "  make rebase-continue DROP=1", "or, to give up:"]
    lines += ["  make rebase-abort"]
    return "\n".join(lines)


def closing(finished: Walk) -> str:
    """One closing line: how many patches moved, how many are upstream."""
    rows = [row for step in finished.steps[1:] for row in step.rows]
    moved, gone = sum(1 for r in rows if r.verdict == MOVED), sum(1 for r in rows if r.verdict == UPSTREAMED)
    return f"{len(finished.steps) - 1} release(s), {len(rows)} carried patches: {moved} with moved context, {gone} upstreamed"
