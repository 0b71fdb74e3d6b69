"""Planted one-place changes of a Python module, made from its own source, so that a new condition is watched from the day it is written."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Plant", "changes", "plants", "shown"]

_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip
_SHIFTED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip

Change = Callable[[ast.AST], None]


def shown(node: ast.AST) -> str:
    """The source of a node in one short line; of an `if` its condition."""
    text = ast.unparse(node.test) if isinstance(node, ast.If) else ast.unparse(node)
    return " ".join(text.split())[:70]


def changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """(label, change in place) for a condition, a comparison, a sum or a number."""
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
            yield f"without its part {i + 1}", lambda n, i=i: _drop(n, i)  # type: ignore[misc]
    if isinstance(node, ast.BinOp) and type(node.op) in _OTHER:
        yield "another operation", lambda n: setattr(n, "op", _OTHER[type(n.op)]())  # type: ignore[attr-defined]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "without its not", lambda n: setattr(n, "op", ast.UAdd())
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "one more", lambda n: setattr(n, "value", n.value + 1)  # type: ignore[attr-defined]


def _drop(node: ast.AST, part: int) -> None:
    assert isinstance(node, ast.BoolOp)
    # A BoolOp of one value is no valid tree: the one that is left stands twice.
    node.values = [value for i, value in enumerate(node.values) if i != part] * 2


def _statements(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(label, new text) for a statement that is taken out or made to give nothing, and for a switch."""
    if isinstance(node, ast.Return) and node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield "gives None", "return None"
    if isinstance(node, ast.Raise):
        yield "not raised", "pass"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "not called", "pass"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "turned", str(not node.value)


@dataclass(frozen=True)
class Plant:
    """One change of one module.

    Attributes:
        name: function, its source and the change; it does not move with line numbers.
        first, last: lines of the statement it stands in, without the body of that statement.
        at_import: whether the place runs when the module is imported, and not in a function.
        start, end: bytes that are replaced; `text` is what stands there then.
    """

    name: str
    first: int
    last: int
    at_import: bool
    start: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """The changed module."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def plants(source: str) -> list[Plant]:
    """Every planted change of a module, in the order of its lines. Annotations, docstrings, messages and `__all__` are left alone."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Plant] = []
    seen: dict[str, int] = {}
    for node, function, statement in _places(tree):
        target: ast.AST = node
        if isinstance(node, ast.If):  # its condition alone is replaced
            target, new = node.test, [("never", "False"), ("always", "True")]
        else:
            new = [(label, f"({_changed(node, change)})") for label, change in changes(node)]
        for label, text in [*new, *_statements(node)]:
            assert isinstance(target, ast.expr | ast.stmt)
            assert target.end_lineno is not None
            assert target.end_col_offset is not None
            name = f"{function}: {shown(node)}: {label}"
            seen[name] = seen.get(name, 0) + 1
            found.append(
                Plant(
                    name + (f" ({seen[name]})" if seen[name] > 1 else ""), statement.lineno, _header_end(statement), function == "<module>",
                    starts[target.lineno - 1] + target.col_offset, starts[target.end_lineno - 1] + target.end_col_offset, text,
                )
            )  # fmt: skip
    return sorted(found, key=lambda plant: (plant.start, plant.name))


def _changed(node: ast.AST, change: Change) -> str:
    made = copy.deepcopy(node)
    change(made)
    return ast.unparse(ast.fix_missing_locations(made))


def _header_end(statement: ast.stmt) -> int:
    body = getattr(statement, "body", None)
    last = statement.end_lineno or statement.lineno
    return max(statement.lineno, body[0].lineno - 1) if isinstance(body, list) and body and isinstance(body[0], ast.stmt) else last


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, str, ast.stmt]]:
    """(node, qualified name of its function, its statement). What stands inside an f-string has no place of its own in Python 3.11."""

    def walk(node: ast.AST, function: str, statement: ast.stmt | None) -> Iterator[tuple[ast.AST, str, ast.stmt]]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                    continue
                if isinstance(child, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in child.targets):
                    continue
                here, inside = child if isinstance(child, ast.stmt) else statement, function
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    inside = child.name if function == "<module>" else f"{function}.{child.name}"
                if here is not None and isinstance(child, ast.expr | ast.stmt):
                    yield child, inside, here
                yield from walk(child, inside, here)

    yield from walk(tree, "<module>", None)
