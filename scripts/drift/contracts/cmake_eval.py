"""What CMake would build for one arch: CMake configures the release's CMakeLists.txt without any language or compiler.

`record.cmake` says exactly what is replaced. A real configure of the same file, where a
toolchain exists, is the device-code audit's business; this evaluation is what every release gets in under a second.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from scripts.common.child import ask
from scripts.common.programs import cmake_error
from scripts.drift.contracts.model import Tree

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
        root, build, toolkit = Path(folder) / "tree", Path(folder) / "build", Path(folder) / "rocm"
        toolkit.mkdir()
        tree.write(root, "CMakeLists.txt", "cmake", "csrc")
        text = tree.text("CMakeLists.txt")
        if not tree.patched:  # the arch joins the supported list where our hook would add it
            text = text.replace('set(HIP_SUPPORTED_ARCHS "', f'set(HIP_SUPPORTED_ARCHS "{arch};', 1)
        (root / "upstream.cmake").write_text(text, encoding="utf-8")
        shutil.copyfile(Path(__file__).with_name("record.cmake"), root / "CMakeLists.txt")
        out = Path(folder) / "record"
        argv: list[str | Path] = [cmake, "-S", root, "-B", build, f"-DARCHES={arch}", f"-DOUT={out}", f"-DROCM_PATH={toolkit}"]
        done = ask(argv, seconds=120, env=os.environ, cwd=folder)
        record = out.read_text() if out.exists() else ""
    if not record.rstrip().endswith("done"):
        raise EvaluationFailed(done.why or cmake_error(done.err.replace(f"{folder}/", "")) or "cmake stopped silently")
    return _parse(record, [str(build) + "/", str(root) + "/"], tree)


def _parse(record: str, prefixes: list[str], tree: Tree) -> Build:
    targets: dict[str, Target] = {}
    variables: dict[str, str] = {}
    hipify: list[str] = []
    for line in record.splitlines():
        kind, *rest = line.split("\t")
        name, values = (rest[0], rest[1:]) if rest else ("", [])
        if kind == "target" and name.startswith("hipify"):
            hipify.append(name)
        elif kind == "target" and values[0] != "UTILITY":
            targets[name] = Target(name, kind=values[0].removesuffix("_LIBRARY"))
        elif kind == "property" and name in targets:
            _property(targets[name], values[0], values[1:], prefixes, tree)
        elif kind == "set":
            variables[name] = ";".join(values)
    return Build(targets, variables, tuple(hipify))


def _property(target: Target, name: str, values: list[str], prefixes: list[str], tree: Tree) -> None:
    if name == "SOURCES":
        for value in values:
            objects = re.fullmatch(r"\$<TARGET_OBJECTS:(\w+)>", value)
            if objects:
                target.links.append(objects[1])
            else:
                target.sources.append(_source(value, prefixes, tree))
    elif name == "COMPILE_OPTIONS":
        flags = [re.sub(r"^\$<\$<COMPILE_LANGUAGE:\w+>:", "", v).rstrip(">") for v in values]
        target.flags.extend(f for f in flags if f)
    elif name == "COMPILE_DEFINITIONS":
        target.definitions.extend(v.removeprefix("-D") for v in values)
    elif name == "LINK_LIBRARIES":
        target.links.extend(values)
    elif name == "HIP_ARCHITECTURES":
        target.arches.extend(values)


def _source(path: str, prefixes: list[str], tree: Tree) -> str:
    """The upstream source behind a path of the build: hipify's renaming undone."""
    inside = path
    for prefix in prefixes:
        inside = inside.removeprefix(prefix)
    as_cuda = re.sub(r"\.hip$", ".cu", inside)
    return next((p for p in (inside, as_cuda, as_cuda.replace("hip", "cuda")) if p in tree), as_cuda)
