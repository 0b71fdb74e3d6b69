"""Planted one-line changes: every condition, comparison, sum and constant of a function, changed one at a time.

A test that holds a table of right answers runs it against each changed module: an answer that does not change is a condition that
nobody watches. The changes are made from the source itself, so a new condition is watched from the day it is written.
"""

from __future__ import annotations

import ast
import copy
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

__all__ = ["Mutant", "load", "mutants"]

_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip
_SHIFTED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed module. `name` tells the function, its source and the change; it does not move with line numbers."""

    name: str
    make: Callable[[], ast.Module]


def mutants(path: Path, functions: Iterable[str]) -> list[Mutant]:
    """Every planted change of the named functions (or methods) of one module.

    Raises:
        LookupError: the module has no function of that name.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[Mutant] = []
    for function in functions:
        nodes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function]
        if len(nodes) != 1:
            raise LookupError(f"{path.name} has {len(nodes)} functions named {function}")
        for index, node in enumerate(ast.walk(nodes[0])):
            for label, change in _changes(node):
                found.append(Mutant(f"{function}: {_shown(node)}: {label}", partial(_changed, tree, function, index, change)))
    return _numbered(found)


def _changed(tree: ast.Module, function: str, index: int, change: Callable[[ast.AST], None]) -> ast.Module:
    changed = copy.deepcopy(tree)
    target = next(n for n in ast.walk(changed) if isinstance(n, ast.FunctionDef) and n.name == function)
    change(next(n for i, n in enumerate(ast.walk(target)) if i == index))
    return ast.fix_missing_locations(changed)


def _numbered(found: list[Mutant]) -> list[Mutant]:
    seen: dict[str, int] = {}
    out: list[Mutant] = []
    for mutant in found:
        seen[mutant.name] = seen.get(mutant.name, 0) + 1
        number = f" ({seen[mutant.name]})" if seen[mutant.name] > 1 else ""
        out.append(Mutant(mutant.name + number, mutant.make))
    return out


def _shown(node: ast.AST) -> str:
    text = ast.unparse(node.test) if isinstance(node, ast.If) else ast.unparse(node)
    return " ".join(text.split())[:70]


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    if isinstance(node, ast.If | ast.IfExp):
        yield "never", lambda n: setattr(n, "test", ast.Constant(False))
        yield "always", lambda n: setattr(n, "test", ast.Constant(True))
    if isinstance(node, ast.Compare):
        op = type(node.ops[0])
        yield "negated", lambda n: setattr(n, "ops", [_NEGATED[op](), *n.ops[1:]])  # type: ignore[attr-defined]
        if op in _SHIFTED:
            yield "shifted by one", lambda n: setattr(n, "ops", [_SHIFTED[op](), *n.ops[1:]])  # type: ignore[attr-defined]
    if isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            yield f"without its part {i + 1}", lambda n, i=i: _drop(n, i)
    if isinstance(node, ast.BinOp) and type(node.op) in _OTHER:
        yield "another operation", lambda n: setattr(n, "op", _OTHER[type(n.op)]())  # type: ignore[attr-defined]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "without its not", lambda n: setattr(n, "op", ast.UAdd())
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "one more", lambda n: setattr(n, "value", n.value + 1)  # type: ignore[attr-defined]


def _drop(node: ast.BoolOp, part: int) -> None:
    # A BoolOp of one value is no valid tree: the one that is left stands twice.
    node.values = [value for i, value in enumerate(node.values) if i != part] * 2


def load(mutant: Mutant, name: str) -> types.ModuleType:
    """The changed module, under `name`. It replaces nothing; code that imports the original keeps the original."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(mutant.make(), f"<{mutant.name}>", "exec"), module.__dict__)
    return module
