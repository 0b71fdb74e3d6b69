"""Assemble a wheel from bytes: pure and deterministic, the same entries give the same file.

Nothing here knows vLLM. Order, dates, modes and the compression level are fixed, so the result depends only on the
entries (and on the zlib in use, which decides the compressed bytes but not the content).
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from scripts.common import errors

__all__ = ["DEFAULT_EPOCH", "Entry", "WheelName", "source_date", "wheel_text", "write_wheel"]

DEFAULT_EPOCH = 1_775_001_600  # 2026-04-01, the day after the pinned release; any fixed day will do
_OLDEST_ZIP_DATE = 315_532_800  # 1980-01-01: the zip format knows nothing older
_LATEST_ZIP_DATE = 4_354_819_198  # 2107-12-31


@dataclass(frozen=True)
class Entry:
    """One file of the wheel: its path inside (posix, relative) and its content."""

    path: str
    data: bytes
    executable: bool = False

    def __post_init__(self) -> None:
        plain = PurePosixPath(self.path)
        if plain.is_absolute() or ".." in plain.parts or "\\" in self.path or str(plain) != self.path or self.path == ".":
            raise ValueError(f"{self.path!r} is not a path inside a wheel")


@dataclass(frozen=True)
class WheelName:
    """The parts of a wheel's file name; `tag` is `python-abi-platform`."""

    name: str
    version: str
    tag: str

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.version}-{self.tag}.whl"

    @property
    def dist_info(self) -> str:
        return f"{self.name}-{self.version}.dist-info"


def source_date(environ: Mapping[str, str]) -> int:
    """The date of every entry: SOURCE_DATE_EPOCH where set (whole seconds), else a fixed day.

    Raises:
        errors.UserError: the variable holds anything else; ignored silently it would look obeyed.
    """
    raw = environ.get("SOURCE_DATE_EPOCH")
    if raw is None:
        return DEFAULT_EPOCH
    if not (raw.isascii() and raw.isdigit()):
        raise errors.UserError(
            f"SOURCE_DATE_EPOCH={raw!r} is not a number of seconds",
            "it becomes the date of every file in the wheel",
            "unset it, or give a whole number",
        )
    return min(max(int(raw), _OLDEST_ZIP_DATE), _LATEST_ZIP_DATE)


def wheel_text(tag: str, *, pure: bool, generator: str) -> bytes:
    """The text of a wheel's WHEEL file. Compressed tag sets (`a.b`) are expanded, as the format asks."""
    pythons, abis, platforms = (part.split(".") for part in tag.split("-"))
    tags = "".join(f"Tag: {p}-{a}-{m}\n" for p in pythons for a in abis for m in platforms)
    return f"Wheel-Version: 1.0\nGenerator: {generator}\nRoot-Is-Purelib: {str(pure).lower()}\n{tags}".encode()


def write_wheel(path: Path, dist_info: str, entries: Iterable[Entry], epoch: int) -> None:
    """Write the wheel to `path`; its RECORD is made here. The caller renames it into place.

    Raises:
        ValueError: two entries share a path.
    """
    ordered = sorted(entries, key=lambda entry: entry.path)
    for left, right in itertools.pairwise(ordered):
        if left.path == right.path:
            raise ValueError(f"two entries of the wheel have the path {left.path}")
    record = f"{dist_info}/RECORD"
    lines = [f"{_record_path(entry.path)},sha256={_urlsafe_digest(entry.data)},{len(entry.data)}" for entry in ordered]
    text = "\n".join([*lines, f"{record},,", ""]).encode()
    date = time.gmtime(epoch)[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for entry in [*ordered, Entry(record, text)]:
            info = zipfile.ZipInfo(entry.path, date)
            info.create_system = 3  # unix, whatever machine packs
            info.external_attr = (0o100755 if entry.executable else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, entry.data)


def _record_path(path: str) -> str:
    # RECORD is CSV, and upstream ships tuned configurations named "E=1,N=14336,...json".
    return f'"{path}"' if "," in path else path


def _urlsafe_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
