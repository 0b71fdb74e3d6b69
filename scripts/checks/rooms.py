"""The order of the rooms: who may import whom, held by `make lint` against every import statement, also those inside functions.

A room is a folder. A module imports its own room and the rooms before it in `ORDER`; a module without a room, an import of a
later room, an import of tests/ and a circle of modules are faults. The overlay's doors are the few modules that upstream's text or its users name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scripts.common.paths import ROOT

__all__ = ["ORDER", "faults", "imports_of"]

# package -> (folder, its rooms and doors, lowest first)
ORDER: dict[str, tuple[str, tuple[str, ...]]] = {
    "scripts": (
        "scripts",
        (
            "common", "upstream", "series", "machine", "runtime", "drift", "rebase", "audit", "wheel", "serving", "rehearsal", "matrix",
            "checks", "cli", "help", "__main__",
        ),
    ),
    "vllm.dcu": (
        "overlay/vllm/dcu",
        (
            "arch", "env", "device", "detect", "platform", "records", "manifest", "evidence", "dispatch", "gate", "ask", "verify",
            "profile", "tune", "__main__",
        ),
    ),
}  # fmt: skip


def imports_of(source: str, package: str, known: frozenset[str]) -> set[str]:
    """Modules of `package` (dotted, without its name) that a module imports or has loaded by path (`overlay_module`)."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            inner = [name for name in submodules if name.removeprefix(package + ".") in known]
            names = inner if len(inner) == len(submodules) else [node.module, *inner]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        inside = [name.removeprefix(package + ".") for name in names if name.startswith(package + ".")]
        found |= {name for name in inside if name in known}
    return found


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            yield name, path


def _circles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Each circle once, found by walking down from every module."""
    done: set[str] = set()

    def walk(node: str, way: list[str]) -> Iterator[list[str]]:
        if node in way:
            yield [*way[way.index(node) :], node]
        elif node not in done:
            for below in sorted(graph.get(node, ())):
                yield from walk(below, [*way, node])
            done.add(node)

    for start in sorted(graph):
        yield from walk(start, [])


def _of_tests(root: Path, folders: Sequence[str]) -> Iterator[str]:
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                if name.split(".")[0] == "tests":
                    yield f"{path.relative_to(root)} imports {name}: what both need belongs outside of tests/"


def faults(root: Path = ROOT, order: Mapping[str, tuple[str, Sequence[str]]] = ORDER) -> list[str]:
    """Every import against the order or of tests/, every module without a room and every circle, one sentence each."""
    found = list(_of_tests(root, ["benchmarks", *(folder for folder, _ in order.values())]))
    for package, (folder, rooms) in order.items():
        modules = dict(_modules(root / folder))
        place = {name: number for number, name in enumerate(rooms)}
        graph = {name: imports_of(path.read_text(encoding="utf-8"), package, frozenset(modules)) - {name} for name, path in modules.items()}
        for name, below in graph.items():
            room = name.split(".")[0]
            if room not in place:
                found.append(f"{package}.{name} has no room: give it one, or add the room to ORDER in scripts/checks/rooms.py")
                continue
            upwards = sorted(other for other in below if place.get(other.split(".")[0], -1) > place[room])
            found += [f"{package}.{name} imports {package}.{other}, which is a later room" for other in upwards]
        found += [f"circle: {' -> '.join(f'{package}.{name}' for name in way)}" for way in _circles(graph)]
    return found
