"""Planted one-line changes: every condition, comparison, sum and constant of a function, changed one at a time.

A test that holds a table of right answers runs it against each changed module: an answer that does not change is a condition that
nobody watches. The changes are made from the source itself, so a new condition is watched from the day it is written.
"""

from __future__ import annotations

import ast
import copy
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripts.checks.planted import changes, shown

__all__ = ["Mutant", "load", "mutants"]


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
            for label, change in changes(node):
                found.append(Mutant(f"{function}: {shown(node)}: {label}", partial(_changed, tree, function, index, change)))
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


def load(mutant: Mutant, name: str) -> types.ModuleType:
    """The changed module, under `name`. It replaces nothing; code that imports the original keeps the original."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(mutant.make(), f"<{mutant.name}>", "exec"), module.__dict__)
    return module
