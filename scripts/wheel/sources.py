"""The checked sources of a build, read from git objects: what is packed is what the tree id names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scripts.common import errors
from scripts.common.git import GitError, Repo

__all__ = ["Sources", "package_files", "read_sources"]

# What the packer needs of the tree: the package, and the files its metadata comes from.
_NEEDED = ("vllm", "requirements", "LICENSE", "PKG-INFO", "pyproject.toml")


@dataclass(frozen=True)
class Sources:
    """The tree of one commit.

    Attributes:
        base: first commit, the untouched upstream release.
        head: last commit.
        tree: git tree id of `head`.
        files: path -> content, of the parts the packer needs.
    """

    base: str
    head: str
    tree: str
    files: Mapping[str, bytes]


def read_sources(repo: Repo, revision: str = "HEAD") -> Sources:
    """Read the packer's part of `revision`.

    Raises:
        errors.MissingInput: there is no such commit: nothing was applied yet.
        errors.CannotBuild: the package holds something else than plain files.
    """
    try:
        head = repo.out("rev-parse", "--verify", f"{revision}^{{commit}}")
    except (GitError, FileNotFoundError, NotADirectoryError) as error:
        raise errors.MissingInput(
            f"{repo.work_tree.name} holds no applied tree", "the wheel is packed from its commits", "run `make apply`"
        ) from error
    rows: list[tuple[str, str]] = []
    for line in repo.lines("ls-tree", "-r", "-z", head, "--", *_NEEDED):
        facts, path = line.split("\t", 1)
        mode, _, blob = facts.split()
        if mode not in ("100644", "100755"):
            raise errors.CannotBuild(
                f"{path} is not a plain file (git mode {mode})",
                "a wheel holds plain files only",
                "remove it in a patch",
            )
        rows.append((path, blob))
    answer = repo.raw("cat-file", "--batch", stdin="".join(f"{blob}\n" for _, blob in rows).encode()).stdout
    files: dict[str, bytes] = {}
    at = 0
    for path, _ in rows:
        line_end = answer.index(b"\n", at)
        size = int(answer[at:line_end].split()[2])
        files[path] = answer[line_end + 1 : line_end + 1 + size]
        at = line_end + size + 2
    base = repo.out("rev-list", "--max-parents=0", head)
    return Sources(base, head, repo.out("rev-parse", f"{head}^{{tree}}"), files)


def package_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that go into the package: all of `vllm/` but tests and what a build or an import leaves there.

    Upstream's `package_data` patterns are not used: they list some data files only, and a new one (ours, or upstream's)
    would be missing from the wheel without a word.
    """
    return {path: data for path, data in files.items() if path.startswith("vllm/") and not _left_out(path)}


def _left_out(path: str) -> bool:
    folders = path.split("/")[:-1]
    return "tests" in folders or "__pycache__" in folders or path.endswith((".pyc", ".so")) or path == "vllm/_version.py"
