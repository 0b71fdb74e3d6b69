"""What the series' own lines, our CMake and our C++ touch of upstream: the other half of `ours`."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

from scripts.common.paths import ROOT
from scripts.drift.contracts.model import Tree
from scripts.drift.ours import Touch
from scripts.series.patch import Patch, load

__all__ = ["hook_touches", "native_touches", "with_series"]


def with_series(tree: Tree, patches: list[Patch] | None = None) -> tuple[Tree, dict[str, set[int]]]:
    """The pinned tree with the series in it (overlay left out), and which lines of each file are the series' own.

    Raises:
        ValueError: a hunk does not stand where its patch says; the series is not one for this tree.
    """
    files = dict(tree.files)
    ours: dict[str, set[int]] = {}
    for patch in load() if patches is None else patches:
        diff = patch.raw.decode("utf-8", "surrogateescape")
        for block in re.split(r"(?m)^(?=diff --git )", diff)[1:]:
            path = block.split(" b/", 1)[1].split("\n", 1)[0]
            lines: list[tuple[str, bool]] = []
            before = ours.get(path, set())
            old = [(text, number in before) for number, text in enumerate(files.get(path, b"").decode().split("\n"), 1)]
            at = 0
            for hunk in re.finditer(r"(?m)^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*\n((?:[ +\-\\].*\n?)*)", block):
                start = int(hunk[1]) - 1
                lines += old[at:start]
                at = start
                for row in hunk[2].splitlines():
                    sign, text = row[:1], row[1:]
                    if sign == "+":
                        lines.append((text, True))
                    elif sign in (" ", "-"):
                        if at >= len(old) or old[at][0] != text:
                            raise ValueError(f"{patch.name} does not fit {path}:{at + 1}")
                        lines += [old[at]] if sign == " " else []
                        at += 1
            lines += old[at:]
            files[path] = "\n".join(text for text, _ in lines).encode()
            ours[path] = {number for number, (_, mine) in enumerate(lines, 1) if mine}
    return Tree(tree.version, files, patched=True), ours


def hook_touches(tree: Tree, patches: list[Patch] | None = None) -> list[Touch]:
    """Upstream names that the series' own lines read, decorate, write or fill, by the syntax around those lines."""
    patched, ours = with_series(tree, patches)
    found: list[Touch] = []
    for path, lines in sorted(ours.items()):
        if path.endswith(".py"):
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            found.extend(_in_python(module, path, patched.text(path), lines))
        elif path != "CMakeLists.txt":
            found.append(Touch("file", (path,), "write", f"{path}:1"))
        else:
            found.extend(_in_cmake(path, patched.text(path), lines))
    return found


def _in_python(module: str, path: str, text: str, lines: set[int]) -> Iterator[Touch]:
    try:
        parsed = ast.parse(text)
    except SyntaxError:
        yield Touch("file", (path,), "write", f"{path}:1")  # no Python: the file itself is all that can be held
        return
    bound = _bound(parsed, lines)

    def touch(chain: tuple[str, ...], how: str, node: ast.AST, positional: int | None = 0, keywords: tuple[str, ...] = ()) -> Touch:
        return Touch(module, chain, how, f"{path}:{getattr(node, 'lineno', 1)}", positional, keywords)

    def walk(node: ast.AST, scope: tuple[str, ...]) -> Iterator[Touch]:
        for child in ast.iter_child_nodes(node):
            inside = scope
            line = getattr(child, "lineno", 0)
            if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                if line not in lines and any(d.lineno in lines for d in child.decorator_list):
                    yield touch((*scope, child.name), "wrap", child)
                inside = (*scope, child.name)
            if line in lines and isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load) and child.id in bound:
                yield touch((child.id,), "read", child)
            if isinstance(child, ast.Call) and line not in lines:
                mine = [k for k in child.keywords if k.value.lineno in lines]
                if mine and not any(k.lineno in lines for k in child.keywords if k not in mine):
                    # Our argument stands in upstream's call: the callee must go on taking every argument that is there.
                    yield touch((ast.unparse(child.func),), "call", child, len(child.args), tuple(k.arg for k in child.keywords if k.arg))
                    for k in child.keywords:
                        if isinstance(k.value, ast.Constant) and isinstance(k.value.value, str):
                            yield touch((ast.unparse(child.func), f"{k.arg}={k.value.value}"), "argument", child)
            if isinstance(child, ast.Assign | ast.AnnAssign) and child.value is not None:
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                names = [t.id for t in targets if isinstance(t, ast.Name)]
                fills = isinstance(child.value, ast.Dict | ast.Set | ast.List | ast.Tuple) and any(
                    getattr(e, "lineno", 0) in lines for e in ast.walk(child.value)
                )
                if (fills and line not in lines) or (line in lines and not scope and any(n in bound for n in names)):
                    for name in names:
                        yield touch((*scope, name), "write", child)
            yield from walk(child, inside)

    yield from walk(parsed, ())


def _bound(parsed: ast.Module, lines: set[int]) -> set[str]:
    """Module-level names that upstream binds: definitions, imports and assignments that are not the series' own, and are no builtins."""
    names: set[str] = set()
    for node in ast.walk(parsed):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno not in lines and node in parsed.body:
            names.add(node.name)
        elif isinstance(node, ast.Assign) and node in parsed.body:
            # `_GCN_ARCH = ...` is upstream's name although its line is ours now: it is read elsewhere.
            names.update(
                t.id for t in node.targets if isinstance(t, ast.Name) and (node.lineno not in lines or _read_elsewhere(parsed, t.id, lines))
            )
        elif isinstance(node, ast.AnnAssign) and node in parsed.body and isinstance(node.target, ast.Name) and node.lineno not in lines:
            names.add(node.target.id)
        elif isinstance(node, ast.Import | ast.ImportFrom) and node.lineno not in lines:
            names.update((a.asname or a.name).split(".")[0] for a in node.names)
    return names - set(dir(builtins))


def _read_elsewhere(parsed: ast.Module, name: str, lines: set[int]) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and n.lineno not in lines for n in ast.walk(parsed))


def _in_cmake(path: str, text: str, lines: set[int]) -> Iterator[Touch]:
    """The variable whose `set(...)` a line of ours stands in."""
    for match in re.finditer(r"^[ \t]*set\(\s*(\w+)[^)]*\)", text, re.M):
        first = text.count("\n", 0, match.start()) + 1
        last = text.count("\n", 0, match.end()) + 1
        if any(first < line <= last for line in lines):
            yield Touch("cmake", (match[1],), "write", f"{path}:{first}")


def native_touches(root: Path = ROOT) -> list[Touch]:
    """What our CMake asks of upstream's: files, text anchors, targets, variables; and the upstream headers our C++ includes."""
    found: list[Touch] = []
    for path in sorted((root / "overlay" / "cmake").glob("*.cmake")):
        text = re.sub(r"(?m)^\s*#.*$", "", path.read_text(encoding="utf-8"))
        shown = path.relative_to(root).as_posix()
        found.extend(_of_cmake(text, shown))
    for path in sorted((root / "csrc").rglob("*")):
        if path.suffix in (".cu", ".cpp", ".h", ".cuh"):
            for match in re.finditer(r'(?m)^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8")):
                own = (
                    any(p.name == Path(match[1]).name for p in (root / "csrc").rglob("*"))
                    or "_region." in match[1]
                    or match[1].endswith(".inc")
                )
                if not own:
                    found.append(Touch("file", (f"csrc/{match[1]}",), "read", path.relative_to(root).as_posix() + ":1"))
    return found


def _of_cmake(text: str, shown: str) -> Iterator[Touch]:
    def touch(module: str, name: str, match: re.Match[str]) -> Touch:
        return Touch(module, (name,), "read", f"{shown}:{text.count(chr(10), 0, match.start()) + 1}")

    files = {}
    for match in re.finditer(r'set\((_\w+) "\$\{CMAKE_CURRENT_SOURCE_DIR\}/(csrc/[\w./]+\.\w+)"\)', text):
        files[match[1]] = match[2]
        yield touch("file", match[2], match)
    for match in re.finditer(r'dcu_cut\(\w+ \w+ "\$\{(_\w+)\}" "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)"', text):
        for anchor in {match[2], match[3]}:
            plain = anchor.replace("\\n", "\n").replace('\\"', '"')
            yield Touch("text", (files.get(match[1], match[1]), plain), "read", f"{shown}:{text.count(chr(10), 0, match.start()) + 1}")
    for match in re.finditer(r"if\(NOT TARGET (\w+)\)", text):
        yield touch("target", match[1], match)
    own = set(re.findall(r"(?:set|list\(APPEND|foreach|math\(EXPR|function|macro|option)\(?\s*(\w+)", text))
    for match in re.finditer(r"\$\{([A-Z]\w+)\}|list\(APPEND ([A-Z]\w+)", text):
        name = match[1] or match[2]
        if (
            (name not in own or match[2])
            and not name.startswith(("CMAKE_", "VLLM_DCU_", "DCU_"))
            and not re.search(rf"\b(?:function|macro)\([^)]*\b{name}\b", text)
        ):
            yield touch("cmake", name, match)
