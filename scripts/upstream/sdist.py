"""Reading an sdist without trusting it."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors

__all__ = ["Member", "read_sdist"]

_LIMIT = 4 << 30  # a bomb, not a source tree


def _refuse(name: str, what: str) -> errors.Fatal:
    return errors.UnsafeArchive(
        f"archive member {name!r} {what}",
        "unpacking it could write outside its folder or make a special file",
        "this is not a vLLM sdist: nothing of it was kept; get the pinned file",
    )


def _checked(member: tarfile.TarInfo, top: str) -> str | None:
    """The member's path below the sdist's top folder, or None for the top folder itself.

    Raises:
        errors.UnsafeArchive: absolute, upward, outside `top`, or neither file, folder nor inner symbolic link.
    """
    name = member.name
    parts = name.rstrip("/").split("/")
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or "" in parts:
        raise _refuse(name, "leaves its folder")
    if parts[0] != top:
        raise _refuse(name, f"is outside {top}/")
    if any(c in name for c in '\n"'):
        raise _refuse(name, "has a name with a line end or a quote")
    if ".git" in parts:
        raise _refuse(name, "would write into a git folder")
    if member.issym():
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        if member.linkname.startswith("/") or not target.startswith(top + "/"):
            raise _refuse(name, f"links outside its folder ({member.linkname!r})")
    elif not (member.isreg() or member.isdir()):
        raise _refuse(name, "is not a plain file, folder or symbolic link")
    return "/".join(parts[1:]) or None


@dataclass(frozen=True)
class Member:
    """A file or symbolic link of an sdist: path below its top folder, git mode, content (a link's target)."""

    path: str
    mode: str
    data: bytes


def read_sdist(sdist: Path) -> Iterator[Member]:
    """The files of `NAME-VERSION.tar.gz`. Every member is checked before the first one is given out.

    Owners, dates and special bits of the archive are not taken over (a foreign owner makes git refuse the tree); only the
    executable bit is.

    Raises:
        errors.UnsafeArchive: see `_checked`.
        errors.DamagedDownload: the archive cannot be read to its end.
    """
    top = sdist.name.removesuffix(".tar.gz")
    try:
        with tarfile.open(sdist, "r:gz") as archive:
            members = [(m, path) for m in archive.getmembers() if (path := _checked(m, top))]
            if sum(m.size for m, _ in members) > _LIMIT:
                raise _refuse(sdist.name, "unpacks to more than 4 GiB")
            links = {path for m, path in members if m.issym()}
            for member, path in members:
                if any(posixpath.commonpath([link, path]) == link and link != path for link in links):
                    raise _refuse(member.name, "is written through a symbolic link")
            for member, path in members:
                if member.issym():
                    yield Member(path, "120000", member.linkname.encode())
                elif member.isreg():
                    source = archive.extractfile(member)
                    assert source is not None
                    yield Member(path, "100755" if member.mode & 0o111 else "100644", source.read())
    except (tarfile.TarError, EOFError, OSError) as error:
        raise errors.DamagedDownload(
            f"{sdist.name} cannot be unpacked ({type(error).__name__}: {error})",
            "the archive is damaged, or the disk is full",
            "check the disk, delete the file and fetch again",
        ) from error
