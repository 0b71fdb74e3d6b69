"""The one three-way merge: a commit's change on another parent, renames followed, in the object store only."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.common.git import Repo

__all__ = ["Merged", "merge", "tree_of"]

_RENAMES = ("-c", "merge.renames=true", "-c", "merge.directoryRenames=true")


@dataclass(frozen=True)
class Merged:
    """What git made of it.

    Attributes:
        tree: the resulting tree, with conflict markers in it where `stages` is not empty; "" where git could not merge at all.
        stages: path -> its conflict stages ("1" before the change, "2" the new parent's, "3" the change's).
        error: git's own words where there is no tree.
    """

    tree: str
    stages: dict[str, frozenset[str]]
    error: str = ""

    @property
    def clean(self) -> bool:
        """Whether no person is needed."""
        return bool(self.tree) and not self.stages


def tree_of(repo: Repo, commit: str) -> str:
    """Tree id of a commit."""
    return repo.out("rev-parse", f"{commit}^{{tree}}")


def merge(repo: Repo, old: str, old_parent: str, new_parent: str) -> Merged:
    """The change old_parent..old on new_parent."""
    ours = repo.commit_tree(tree_of(repo, new_parent), old_parent, "ours\n")
    done = repo.raw(*_RENAMES, "merge-tree", "--write-tree", "-z", "--no-messages", ours, old, ok=(0, 1, 128))
    if done.returncode == 128:
        return Merged("", {}, done.stderr.decode(errors="replace").strip())
    tree, *entries = done.stdout.decode(errors="surrogateescape").split("\0")
    stages: dict[str, frozenset[str]] = {}
    for entry in entries if done.returncode else ():  # `mode oid stage<TAB>path`
        meta, _, path = entry.partition("\t")
        if path:
            stages[path] = stages.get(path, frozenset()) | {meta.split(" ")[2]}
    return Merged(tree.strip(), stages)
