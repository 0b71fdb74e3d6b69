"""Take the files a person corrected, and refuse what would not be a patch: markers, editors' leftovers, Python that does not parse."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.git import Repo
from scripts.common.paths import shown
from scripts.rebase.state import WORK, RunState
from scripts.series.commits import scratch_index

__all__ = ["Taken", "leftover", "taken"]

# Names that editors, merge tools and `patch` leave beside a file; git's own `path~COMMIT` of a file that became something else.
_LEFTOVERS = re.compile(
    r"(?i)(.*\.(orig|rej|bak|sw[a-p]|un~|tmp)|.*~|.*~[0-9a-f]{40}|#.*#|\.#.*|4913|\.ds_store|\.netrwhist|.*_(backup|base|local|remote)_\d+(\..*)?)"
)
_MARKER = re.compile(rb"(?m)^(<{7}|>{7}|\|{7})([ \r]|$)")


@dataclass(frozen=True)
class Taken:
    """What a correction carries: the tree, and (path, added lines, deleted lines) of every file it changes."""

    tree: str
    files: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        rows = [f"  {path}: +{added} -{deleted}" for path, added, deleted in self.files]
        return "\n".join([f"carried: {len(rows)} file(s)", *rows])


def leftover(path: str) -> bool:
    """Whether a new file of this name is an editor's or a merge tool's, nobody's work."""
    return bool(_LEFTOVERS.fullmatch(path.rsplit("/", 1)[-1]))


def taken(repo: Repo, state: RunState, work: Path = WORK) -> Taken:
    """The tree of the corrected files.

    Raises:
        errors.RebaseConflict: the files are not finished; the sentence names the first one and what is wrong with it.
    """
    if not work.is_dir():
        raise errors.MissingInput(
            f"{shown(work)} is gone",
            "the corrected files are read from there",
            f"`{state.asked}` lays it out again",
        )
    for path, kind in sorted(state.conflicts.items()):
        if kind == "deleted" and (work / path).exists():
            raise errors.RebaseConflict(
                f"{path} is still in {shown(work)}",
                "upstream deleted or moved it, so the patch's change must go to its new place",
                f"make the change where the code went, delete {shown(work / path)}, then `make rebase-continue` (or DROP=1 to leave the patch out)",
            )
    with scratch_index(Repo(repo.git_dir, work)) as index:
        index.out("read-tree", state.tree)
        index.out("add", "-A", "-f", ".", ":(exclude)**/__pycache__/**", ":(exclude)__pycache__/**")
        tree = index.out("write-tree")
    changed = repo.lines("diff-tree", "-r", "--name-only", "--no-renames", "-z", state.parent, tree)
    for path in changed:
        if what := _unfinished(repo, state.parent, tree, path):
            raise errors.RebaseConflict(
                f"{path} {what}",
                "it would become part of the patch",
                f"correct or delete {shown(work / path)}, then `make rebase-continue` (or DROP=1 to leave the patch out)",
            )
    if not changed:
        raise errors.RebaseConflict(
            "nothing of the patch is left: the corrected files are upstream's own",
            "a patch that changes nothing cannot stay in the series",
            "make the change, or say that the patch is not needed any more: `make rebase-continue DROP=1`",
        )
    counted = [row.split("\t", 2) for row in repo.lines("diff-tree", "-r", "--numstat", "--no-renames", "-z", state.parent, tree)]
    return Taken(tree, tuple((path, added, deleted) for added, deleted, path in counted))


def _unfinished(repo: Repo, parent: str, tree: str, path: str) -> str:
    """What is wrong with a changed file, as the end of a sentence; "" where nothing."""

    def of(root: str) -> bytes | None:
        done = repo.raw("cat-file", "blob", f"{root}:{path}", ok=(0, 128))
        return done.stdout if done.returncode == 0 else None

    before, now = of(parent), of(tree)
    if now is None:
        return ""
    if before is None and leftover(path):
        return "is a leftover of an editor or a merge tool"
    if len(_MARKER.findall(now)) > len(_MARKER.findall(before or b"")):
        return "still has conflict markers"
    if path.endswith(".py") and (fault := _syntax(now)) and (before is None or not _syntax(before)):
        return f"is no Python ({fault})"
    return ""


def _syntax(text: bytes) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape of upstream's is not ours to judge
            ast.parse(text)
    except (SyntaxError, ValueError) as error:
        return f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
    return ""
