"""From commits back to files: patch bytes, and the journal that writes many files as if they were one."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from scripts.common import errors
from scripts.common.files import TEMPORARY, atomic_write
from scripts.common.git import Repo
from scripts.common.outside import StrictError, Words, read_json
from scripts.common.paths import BUILD, PATCHES, ROOT, shown
from scripts.series.patch import parse_patch, slug

__all__ = ["export_patch", "export_series", "finish_journal", "overlay_home", "series_text", "write_all"]

JOURNAL = BUILD / "refresh-journal.json"


def export_patch(repo: Repo, commit: str) -> tuple[str, bytes]:
    """(file name, bytes) of a commit: the same on every machine, for every git configuration.

    Raises:
        errors.SeriesError: the result would not be read back as the same patch.
    """
    subject = repo.out("log", "-1", "--format=%s", commit)
    raw = repo.raw(
        "format-patch",
        "-1",
        "--stdout",
        "--keep-subject",
        "--zero-commit",
        "--no-signature",
        "--full-index",
        "--no-stat",
        "--no-renames",
        "--no-numbered",
        "--no-attach",
        "--no-thread",
        "--no-cover-letter",
        "--no-base",
        "--no-ext-diff",
        "--no-textconv",
        "--no-encode-email-headers",
        "--diff-algorithm=myers",
        "-U3",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        commit,
    ).stdout
    name = slug(subject)
    parsed = parse_patch(name, raw)
    if parsed.subject != subject:
        raise errors.SeriesError(
            f"commit {commit[:12]}: subject {subject!r} does not survive the export",
            "the file would be another patch",
            "shorten the subject to one plain line",
        )
    return name, raw


def export_series(repo: Repo, commits: Sequence[str]) -> dict[str, bytes]:
    """Every patch of a series in order.

    Raises:
        errors.SeriesError: two commits have the same subject.
    """
    out: dict[str, bytes] = {}
    for commit in commits:
        name, raw = export_patch(repo, commit)
        if name in out:
            raise errors.SeriesError(
                f"two commits would both be {name}", "the file name is the slug of the subject", "give one of them another subject"
            )
        out[name] = raw
    return out


def series_text(names: Sequence[str]) -> bytes:
    """patches/series: its comment lines are ours."""
    return ("# Order of the patches, one file name a line. Written by `make refresh`.\n" + "".join(f"{n}\n" for n in names)).encode()


def overlay_home(path: str) -> Path:
    """Where a new file of the tree lives in this repository."""
    return ROOT / path if path.startswith("csrc/") else ROOT / "overlay" / path


def write_all(files: Mapping[Path, bytes | None], executable: frozenset[Path] = frozenset()) -> None:
    """Write (or, for None, delete) files so that a killed run is completed by the next: journal first, then the files."""
    rows = [
        {
            "path": str(p.relative_to(ROOT)),
            "data": None if d is None else base64.b64encode(d).decode(),
            "x": p in executable,
        }
        for p, d in files.items()
        if (p.read_bytes() if p.is_file() else None) != d
    ]
    if not rows:
        return
    atomic_write(JOURNAL, json.dumps(rows).encode())
    finish_journal()


@dataclass(frozen=True)
class _Row:
    """A file that a refresh decided to write: its path here, its content (null: delete it), whether it is executable."""

    path: Annotated[str, Words(r"(patches|overlay|csrc)(/(?!\.\.?(/|$))[^/]+)+", "a file of patches/, overlay/ or csrc/")]
    data: Annotated[str, Words(r"[A-Za-z0-9+/]*={0,2}", "base64")] | None
    x: bool


def finish_journal() -> None:
    """Complete what a killed `refresh` decided to write, and sweep the part of a file that it left. The caller holds the build lock."""
    for top in (PATCHES, ROOT / "overlay", ROOT / "csrc"):
        for part in top.rglob(f"*{TEMPORARY}"):
            part.unlink()
    if not JOURNAL.is_file():
        return
    try:
        rows: tuple[_Row, ...] = read_json(tuple[_Row, ...], JOURNAL, 1 << 30, any_text=True)
    except StrictError as error:
        raise errors.SeriesError(
            f"{shown(JOURNAL)} cannot be used", str(error), f"delete build/{JOURNAL.name} and run `make refresh` again"
        ) from error
    for row in rows:
        path = ROOT / row.path
        if row.data is None:
            path.unlink(missing_ok=True)
        else:
            atomic_write(path, base64.b64decode(row.data))
            if row.x:
                path.chmod(0o755)
    JOURNAL.unlink()
