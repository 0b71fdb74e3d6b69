"""Carry one patch from one base to another, three-way, and say what became of it. Objects only; no work tree is touched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.common.git import GitError, Repo
from scripts.series.commits import scratch_index
from scripts.series.merge import Merged, merge, tree_of

__all__ = [
    "APPLIES",
    "CONFLICTS",
    "MOVED",
    "UPSTREAMED",
    "Carried",
    "Conflict",
    "carry",
    "hunk_bodies",
]

APPLIES = "applies"
MOVED = "applies with moved context"
UPSTREAMED = "upstreamed"
CONFLICTS = "conflicts"


@dataclass(frozen=True)
class Conflict:
    """One file that needs a person.

    Attributes:
        path: the file.
        kind: "content", "deleted" (upstream removed or moved the file), "replaced" (it is no plain file any more) or "broken"
            (git could not merge it at all).
        hunks: line ranges of the conflict markers in the merged text, such as "120-128".
        upstream_has: how many of the patch's hunks of this file upstream holds already, and of how many.
        became: what upstream made of the file besides other text, such as "a symbolic link to x now"; "" where nothing.
    """

    path: str
    kind: str
    hunks: tuple[str, ...] = ()
    upstream_has: tuple[int, int] = (0, 0)
    became: str = ""


@dataclass(frozen=True)
class Carried:
    """What became of a patch.

    Attributes:
        verdict: APPLIES, MOVED, UPSTREAMED or CONFLICTS.
        tree: the resulting tree; with conflict markers in it where the verdict is CONFLICTS.
        conflicts: the files that need a person.
        note: what a reader should know besides, or "".
    """

    verdict: str
    tree: str
    conflicts: tuple[Conflict, ...] = ()
    note: str = ""


def carry(repo: Repo, old: str, old_parent: str, new_parent: str) -> Carried:
    """The change old_parent..old on new_parent.

    A patch that upstream has already is recognised by its effect, never by its text alone: the three-way result is
    new_parent itself, or every hunk of it can be taken out of new_parent.
    """
    here = tree_of(repo, new_parent)
    merged = merge(repo, old, old_parent, new_parent)
    if not merged.tree:
        return Carried(CONFLICTS, here, (Conflict("", "broken"),), merged.error)
    if merged.clean:
        if merged.tree == here:
            return Carried(UPSTREAMED, here)
        return _clean(repo, old, old_parent, new_parent, merged.tree)
    conflicts = tuple(_conflicts(repo, merged, old, old_parent, new_parent))
    if all(total and have == total for have, total in (c.upstream_has for c in conflicts)) and _rest_is_upstream(
        repo, old, old_parent, new_parent
    ):
        return Carried(UPSTREAMED, here, note="every hunk of it can be taken out of upstream's text")
    return Carried(CONFLICTS, merged.tree, conflicts)


def _clean(repo: Repo, old: str, old_parent: str, new_parent: str, merged: str) -> Carried:
    """Same hunks as before, or the same change in other surroundings."""
    before = hunk_bodies(_diff(repo, old_parent, old))
    after = hunk_bodies(_diff(repo, new_parent, merged))
    if [lines for _, lines in before] == [lines for _, lines in after]:
        return Carried(APPLIES, merged)
    changed = [(p, _changes(a)) for p, a in before] == [(p, _changes(b)) for p, b in after]
    note = "" if changed else "the change itself is smaller or placed otherwise than before: read it"
    return Carried(MOVED, merged, note=note)


def _diff(repo: Repo, a: str, b: str, *paths: str) -> bytes:
    return repo.raw("diff-tree", "-r", "-p", "-U3", "--full-index", "--no-renames", a, b, "--", *paths).stdout


def hunk_bodies(diff: bytes) -> list[tuple[str, tuple[str, ...]]]:
    """(path, lines) of every hunk, without line numbers."""
    found: list[tuple[str, tuple[str, ...]]] = []
    path = ""
    for block in re.split(r"(?m)^(?=diff --git |@@ )", diff.decode(errors="surrogateescape")):
        if block.startswith("diff --git "):
            match = re.match(r"diff --git a/(\S+) ", block)
            path = match[1] if match else ""
        elif block.startswith("@@ "):
            found.append((path, tuple(block.splitlines()[1:])))
    return found


def _changes(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if line[:1] in "+-")


def _conflicts(repo: Repo, merged: Merged, old: str, old_parent: str, new_parent: str) -> list[Conflict]:
    """One entry a path of the patch. git puts our text beside a file that became something else: `path~COMMIT`."""
    stages: dict[str, set[str]] = {}
    for path, have in merged.stages.items():
        stages.setdefault(path.removesuffix(f"~{old}"), set()).update(have)
    found = []
    for path, kinds in sorted(stages.items()):
        count = _upstream_has(repo, old, old_parent, new_parent, path)
        became = _became(repo, old_parent, new_parent, path)
        if "2" not in kinds and "1" in kinds and not became:
            found.append(Conflict(path, "deleted", (), count))
        else:
            replaced = became.startswith("a ")
            found.append(Conflict(path, "replaced" if replaced else "content", _marked(repo, merged.tree, path), count, became))
    return found


def _became(repo: Repo, old_parent: str, new_parent: str, path: str) -> str:
    """What upstream made of a file besides other text; "" where nothing."""
    row = repo.out("ls-tree", new_parent, "--", path)
    if not row:
        return ""
    kind = row.split(" ")[0]
    if kind == "040000":
        return "a folder now"
    if kind == "160000":
        return "a submodule now"
    new = repo.raw("cat-file", "blob", f"{new_parent}:{path}").stdout
    if kind == "120000":
        return f"a symbolic link to {new.decode(errors='replace')} now"
    old = repo.raw("cat-file", "blob", f"{old_parent}:{path}", ok=(0, 128)).stdout
    if b"\0" in new and b"\0" not in old:
        return "a binary file now"
    before, after = _line_ends(old), _line_ends(new)
    return f"its line ends are {after} now, they were {before}" if before and after and before != after else ""


def _line_ends(text: bytes) -> str:
    """LF, CRLF or mixed; "" for a text of one line."""
    pairs, ends = text.count(b"\r\n"), text.count(b"\n")
    return "" if not ends else "LF" if not pairs else "CRLF" if pairs == ends else "mixed"


def _marked(repo: Repo, tree: str, path: str) -> tuple[str, ...]:
    """Line ranges between conflict markers."""
    text = repo.raw("cat-file", "blob", f"{tree}:{path}", ok=(0, 128)).stdout.decode(errors="replace")
    ranges, start = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("<<<<<<< "):
            start = number
        elif line.startswith(">>>>>>> ") and start:
            ranges.append(f"{start}-{number}")
            start = 0
    return tuple(ranges)


def _upstream_has(repo: Repo, old: str, old_parent: str, new_parent: str, path: str) -> tuple[int, int]:
    """How many hunks of the patch, in this file, can be taken out of upstream's text."""
    diff = _diff(repo, old_parent, old, path).decode(errors="surrogateescape")
    head, *hunks = re.split(r"(?m)^(?=@@ )", diff)
    count = 0
    with scratch_index(repo) as index:
        index.out("read-tree", new_parent)
        for hunk in hunks:
            try:
                single = (head + hunk).encode(errors="surrogateescape")
                index.raw("apply", "--cached", "-R", "--check", "--recount", "--whitespace=nowarn", "-", stdin=single)
                count += 1
            except GitError:
                continue
    return count, len(hunks)


def _rest_is_upstream(repo: Repo, old: str, old_parent: str, new_parent: str) -> bool:
    """Whether the hunks outside the conflicted files are upstream as well."""
    paths = repo.lines("diff-tree", "-r", "--name-only", "--no-renames", "-z", old_parent, old)
    counts = [_upstream_has(repo, old, old_parent, new_parent, p) for p in paths]
    return all(total and have == total for have, total in counts)
