"""fetch: the pinned upstream sdist into the cache, verified by size and sha256."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.files import hold, say
from scripts.common.paths import OFFLINE, cache_dir, kept, shown
from scripts.upstream import index
from scripts.upstream.releases import Artifact, read_pin

__all__ = ["fetch", "main"]


def _from_user(artifact: Artifact, given: Path, final: Path, variable: str) -> Path:
    if not given.is_file():
        raise errors.MissingInput(
            f"{variable}={given} is not a file",
            "it has to be the pinned file itself",
            f"point it at {artifact.name}, or unset it to download",
        )
    index.verify(artifact, given)
    part = final.with_suffix(".given")
    shutil.copyfile(given, part)
    index.verify(artifact, part)
    part.replace(final)
    return final


def fetch(artifact: Artifact, given: Path | None = None, variable: str = "UPSTREAM_SDIST") -> Path:
    """The verified file in the cache: from the cache, from `given`, or from the index (resumed where it broke off).

    `variable` is the name by which a person gave `given`.

    The bytes are hashed on every call: a cache that was damaged since is refused, not trusted.

    Raises:
        errors.DamagedDownload, errors.NoNetwork, errors.MissingInput
    """
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / artifact.name
    with hold(folder / f".{artifact.name}.lock", "fetch"):
        if given is not None:
            return _from_user(artifact, given, final, variable)
        if final.exists():
            index.verify(artifact, final)
            return final
        for there in kept(artifact.name):
            try:
                return _from_user(artifact, there, final, shown(there.parent))
            except errors.DamagedDownload:
                if there.parent == OFFLINE:
                    raise  # nothing is fetched there; a cache that cannot be written cannot be mended either
        part = folder / f"{artifact.name}.part"
        say(f"fetching {artifact.name} ({artifact.size / 1e6:.1f} MB)")
        index.download(artifact, part)
        try:
            index.verify(artifact, part)
        except errors.DamagedDownload:
            part.unlink()  # resuming on top of wrong bytes would fail forever
            raise
        part.replace(final)
    return final


def fetch_pinned() -> Path:
    """The pinned sdist, honouring UPSTREAM_SDIST."""
    given = os.environ.get("UPSTREAM_SDIST")
    return fetch(read_pin().sdist, Path(given) if given else None)


def main(argv: Sequence[str]) -> int:
    """Command line of `fetch`."""
    parser = argparse.ArgumentParser(prog="fetch", description=__doc__)
    parser.add_argument("--version", help="another known release than the pinned one")
    args = parser.parse_args(argv)
    path = fetch(read_pin().release(args.version)) if args.version else fetch_pinned()
    print(shown(path))
    return 0
