"""From the verified sdist to the commits: base, one a patch, overlay. Plumbing only; no work tree is touched.

Every commit id is a function of content: fixed identity, fixed date, fixed messages.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.files import TEMPORARY
from scripts.common.git import FIXED_SECONDS, GitError, Repo
from scripts.common.paths import OVERLAY_ROOTS, ROOT
from scripts.series.patch import Patch
from scripts.upstream import sdist as archive
from scripts.upstream.releases import Artifact

__all__ = [
    "JUNK",
    "OVERLAY_SUBJECT",
    "Chain",
    "OverlayFile",
    "apply_series",
    "base_message",
    "build_chain",
    "import_base",
    "inputs_key",
    "overlay_commit",
    "overlay_files",
    "scratch_index",
]

OVERLAY_SUBJECT = "overlay and csrc: the new files"
_ZERO = "0" * 40
JUNK = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}


@dataclass(frozen=True)
class Chain:
    """The commits of one application: ids, in order.

    Attributes:
        base: the imported sdist.
        patches: one a patch of the series.
        head: the overlay commit on top.
        tree: tree id of `head`.
    """

    base: str
    patches: tuple[str, ...]
    head: str
    tree: str

    @property
    def commits(self) -> int:
        """How many commits there are, base and overlay included."""
        return len(self.patches) + 2


@dataclass(frozen=True)
class OverlayFile:
    """A new file of ours: where it is here, where it lands, its mode for git."""

    source: Path
    path: str
    mode: str


def overlay_files(root: Path = ROOT) -> list[OverlayFile]:
    """Every file of overlay/ and csrc/, by landing path.

    Raises:
        errors.SeriesError: a symbolic link or special file, or a name git would quote.
    """
    found = []
    for folder, lands in OVERLAY_ROOTS.items():
        for source in sorted((root / folder).rglob("*")):
            inside = source.relative_to(root / folder)
            if JUNK.intersection(inside.parts) or source.suffix in (".pyc", TEMPORARY) or (source.is_dir() and not source.is_symlink()):
                continue
            if source.is_symlink() or not source.is_file() or any(c in str(inside) for c in '\n\t"\\'):
                raise errors.SeriesError(
                    f"{folder}/{inside} is not a plain file with a plain name",
                    "new files are copied byte for byte",
                    "replace it with a plain file",
                )
            executable = bool(source.stat().st_mode & 0o111)
            found.append(OverlayFile(source, str(Path(lands) / inside), "100755" if executable else "100644"))
    return sorted(found, key=lambda f: f.path)


@contextmanager
def scratch_index(repo: Repo) -> Iterator[Repo]:
    with tempfile.TemporaryDirectory(prefix="index-", dir=repo.git_dir) as folder:
        yield repo.with_index(Path(folder) / "index")


def base_message(artifact: Artifact) -> str:
    """Message of the base commit: which bytes it holds."""
    return f"vLLM {artifact.version}\n\nsdist: {artifact.name}\nsha256: {artifact.sha256}\n"


def _fast_import(sdist: Path, artifact: Artifact, ref: str) -> Iterator[bytes]:
    """The stream for git fast-import: one commit that holds the sdist's files, every one, whatever its .gitignore says."""
    message = base_message(artifact).encode()
    who = f"vLLM-for-gfx936 <maintainers@vllm-for-gfx936.invalid> {FIXED_SECONDS} +0000"
    yield f"commit {ref}\nauthor {who}\ncommitter {who}\ndata {len(message)}\n".encode() + message
    for member in archive.read_sdist(sdist):
        yield f'M {member.mode} inline "{member.path}"\ndata {len(member.data)}\n'.encode() + member.data + b"\n"
    yield b"done\n"


def import_base(repo: Repo, artifact: Artifact, sdist: Path) -> str:
    """The base commit of a release: reused when it is here already, else imported with every file, ignored ones too."""
    ref = f"refs/gfx936/base/{artifact.version}"
    if repo.has(ref) and repo.out("log", "-1", "--format=%B", ref).strip() == base_message(artifact).strip():
        return repo.out("rev-parse", ref)
    with tempfile.TemporaryFile() as stream:
        for part in _fast_import(sdist, artifact, ref):
            stream.write(part)
        stream.seek(0)
        repo.stream(stream, "fast-import", "--quiet", "--force", "--done", "--depth=0")
    return repo.out("rev-parse", ref)


def _blobs(repo: Repo, paths: Sequence[str]) -> dict[str, str]:
    """Blob id by path as the index has it; absent paths are missing."""
    rows = repo.lines("ls-files", "-s", "-z", "--", *(f":(literal){p}" for p in paths))
    return {row.split("\t", 1)[1]: row.split(" ")[1] for row in rows}


def _apply_one(repo: Repo, patch: Patch) -> None:
    """Apply a patch to the index: only onto the very bytes it was made for, giving the very bytes it names.

    `git apply` has no fuzz, but it does move hunks to where the context fits; the blob ids leave it no choice.
    """
    before = _blobs(repo, [t.path for t in patch.touched])
    for touched in patch.touched:
        have = before.get(touched.path, _ZERO)
        if have != touched.before:
            state = "is not there" if have == _ZERO else "has other content"
            raise errors.PatchDoesNotApply(
                f"{patch.name}: {touched.path} {state} (blob {have[:12]}, the patch was made for {touched.before[:12]})",
                "a patch is applied to exactly the bytes it was made for, never near them",
                "if upstream or an earlier patch changed on purpose, carry this one over with `make rebase` or `make refresh`",
            )
    try:
        repo.raw("apply", "--cached", "--whitespace=nowarn", "-p1", "-", stdin=patch.raw)
    except GitError as error:
        raise errors.PatchDoesNotApply(
            f"{patch.name}: git refuses it ({error.stderr.strip().splitlines()[0] if error.stderr.strip() else error.code})",
            "the patch file is damaged: its blob ids fit, its hunks do not",
            "restore the file from git, or write it again with `make refresh`",
        ) from error
    after = _blobs(repo, [t.path for t in patch.touched])
    for touched in patch.touched:
        if after.get(touched.path, _ZERO) != touched.after:
            raise errors.PatchDoesNotApply(
                f"{patch.name}: {touched.path} became blob {after.get(touched.path, _ZERO)[:12]}, the patch names {touched.after[:12]}",
                "the result is not the one that was exported",
                "restore the file from git, or write it again with `make refresh`",
            )


def apply_series(repo: Repo, base: str, patches: Sequence[Patch]) -> tuple[str, ...]:
    """One commit a patch on `base`; their ids.

    Raises:
        errors.PatchDoesNotApply: see `_apply_one`.
    """
    commits: list[str] = []
    with scratch_index(repo) as index:
        index.out("read-tree", base)
        for patch in patches:
            _apply_one(index, patch)
            parent = commits[-1] if commits else base
            commits.append(repo.commit_tree(index.out("write-tree"), parent, patch.message))
    return tuple(commits)


def overlay_commit(repo: Repo, parent: str, files: Sequence[OverlayFile]) -> tuple[str, str]:
    """The commit of all new files on `parent`, and its tree.

    Raises:
        errors.SeriesError: a file would replace one that upstream or a patch has.
    """
    with scratch_index(repo) as index:
        index.out("read-tree", parent)
        taken = _blobs(index, [f.path for f in files]) if files else {}
        if taken:
            path = sorted(taken)[0]
            raise errors.SeriesError(
                f"overlay: {path} exists upstream",
                "the overlay adds files, it never replaces one",
                "choose another name, or change upstream's file by a patch",
            )
        if files:
            names = "".join(f"{f.source}\n" for f in files)
            blobs = repo.out("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=os.fsencode(names)).splitlines()
            rows = "".join(f"{f.mode} {blob}\t{f.path}\n" for f, blob in zip(files, blobs, strict=True))
            index.raw("update-index", "--add", "--index-info", stdin=rows.encode())
        tree = index.out("write-tree")
    return repo.commit_tree(tree, parent, OVERLAY_SUBJECT + "\n"), tree


def build_chain(repo: Repo, base: str, patches: Sequence[Patch], files: Sequence[OverlayFile]) -> Chain:
    """All commits from base to head, in the object store only."""
    commits = apply_series(repo, base, patches)
    head, tree = overlay_commit(repo, commits[-1] if commits else base, files)
    return Chain(base, commits, head, tree)


def inputs_key(artifact: Artifact, patches: Mapping[str, bytes], files: Sequence[OverlayFile]) -> str:
    """Digest of everything the tree is a function of; equal keys mean that there is nothing to do."""
    digest = hashlib.sha256(base_message(artifact).encode())
    for name, raw in patches.items():
        digest.update(f"\0patch {name} {len(raw)}\0".encode() + raw)
    for file in files:
        data = file.source.read_bytes()
        digest.update(f"\0file {file.path} {file.mode} {len(data)}\0".encode() + data)
    return digest.hexdigest()
