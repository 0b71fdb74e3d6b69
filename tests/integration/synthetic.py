"""A small project of its own: the real tools, invented upstream releases, an invented series."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.common.git import new_repository
from scripts.common.paths import ROOT
from scripts.series.export import export_series, series_text
from scripts.upstream.releases import Artifact
from scripts.upstream.update import render

READER = "overlay/vllm/dcu/records"  # the tools read every file from outside through it

__all__ = ["BODY", "Project", "lines", "make_project"]

BODY = "Why: a test.\nDrop-when: never.\nUpstream-Status: inappropriate\n"


def lines(*changed: tuple[int, str], count: int = 40, word: str = "line") -> str:
    """A text of numbered lines, some replaced."""
    table = dict(changed)
    return "".join(table.get(n, f"{word} {n}\n") for n in range(1, count + 1))


@dataclass(frozen=True)
class Project:
    """A copy of the tools with its own upstream.toml, patches and cache."""

    root: Path

    def run(self, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """One verb, as a user runs it."""
        return subprocess.run(
            [sys.executable, "-m", "scripts", *argv], cwd=self.root, env=self.environment(env), capture_output=True, text=True, check=False
        )

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """The user's environment with this project's cache, and no network to fall back to."""
        return {**os.environ, "GFX936_CACHE": str(self.root / "cache"), "TOOLS_PYTHON": sys.executable, **(env or {})}

    def snapshot(self) -> dict[str, bytes]:
        """Every file that belongs to the project itself, with its bytes."""
        tops = ("patches", "overlay", "csrc", "upstream.toml")
        files = [p for t in tops for p in ([self.root / t] if (self.root / t).is_file() else sorted((self.root / t).rglob("*")))]
        return {str(p.relative_to(self.root)): p.read_bytes() for p in files if p.is_file()}

    def result(self, version: str) -> dict[str, str]:
        """The patches a finished rebase wrote, by file name."""
        folder = self.root / "build" / "rebase" / version / "patches"
        return {p.name: p.read_text() for p in sorted(folder.glob("*.patch"))}


def _sdist(folder: Path, version: str, files: Mapping[str, str]) -> Artifact:
    name = f"vllm-{version}.tar.gz"
    with tarfile.open(folder / name, "w:gz") as tar:
        for path, text in sorted({"PKG-INFO": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", **files}.items()):
            info = tarfile.TarInfo(f"vllm-{version}/{path}")
            if text.startswith("link:"):
                info.type, info.linkname = tarfile.SYMTYPE, text.removeprefix("link:")
            else:
                info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()[: info.size]))
    data = (folder / name).read_bytes()
    return Artifact("vllm", version, name, hashlib.sha256(data).hexdigest(), len(data))


def _export(folder: Path, base: Mapping[str, str], series: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, bytes]:
    """Patch files: each (subject, whole new text of the files it changes) on top of the one before."""
    folder.mkdir()
    repo = new_repository(folder)
    parent, commits = None, []
    for message, files in [("base", base), *((f"{s}\n\n{BODY}", f) for s, f in series)]:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        repo.out("add", "-A", "-f", ".")
        parent = repo.commit_tree(repo.out("write-tree"), parent, message)
        commits.append(parent)
    return export_series(repo, commits[1:])


def make_project(
    tmp: Path,
    releases: Mapping[str, Mapping[str, str]],
    pinned: str,
    series: Sequence[tuple[str, Mapping[str, str]]],
    overlay: Mapping[str, str],
) -> Project:
    """Lay the project out below `tmp`. `releases`: version -> path -> text, or "link:TARGET"."""
    root = tmp / "project"
    shutil.copytree(ROOT / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "requirements", root / "requirements")
    cache = root / "cache"
    cache.mkdir()
    sdists = [_sdist(cache, v, {"vllm/__init__.py": "", **files}) for v, files in releases.items()]
    (root / "upstream.toml").write_bytes(render(pinned, 3, sdists, {}))
    (root / "patches").mkdir()
    base = {"vllm/__init__.py": "", "PKG-INFO": f"Metadata-Version: 2.1\nName: vllm\nVersion: {pinned}\n", **releases[pinned]}
    patches = _export(tmp / "series", base, series)
    for name, raw in patches.items():
        (root / "patches" / name).write_bytes(raw)
    (root / "patches" / "series").write_bytes(series_text(list(patches)))
    shutil.copytree(ROOT / READER, root / READER)
    for path, text in overlay.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Project(root)
