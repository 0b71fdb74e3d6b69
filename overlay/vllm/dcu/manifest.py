# SPDX-License-Identifier: Apache-2.0
"""What build of vLLM this is, and proof that it is the one that runs.

The wheel packer writes `manifest.json` beside this file: where the sources came from, what was applied, for which
target, and the sha256 of every file of the package. `examine` compares that with the files that Python really imports,
so that a stock vLLM earlier on the path, a half-overwritten install or an edited file is named and not believed.

Standard library only: the tools read it by path, without importing vLLM.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from vllm.dcu.device.marks import FILE_NAME, marks, rewritten
from vllm.dcu.records.strict import StrictError, parse_json, read_bytes
from vllm.dcu.records.typed import Words, dump, load, take

__all__ = [
    "ADDED",
    "FILE_NAME",
    "REWRITTEN",
    "SCHEMA",
    "Manifest",
    "ManifestError",
    "Patch",
    "Verdict",
    "altered",
    "as_text",
    "copies",
    "examine",
    "parse",
    "read",
]

SCHEMA = 1
_MOST_BYTES = 16 << 20
ADDED = " does not belong to the build"
REWRITTEN = (
    "a platform plugin has rewritten this vLLM, which uninstalling it does not undo: pip install --force-reinstall --no-deps of its wheel"
)

_Sha256 = Annotated[str, Words(r"[0-9a-f]{64}", "a sha256")]
_Id = Annotated[str, Words(r"[0-9a-f]{40}", "an id of git")]
_Inside = Annotated[str, Words(r"(?!/)(?!(.*/)?\.\.?(/|$)).+", "a path inside the package")]


class ManifestError(RuntimeError):
    """The manifest is missing or not one that this code understands."""


@dataclass(frozen=True)
class Patch:
    """One patch of the series as it was applied: file name and sha256 of its bytes."""

    name: str
    sha256: _Sha256


@dataclass(frozen=True)
class Manifest:
    """The build manifest.

    Attributes:
        version: the one version of this build (file name, METADATA, `vllm.__version__`).
        target: `rocm`, `cpu` or `empty`.
        upstream: version of the upstream release.
        upstream_sha256: sha256 of its sdist.
        patches: the series, in order.
        tree: git tree id of the sources (base, series and overlay).
        base_commit, head_commit: first and last commit of those sources.
        archs: device architectures that native code was compiled for.
        toolchain: what compiled or supplied the native code, by role.
        files: path inside the package -> sha256, all files but the manifest itself.
    """

    version: str
    target: str
    upstream: str
    upstream_sha256: _Sha256
    patches: tuple[Patch, ...]
    tree: _Id
    base_commit: _Id
    head_commit: _Id
    archs: tuple[str, ...]
    toolchain: Mapping[str, str]
    files: Mapping[_Inside, _Sha256]

    @property
    def stand_in(self) -> str:
        """The public arch that a device build was compiled for in place of the DCU; "" for every build that is to be used."""
        return self.toolchain.get("stand_in", "")

    def to_json(self) -> bytes:
        """Deterministic bytes; `parse` reads them back."""
        return (json.dumps({"schema": SCHEMA, **dump(self)}, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode()


@dataclass(frozen=True)
class Verdict:
    """What `examine` found.

    Attributes:
        package: folder of the vllm that is imported.
        manifest: its manifest, if it has one.
        problems: one sentence each; empty means that the build is whole and is the one that runs.
        notes: facts worth knowing that are no fault.
    """

    package: Path
    manifest: Manifest | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def parse(data: bytes) -> Manifest:
    """Read a manifest's bytes.

    Raises:
        ManifestError: not JSON, another schema, or a field is missing, unknown, or not what belongs there.
    """
    try:
        raw = parse_json(data)
        take(Literal[1], raw, "schema")
        found: Manifest = load(Manifest, raw)
    except StrictError as error:
        raise ManifestError(f"the build manifest is damaged: {error}") from error
    return found


def read(package: Path | None = None) -> Manifest:
    """The manifest of a vllm package folder (default: the one this module belongs to).

    Raises:
        ManifestError: there is none (a stock vLLM, or a source tree), or it is damaged.
    """
    folder = package or Path(__file__).resolve().parent.parent
    path = folder / "dcu" / FILE_NAME
    try:
        data = read_bytes(path, _MOST_BYTES)
    except (OSError, StrictError) as error:
        raise ManifestError(f"{folder} has no build manifest: it is not an installed wheel of vLLM for gfx936 ({error})") from error
    return parse(data)


def altered(manifest: Manifest, package: Path) -> list[str]:
    """One sentence for each file that is missing, differs, or is code that the build does not know."""
    found: list[str] = []
    for name, digest in sorted(manifest.files.items()):
        path = package / name
        if not path.is_file():
            found.append(f"{path} is missing")
        elif _sha256(path) != digest:
            mark = next(iter(marks(path.read_bytes())), "")
            found.append(f"{path} is not the file that was built" + (f" (mark {mark})" if mark else ""))
    ours = {*manifest.files, f"dcu/{FILE_NAME}"}
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package).as_posix()
        if path.suffix in (".py", ".so") and "__pycache__" not in path.parts and name not in ours:
            found.append(f"{path}{ADDED}")
    return found


def copies(search: Sequence[str]) -> list[Path]:
    """Every vllm package on a search path, in import order: the first is the one that `import vllm` takes."""
    found: list[Path] = []
    for entry in search:
        package = Path(os.path.realpath(Path(entry or ".") / "vllm"))  # which `resolve` raises for, where a link leads to itself
        if (package / "__init__.py").is_file() and package not in found:
            found.append(package)
    return found


def examine(package: Path, search: Sequence[str] | None = None) -> Verdict:
    """Compare the vllm that runs with its build manifest.

    Args:
        package: folder of the imported package, `Path(vllm.__file__).parent`.
        search: the search path, `sys.path` by default.
    """
    package = package.resolve()
    search = sys.path if search is None else search
    problems: list[str] = []
    others = [path for path in copies(search) if path != package]
    notes = [f"another vllm is on the search path: {path}" for path in others]
    for path in others:
        if edited := rewritten(path):
            notes.append(f"a plugin has rewritten {len(edited)} file(s) of it: {edited[0]}")
    manifest: Manifest | None = None
    try:
        manifest = read(package)
    except ManifestError as error:
        problems.append(str(error))
    if manifest is not None:
        if manifest.stand_in:
            problems.append(
                f"this is a stand-in build: its native code is for {manifest.stand_in}, compiled to be inspected, not to be run on a DCU"
            )
        problems += altered(manifest, package)
        if any("(mark " in problem for problem in problems):
            problems.append(REWRITTEN)
        # vLLM chooses its platform by the installed *metadata*, which may belong to another copy than the code.
        versions = [d.version for d in importlib.metadata.distributions(name="vllm", path=list(search))]
        if not versions:
            problems.append(f"no installed metadata names vllm, although {package} runs: it was copied, not installed")
        elif versions[0] != manifest.version:
            problems.append(f"the installed metadata says vllm {versions[0]}, the running code is {manifest.version}")
    return Verdict(package, manifest, tuple(problems), tuple(notes))


def as_text(verdict: Verdict) -> str:
    """The build for people: what it is, where it lies, what is wrong with it."""
    lines = [f"running from {verdict.package}"]
    if (manifest := verdict.manifest) is not None:
        lines += [
            f"version   {manifest.version}, target {manifest.target}",
            f"upstream  {manifest.upstream}, sha256 {manifest.upstream_sha256}",
            f"tree      {manifest.tree}, commits {manifest.base_commit[:12]}..{manifest.head_commit[:12]}",
            f"archs     {', '.join(manifest.archs) or 'none: no device code in this build'}",
            *(f"patch     {patch.name}, sha256 {patch.sha256}" for patch in manifest.patches),
            *(f"{role:9} {what}" for role, what in sorted(manifest.toolchain.items())),
        ]
    lines += [f"note: {note}" for note in verdict.notes]
    lines += [f"PROBLEM: {problem}" for problem in verdict.problems]
    if not verdict.problems:
        lines.append("whole: every file is the one that was built")
    return "\n".join(lines)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
