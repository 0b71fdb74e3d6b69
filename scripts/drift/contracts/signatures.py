"""Parameters of an upstream function: as data, compared between releases, and against a call of ours."""

from __future__ import annotations

import ast

from scripts.drift.contracts.model import BLOCK, REVIEW

Row = list[str]


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[Row]:
    """Parameters as [name, positional|keyword|star, default or "required"]."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    rows = [[a.arg, "positional", ast.unparse(d) if d else "required"] for a, d in zip(positional, defaults, strict=True)]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        rows.append([argument.arg, "keyword", ast.unparse(default) if default else "required"])
    return rows


def accepts(node: ast.FunctionDef | ast.AsyncFunctionDef, method: bool, positional: int | None, keywords: tuple[str, ...]) -> str:
    """Why a call of ours does not fit the definition, or ""."""
    decorators = {ast.unparse(d) for d in node.decorator_list}
    rows = signature(node)[1 if method and "staticmethod" not in decorators else 0 :]
    if any("contextmanager" not in d and d not in _PLAIN for d in decorators):
        return ""  # another decorator may change what is taken
    names = [r[0] for r in rows]
    taken = [r[0] for r in rows if r[1] == "positional"]
    unknown = [k for k in keywords if k not in names]
    if unknown and node.args.kwarg is None:
        return f"{node.name} takes no {', '.join(unknown)}"
    if positional is None:
        return ""
    if positional > len(taken) and node.args.vararg is None:
        return f"{node.name} takes {len(taken)} positional argument(s), ours gives {positional}"
    missing = [r[0] for r in rows if r[2] == "required" and r[0] not in taken[:positional] and r[0] not in keywords]
    return f"{node.name} wants {', '.join(missing)}, which ours does not give" if missing else ""


_PLAIN = {"classmethod", "staticmethod", "property", "cache", "functools.cache", "override", "abstractmethod"}


def compare_signatures(old: list[Row], new: list[Row]) -> tuple[str, str] | None:
    """BLOCK where a caller of the old form breaks or swaps, REVIEW where something was added or a default moved."""
    names_old, names_new = [p[0] for p in old], [p[0] for p in new]
    kept = [n for n in names_old if n in names_new]
    if len(kept) < len(names_old):
        return BLOCK, f"parameter(s) gone: {', '.join(n for n in names_old if n not in names_new)}."
    if [n for n in names_new if n in names_old] != names_old or names_new[: len(names_old)] != names_old:
        positional = [p[0] for p in new if p[1] != "keyword"]
        if positional[: len(names_old)] != names_old:
            return BLOCK, f"parameters are in another order: {', '.join(names_old)} -> {', '.join(names_new)}."
    required = [p[0] for p in new if p[0] not in names_old and p[2] == "required"]
    if required:
        return BLOCK, f"new required parameter(s): {', '.join(required)}."
    defaults = {p[0]: p[2] for p in new}
    moved = [f"{n}={defaults[n]}" for n, _, d in old if defaults[n] != d]
    if moved:
        return REVIEW, f"default(s) changed: {', '.join(moved)}."
    added = [n for n in names_new if n not in names_old]
    return (REVIEW, f"new optional parameter(s): {', '.join(added)}.") if added else None
