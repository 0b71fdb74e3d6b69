"""A source tree that somebody gives, as a base commit. The folder is only read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from scripts.common import errors
from scripts.common.git import Repo
from scripts.common.paths import shown
from scripts.drift import scan
from scripts.series.commits import JUNK, scratch_index
from scripts.upstream.releases import Pin

__all__ = ["import_folder", "release_of"]


def release_of(pin: Pin, folder: Path, asked: str | None) -> str:
    """The known release that a folder is made from: as asked, else as the drift scan tells it (PKG-INFO, folder name).

    The series is stepped there as to the release itself, so that a folder and an sdist of the same tree get the same answer.

    Raises:
        errors.MissingInput: it is no vLLM source tree.
        errors.UnknownVersion: the asked release is not in upstream.toml.
    """
    if not (folder / "vllm").is_dir():
        raise errors.MissingInput(
            f"{shown(folder)} is no vLLM source tree", "it has no vllm folder", "give the folder that holds CMakeLists.txt and vllm/"
        )
    return pin.release(asked).version if asked else scan.release_of(folder)


def import_folder(repo: Repo, folder: Path) -> str:
    """The commit of every file of a folder, git's own folders and compiled Python left out.

    Raises:
        errors.MissingInput: a name that cannot be a path of a patch, or a special file.
    """
    root = folder.resolve()
    files = list(_files(root))
    with scratch_index(Repo(repo.git_dir, root)) as index:
        plain = [(p, mode) for p, mode in files if mode != "120000"]
        listed = "".join(f"{root / p}\n" for p, _ in plain).encode(errors="surrogateescape")
        blobs = dict(
            zip(
                (p for p, _ in plain),
                repo.out("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=listed).splitlines(),
                strict=True,
            )
        )
        for path, mode in files:
            if mode == "120000":
                blobs[path] = repo.out("hash-object", "-w", "--stdin", stdin=os.fsencode((root / path).readlink()))
        rows = "".join(f"{mode} {blobs[p]}\t{p}\n" for p, mode in files)
        index.raw("update-index", "--add", "--index-info", stdin=rows.encode(errors="surrogateescape"))
        tree = index.out("write-tree")
    return repo.commit_tree(tree, None, f"the tree of {folder.name}\n")


def _files(root: Path) -> Iterator[tuple[str, str]]:
    """(path inside, mode as git has it), in order. A link is a link, wherever it leads."""
    for top, folders, names in os.walk(root):
        links = [d for d in folders if (Path(top) / d).is_symlink()]
        folders[:] = sorted(d for d in folders if d not in JUNK and d != ".git" and d not in links)
        for name in sorted([*names, *links]):
            path = Path(top) / name
            inside = path.relative_to(root).as_posix()
            if name == ".git" or name.endswith(".pyc"):
                continue
            if any(c in inside for c in '\n\t"\\') or not (path.is_symlink() or path.is_file()):
                raise errors.MissingInput(
                    f"{inside!r} in {shown(root)} is no plain file with a plain name",
                    "it cannot be carried as text",
                    "take it out of a copy of the folder, and give the copy",
                )
            yield inside, "120000" if path.is_symlink() else "100755" if path.stat().st_mode & 0o111 else "100644"
