"""The series: patches/series (order), the patch files, and the rules each of them keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.outside import MOST_BYTES, StrictError, read_bytes
from scripts.common.paths import PATCHES, shown

__all__ = ["STATUSES", "Patch", "Touched", "load", "parse_patch", "problems", "read_series", "slug"]

# Closed vocabulary for a patch's standing upstream (after Debian's DEP-3 and OpenEmbedded's Upstream-Status).
STATUSES = ("pending", "submitted", "inappropriate", "denied", "backport")
_FIELDS = ("Why", "Drop-when", "Upstream-Status")
_HEADER = re.compile(r"\AFrom 0{40} Mon Sep 17 00:00:00 2001\n")


@dataclass(frozen=True)
class Touched:
    """One file of a patch: path, blob id it was made for, blob id it makes (all zero: no file on that side)."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Patch:
    """A patch file, parsed.

    Attributes:
        name: file name.
        raw: bytes.
        message: subject, blank line, body, ending in one line end.
        touched: files in order.
    """

    name: str
    raw: bytes
    message: str
    touched: tuple[Touched, ...]

    @property
    def subject(self) -> str:
        """First line of the message."""
        return self.message.split("\n", 1)[0]


def slug(subject: str) -> str:
    """File name of a patch with this subject."""
    return re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")[:72].rstrip("-") + ".patch"


def _broken(name: str, what: str, do: str = "write it again with `make refresh`") -> errors.Fatal:
    return errors.SeriesError(f"patches/{name}: {what}", "a patch that cannot be read exactly cannot be applied exactly", do)


def parse_patch(name: str, raw: bytes) -> Patch:
    """Parse a patch as `refresh` writes it.

    Raises:
        errors.SeriesError: it has another form, lacks full blob ids, or touches a path outside the tree.
    """
    text = raw.decode("utf-8", errors="surrogateescape")
    if not _HEADER.match(text):
        raise _broken(name, "does not start with the zero-commit header that `refresh` writes")
    head, _, diff = text.partition("\n\ndiff --git ")
    diff = "diff --git " + diff if diff else ""
    match = re.search(r"^From: [^\n]*(?:\n [^\n]*)*\nDate: [^\n]*\nSubject: (.*?)\n\n(.*)\Z", head + "\n", re.S | re.M)
    if not match or not diff:
        raise _broken(name, "has no From, Date, Subject, body and diff in the form that `refresh` writes")
    subject = re.sub(r"\n[ \t]+", " ", match[1])
    body = match[2].strip("\n").removesuffix("\n---")
    touched = []
    for block in re.split(r"(?m)^(?=diff --git )", diff)[1:]:
        paths = re.match(r'diff --git a/([^\s"]+) b/([^\s"]+)\n', block)
        ids = re.search(r"(?m)^index ([0-9a-f]{40})\.\.([0-9a-f]{40})", block)
        if not paths or paths[1] != paths[2]:
            raise _broken(name, "touches a path that is renamed, quoted or malformed: " + block.split("\n", 1)[0])
        path = paths[1]
        if path.startswith("/") or any(part in ("..", ".git", "") for part in path.split("/")):
            raise _broken(name, f"touches {path!r}, which leaves the tree", "remove that file from the patch")
        if not ids:
            raise _broken(name, f"has no full blob ids for {path}")
        if "120000" in block.split("@@", 1)[0]:
            raise _broken(name, f"makes or changes a symbolic link at {path}", "patches change plain files only")
        touched.append(Touched(path, ids[1], ids[2]))
    if not touched:
        raise _broken(name, "changes nothing", "remove it from the series")
    return Patch(name, raw, f"{subject}\n\n{body}\n", tuple(touched))


def read_series(folder: Path = PATCHES) -> list[str]:
    """File names in order.

    Raises:
        errors.SeriesError: duplicates, a path, a missing file, or a patch that the series does not name.
    """
    series = folder / "series"
    try:
        lines = read_bytes(series, MOST_BYTES).decode("utf-8").splitlines()
    except (OSError, StrictError, UnicodeDecodeError) as error:
        raise errors.MissingInput(
            f"{shown(series)} cannot be read ({getattr(error, 'strerror', error)})",
            "it holds the order of the patches",
            "restore it from git",
        ) from error
    names = [line for line in (entry.strip() for entry in lines) if line and not line.startswith("#")]
    for name in names:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*\.patch", name):
            raise errors.SeriesError(
                f"{shown(series)} names {name!r}", "an entry is a file name like some-subject.patch, no path", "correct the line"
            )
        if names.count(name) > 1:
            raise errors.SeriesError(f"{shown(series)} names {name} twice", "a patch applies once", "remove one of the lines")
        if not (folder / name).is_file():
            raise errors.SeriesError(
                f"{shown(series)} names {name}, which is not in {shown(folder)}/",
                "a series with a hole would build another tree",
                "restore the file, or remove the line",
            )
    stray = sorted(p.name for p in folder.glob("*.patch") if p.name not in names)
    if stray:
        raise errors.SeriesError(
            f"{shown(folder)}/{stray[0]} is not in {shown(series)}", "it would be silently left out", "add it to the series, or delete it"
        )
    return names


def load(folder: Path = PATCHES) -> list[Patch]:
    """The series, parsed, in order."""
    return [parse_patch(name, (folder / name).read_bytes()) for name in read_series(folder)]


def problems(patch: Patch) -> list[str]:
    """What a patch's message lacks: every rule of CONTRIBUTING.md that it breaks, one sentence each."""
    found = []
    if patch.name != slug(patch.subject):
        found.append(f"file name is not the slug of its subject ({slug(patch.subject)})")
    body = patch.message.split("\n", 2)[2] if patch.message.count("\n") > 1 else ""
    for field in _FIELDS:
        values = re.findall(rf"(?m)^{field}:[ \t]*(.*)$", body)
        if len(values) != 1:
            found.append(f"body has {len(values)} `{field}:` lines, one is needed")
        elif not values[0].strip() or values[0].strip().upper().startswith("TODO"):
            found.append(f"`{field}:` says nothing")
        elif field == "Upstream-Status" and values[0].split()[0] not in STATUSES:
            found.append(f"`Upstream-Status: {values[0]}` is not one of {', '.join(STATUSES)}")
    for line in patch.raw.split(b"\n\ndiff --git ", 1)[1].split(b"\n"):
        if line.startswith(b"+") and not line.startswith(b"+++") and line != line.rstrip():
            found.append("adds trailing white space")
            break
    return found
