"""Where a dotted name of a release leads: modules, classes, members, types and results, read without running anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from scripts.drift.contracts.model import Tree
from scripts.drift.ours import CALL, ITEM

__all__ = ["External", "Gone", "Names", "Place", "names_of"]


class Gone(Exception):
    """A link of the chain is not there; the text says which, and where it was looked for."""


class External(Exception):
    """The chain leaves upstream's own code (torch, transformers, Any): what follows is not upstream's to keep."""


@dataclass(frozen=True)
class Place:
    """What a chain leads to.

    Attributes:
        module: the module that defines it.
        node: its definition; None for a module itself.
        owner: the class that was asked for it, None outside of classes.
        path: file.
    """

    module: str
    node: ast.AST | None
    owner: tuple[str, ast.ClassDef] | None
    path: str

    @property
    def line(self) -> int:
        """1-based line of the definition."""
        return getattr(self.node, "lineno", 1)


class Names:
    """The names of one tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._parsed: dict[str, ast.Module] = {}

    def path(self, module: str) -> str:
        """File of a module.

        Raises:
            Gone: there is none.
        """
        base = module.replace(".", "/")
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if path in self.tree:
                return path
        raise Gone(f"there is no module {module}")

    def is_module(self, module: str) -> bool:
        base = module.replace(".", "/")
        return any(p in self.tree for p in (f"{base}.py", f"{base}/__init__.py"))

    def parse(self, module: str) -> ast.Module:
        if module not in self._parsed:
            try:
                self._parsed[module] = ast.parse(self.tree.text(self.path(module)))
            except SyntaxError as error:
                raise Gone(f"{self.path(module)} does not parse (line {error.lineno})") from error
        return self._parsed[module]

    def find(self, module: str, chain: tuple[str, ...]) -> Place:
        """Follow a chain.

        Raises:
            Gone: a link is missing.
            External: a link leaves upstream's code.
        """
        place = Place(module, None, None, self.path(module))
        for link in chain:
            place = self._step(place, link)
        return place

    def _step(self, place: Place, link: str) -> Place:
        node = place.node
        if link == "*":
            return place
        if node is None:
            return self.top(place.module, link)
        if link == CALL:
            if isinstance(node, ast.ClassDef):
                return place
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                made = any(isinstance(n, ast.Call) and ast.unparse(n.func) == "cls" for n in ast.walk(node))
                if node.returns is None and made and place.owner is not None:
                    return Place(place.owner[0], place.owner[1], place.owner, self.path(place.owner[0]))
                return self._typed(place, node.returns)
            raise External(link)
        if isinstance(node, ast.ClassDef):
            if link == ITEM:
                return place
            return self.member(place.module, node, link)
        if isinstance(node, ast.AnnAssign):
            return self._step(self._typed(place, node.annotation), link)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any("property" in ast.unparse(d) for d in node.decorator_list):
                return self._step(self._typed(place, node.returns), link)
            for inner in ast.walk(node):
                if isinstance(inner, ast.stmt) and link in _binds(inner):
                    return Place(place.module, inner, place.owner, place.path)
            raise Gone(f"{node.name} ({place.path}:{node.lineno}) has no {link}")
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            built = self._expression(place.module, node.value.func)
            if built is not None and isinstance(built.node, ast.ClassDef):
                return self._step(built, link)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and place.owner is not None:
            return self._step(self._typed(place, _parameter(place.owner[1], node)), link)
        raise External(link)

    def _expression(self, module: str, node: ast.expr) -> Place | None:
        try:
            return self.find(module, tuple(ast.unparse(node).split(".")))
        except (Gone, External):
            return None

    def _typed(self, place: Place, annotation: ast.expr | None) -> Place:
        """The upstream class that an annotation names; in a container, its element."""
        if annotation is None:
            raise External("no annotation")
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        for node in ast.walk(annotation):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                try:
                    return self._typed(place, ast.parse(node.value, mode="eval").body)
                except (SyntaxError, External):
                    continue
            if isinstance(node, ast.Name | ast.Attribute):
                name = ast.unparse(node)
                if name in ("Self", "typing.Self") and place.owner is not None:
                    return Place(place.owner[0], place.owner[1], place.owner, self.path(place.owner[0]))
                try:
                    found = self.find(place.module, tuple(name.split(".")))
                except (Gone, External):
                    continue
                if isinstance(found.node, ast.ClassDef):
                    return found
        raise External(ast.unparse(annotation))

    def member(self, module: str, cls: ast.ClassDef, name: str, seen: tuple[str, ...] = ()) -> Place:
        """A member of a class or of its bases: methods, fields, and what its methods set on `self`.

        Raises:
            Gone: neither the class nor any base that could be read has it.
            External: a base outside upstream may have it.
        """
        owner = (module, cls)
        for node in _statements(cls.body):
            if name in _binds(node):
                return Place(module, node, owner, self.path(module))
        for inner in ast.walk(cls):
            if isinstance(inner, ast.Assign | ast.AnnAssign):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                for target in targets:
                    if isinstance(target, ast.Attribute) and target.attr == name and ast.unparse(target.value) in ("self", "cls"):
                        return Place(module, inner, owner, self.path(module))
        outside = False
        for base in cls.bases:
            named = ast.unparse(base).split("[")[0]
            if named.split(".")[-1].endswith("Enum"):
                if name in ("name", "value", "__members__"):
                    return Place(module, cls, owner, self.path(module))
                continue
            if named in ("object", "Protocol", "ABC", "Generic", "NamedTuple", "TypedDict"):
                continue
            try:
                found = self.find(module, tuple(named.split(".")))
            except (Gone, External):
                outside = True
                continue
            if not isinstance(found.node, ast.ClassDef) or named in seen:
                outside = True
                continue
            try:
                return self.member(found.module, found.node, name, (*seen, named))
            except Gone:
                continue
            except External:
                outside = True
        if outside or name in dir(object):
            raise External(name)
        raise Gone(f"{cls.name} ({self.path(module)}:{cls.lineno}) has no {name}")

    def top(self, module: str, name: str, seen: tuple[str, ...] = ()) -> Place:
        """A name at the top of a module, through re-exports, `if` and `try`, and lazy tables of attributes."""
        parsed = self.parse(module)
        for node in _statements(parsed.body):
            if isinstance(node, ast.ImportFrom):
                source = self._source(module, node)
                for alias in node.names:
                    if (alias.asname or alias.name) == name or (alias.name == "*" and source not in seen):
                        return self._imported(module, source, name if alias.name == "*" else alias.name, seen, alias.name == "*")
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if (alias.asname or alias.name.split(".")[0]) == name:
                        if alias.name.split(".")[0] != "vllm":
                            raise External(alias.name)
                        target = alias.name if alias.asname else "vllm"
                        return Place(target, None, None, self.path(target))
            elif name in _binds(node):
                return Place(module, node, None, self.path(module))
        if self.is_module(f"{module}.{name}"):
            return Place(f"{module}.{name}", None, None, self.path(f"{module}.{name}"))
        for node in _statements(parsed.body):
            if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
                return self._lazy(module, parsed, node, name)
        raise Gone(f"{module} ({self.path(module)}) has no {name}")

    def _imported(self, module: str, source: str, name: str, seen: tuple[str, ...], star: bool) -> Place:
        if source.split(".")[0] != "vllm":
            if star:
                raise Gone(f"{module} has no {name}")
            raise External(source)
        if self.is_module(f"{source}.{name}") and not self._has(source, name):
            return Place(f"{source}.{name}", None, None, self.path(f"{source}.{name}"))
        return self.top(source, name, (*seen, module))

    def _has(self, module: str, name: str) -> bool:
        return any(name in _binds(n) for n in _statements(self.parse(module).body))

    def _lazy(self, module: str, parsed: ast.Module, getter: ast.FunctionDef, name: str) -> Place:
        """A module that answers by `__getattr__`: the name must stand as a text in it (a key, a comparison)."""
        for node in ast.walk(parsed):
            if isinstance(node, ast.Constant) and node.value == name:
                return Place(module, getter, None, self.path(module))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
                return Place(module, node, None, self.path(module))
        raise Gone(f"{module} ({self.path(module)}) has no {name}")

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = module if self.path(module).endswith("__init__.py") else module.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return f"{package}.{node.module}" if node.module else package


def _parameter(cls: ast.ClassDef, assignment: ast.Assign) -> ast.expr | None:
    """The annotation of the parameter that `self.x = x` keeps."""
    assert isinstance(assignment.value, ast.Name)
    for function in cls.body:
        if isinstance(function, ast.FunctionDef) and assignment in ast.walk(function):
            arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
            return next((a.annotation for a in arguments if a.arg == assignment.value.id), None)
    return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a body, those under `if`, `try` and `with` included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _binds(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}


@cache
def names_of(tree: Tree) -> Names:
    """The names of a tree, parsed as they are asked for and kept."""
    return Names(tree)
