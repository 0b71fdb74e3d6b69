"""What CMake would build for one arch: CMake's own interpreter runs the release's CMakeLists.txt, with recorders.

No compiler, no configure: `record.cmake` says exactly what is replaced. A real configure of the same file, where a
toolchain exists, is the device-code audit's business; this evaluation is what every release gets in under a second.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from scripts.contracts.model import Tree

ARCH = "gfx936"


class EvaluationFailed(Exception):
    """CMake refused the file, or is not here; the reason is the text."""


@dataclass
class Target:
    """One module of the build: its device sources for the arch, flags and definitions (object libraries folded in)."""

    name: str
    sources: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    arches: list[str] = field(default_factory=list)
    kind: str = ""


@dataclass(frozen=True)
class Build:
    """Targets by name and the variables a contract looks at."""

    targets: dict[str, Target]
    variables: dict[str, str]
    hipify: tuple[str, ...]

    def module(self, name: str) -> Target:
        """A module with the sources, flags and definitions of the object libraries linked into it."""
        top = self.targets.get(name, Target(name))
        parts = [top, *[self.targets[n] for n in top.links if n in self.targets and self.targets[n].kind == "OBJECT"]]
        whole = Target(name, kind=top.kind, links=top.links, arches=top.arches)
        for part in parts:
            whole.sources.extend(s for s in part.sources if s not in whole.sources)
            whole.flags.extend(f for f in part.flags if f not in whole.flags)
            whole.definitions.extend(d for d in part.definitions if d not in whole.definitions)
        return whole

    def modules(self) -> list[str]:
        return sorted(n for n, t in self.targets.items() if t.kind != "OBJECT")


@cache
def evaluate(tree: Tree, arch: str = ARCH) -> Build:
    """Evaluate a tree for `arch`.

    Raises:
        EvaluationFailed: CMake is missing or stopped with an error, which is itself a finding.
    """
    cmake = shutil.which("cmake")
    if cmake is None:
        raise EvaluationFailed("not evaluated: no cmake on PATH; install cmake 3.25 or newer")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        tree.write(root, "CMakeLists.txt", "cmake", "csrc")
        for path in [root / "CMakeLists.txt", *(root / "cmake").rglob("*.cmake")]:
            path.write_text(_askable(path.read_text(errors="replace"), patched=tree.patched, arch=arch))
        out = Path(folder) / "record"
        script = Path(__file__).with_name("record.cmake")
        done = subprocess.run(
            [cmake, f"-DTREE={root}", f"-DARCHES={arch}", f"-DOUT={out}", "-P", str(script)],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=120,
            check=False,
        )
        record = out.read_text() if out.exists() else ""
    if not record.rstrip().endswith("done"):
        error = re.search(r"CMake Error[^\n]*\n(?:\s*\n)?((?:\s+\S[^\n]*\n?)+)", done.stderr)
        raise EvaluationFailed(" ".join((error[1] if error else done.stderr[-400:]).split()) or "cmake stopped silently")
    return _parse(record, str(root), tree)


def _askable(text: str, *, patched: bool, arch: str) -> str:
    """`if(TARGET x)` as a variable; and, for a tree without our hook, the arch in the supported list as the hook does."""

    def variable(match: re.Match[str]) -> str:
        return re.sub(r"\bTARGET\s+([\w${}]+)", r"DRIFT_TARGET_\1", match[0])

    text = re.sub(r"^\s*(?:else)?if\s*\((?:[^()]|\([^()]*\))*\)", variable, text, flags=re.M | re.I)
    if not patched:
        text = text.replace('set(HIP_SUPPORTED_ARCHS "', f'set(HIP_SUPPORTED_ARCHS "{arch};', 1)
    return text


def _parse(record: str, root: str, tree: Tree) -> Build:
    targets: dict[str, Target] = {}
    variables: dict[str, str] = {}
    hipify: list[str] = []
    for line in record.splitlines():
        kind, *rest = line.split("\t")
        name, values = (rest[0], rest[1:]) if rest else ("", [])
        if kind == "library":
            target = targets.setdefault(name, Target(name))
            target.kind = next((v for v in values if v in ("MODULE", "OBJECT", "SHARED", "STATIC")), "")
            target.sources.extend(_source(v, root, tree) for v in values if re.search(r"\.(hip|cu|cpp|cc)$", v))
        elif kind == "sources":
            target = targets.setdefault(name, Target(name))
            target.sources.extend(_source(v, root, tree) for v in values if re.search(r"\.(hip|cu|cpp|cc)$", v))
        elif kind == "options":
            flags = [v.replace("$<$<COMPILE_LANGUAGE:HIP>:", "").rstrip(">") for v in values if v not in ("PRIVATE", "PUBLIC")]
            targets.setdefault(name, Target(name)).flags.extend(f for f in flags if not f.startswith("$<") and f)
        elif kind == "definitions":
            cleaned = [v.removeprefix("-D") for v in values if v not in ("PRIVATE", "PUBLIC")]
            targets.setdefault(name, Target(name)).definitions.extend(cleaned)
        elif kind == "links":
            targets.setdefault(name, Target(name)).links.extend(values)
        elif kind == "properties" and "HIP_ARCHITECTURES" in values:
            arches = values[values.index("HIP_ARCHITECTURES") + 1 :]
            targets.setdefault(name, Target(name)).arches.extend(a for a in arches if a.startswith("gfx"))
        elif kind == "custom" and name.startswith("hipify"):
            hipify.append(name)
        elif kind == "set":
            variables[name] = ";".join(values)
    return Build(targets, variables, tuple(hipify))


def _source(path: str, root: str, tree: Tree) -> str:
    """The upstream source behind a path of the build: hipify's renaming undone."""
    inside = path.removeprefix(root + "/").removeprefix("drift-build/")
    as_cuda = re.sub(r"\.hip$", ".cu", inside)
    return next((p for p in (inside, as_cuda, as_cuda.replace("hip", "cuda")) if p in tree), as_cuda)
