"""Unpacking an sdist without trusting it."""

from __future__ import annotations

import posixpath
import shutil
import tarfile
from pathlib import Path

from scripts import errors
from scripts.files import new_folder

__all__ = ["unpack_sdist"]

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
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise _refuse(name, "leaves its folder")
    if parts[0] != top:
        raise _refuse(name, f"is outside {top}/")
    if ".git" in parts:
        raise _refuse(name, "would write into a git folder")
    if member.issym():
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        if member.linkname.startswith("/") or not target.startswith(top + "/"):
            raise _refuse(name, f"links outside its folder ({member.linkname!r})")
    elif not (member.isreg() or member.isdir()):
        raise _refuse(name, "is not a plain file, folder or symbolic link")
    return "/".join(parts[1:]) or None


def unpack_sdist(sdist: Path, final: Path) -> None:
    """Unpack `NAME-VERSION.tar.gz` to `final`: all of it, or nothing.

    Every member is checked before the first byte is written. Owners, dates and special bits of the archive are not
    taken over (a foreign owner makes git refuse the tree); only the executable bit is.

    Raises:
        errors.UnsafeArchive: see `_checked`.
        errors.DamagedDownload: the archive cannot be read to its end.
    """
    top = sdist.name.removesuffix(".tar.gz")
    try:
        with tarfile.open(sdist, "r:gz") as archive, new_folder(final) as work:
            members = [(m, path) for m in archive.getmembers() if (path := _checked(m, top))]
            if sum(m.size for m, _ in members) > _LIMIT:
                raise _refuse(sdist.name, "unpacks to more than 4 GiB")
            links = {path for m, path in members if m.issym()}
            for member, path in members:
                if any(posixpath.commonpath([link, path]) == link and link != path for link in links):
                    raise _refuse(member.name, "is written through a symbolic link")
                target = work / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if member.isdir():
                    target.mkdir(exist_ok=True)
                elif member.issym():
                    target.symlink_to(member.linkname)
                else:
                    source = archive.extractfile(member)
                    assert source is not None
                    with source, target.open("wb") as out:
                        shutil.copyfileobj(source, out, 1 << 20)
                    target.chmod(0o755 if member.mode & 0o111 else 0o644)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise errors.DamagedDownload(
            f"{sdist.name} cannot be unpacked ({type(error).__name__}: {error})",
            "the archive is damaged, or the disk is full",
            "check the disk, delete the file and fetch again",
        ) from error
