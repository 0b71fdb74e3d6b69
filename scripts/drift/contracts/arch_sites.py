"""Places outside the platform file where gfx936 could enter a native path: predicate uses, and arch text matches.

A condition that mentions an arch predicate is evaluated in three values (true, false, open) with gfx936's answers. Only
a condition that is *not* false for gfx936 is noted; `on_gfx9() and k % 8 == 0` is false and stays out of the page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import groupby

from scripts.drift.contracts import arch_truth
from scripts.drift.contracts.alone import Unanswered
from scripts.drift.contracts.model import INFO, REVIEW, Fact, Facts, Finding, Tree, line_of

ID = "arch-sites"
LITERAL = "arch-literal"
#: Texts that gfx936's own name contains: a match on one of them takes gfx936 in without naming it.
TRAPS = ("gfx9", "gfx93")
MODULE = "platforms.rocm"


def collect(tree: Tree) -> list[Fact]:
    """Conditions that are not false for gfx936, and arch literals that gfx936's name contains."""
    truths = _truths(tree)
    facts = list(_literals(tree))
    for path in tree.containing(MODULE, "vllm/", ".py"):
        if path in ("vllm/platforms/rocm.py",) or path.startswith("vllm/dcu/"):
            continue
        try:
            parsed = ast.parse(tree.text(path))
        except SyntaxError as error:
            facts.append(Fact(ID, f"{path}::syntax", str(error), path, error.lineno or 0))
            continue
        facts.extend(_sites(path, parsed, truths))
    return facts


def judge(base: Facts, new: Facts) -> list[Finding]:
    """One REVIEW row per file with new places, one INFO row for left-overs, one REVIEW row per new arch text."""
    found = []
    known = {f.value for f in base.of(ID).values()}
    fresh = sorted((f for f in new.of(ID).values() if f.value not in known), key=lambda f: (f.path, f.line))
    for path, group in groupby([f for f in fresh if f.value.startswith("taken::")], key=lambda f: f.path):
        facts = list(group)
        sentence = f"{len(facts)} arch condition(s) here take gfx936 in by a predicate that is true for it."
        found.append(Finding(REVIEW, ID, path, path, facts[0].line, sentence, _listing(facts)))
    left = [f for f in fresh if f.value.startswith("left-over::")]
    if left:
        files = len({f.path for f in left})
        sentence = f"{len(left)} new condition(s) in {files} file(s) negate an arch predicate; gfx936 falls in the rest."
        found.append(Finding(INFO, ID, "left-over", left[0].path, left[0].line, sentence, _listing(left)))
    seen = {f.value for f in base.of(LITERAL).values()}
    for key, fact in new.of(LITERAL).items():
        if fact.value not in seen:
            sentence = f"a new match on the text {fact.region!r}, which gfx936's name contains."
            found.append(Finding(REVIEW, LITERAL, key, fact.path, fact.line, sentence, "+" + fact.value.split("::", 1)[1]))
    return found


def _listing(facts: list[Fact]) -> str:
    return "\n".join(f"+{f.path}:{f.line}: {f.region}" for f in facts)


def _truths(tree: Tree) -> dict[str, bool]:
    """Answers for gfx936 of everything importable from the platform file that takes no argument."""
    try:
        answers = arch_truth.probe(tree, arch_truth.ARCH)["truth"]
    except Unanswered:
        return {}
    return {
        key.removeprefix("rocm.").removesuffix("()"): answer["value"]
        for key, answer in answers.items()
        if key.startswith("rocm.") and isinstance(answer.get("value"), bool)
    }


def _sites(path: str, parsed: ast.Module, truths: dict[str, bool]) -> Iterator[Fact]:
    for scope, node in _conditions(parsed, ""):
        names = _predicates(node, truths)
        if not names:
            continue
        value = _three(node, truths)
        entry = _entry(node, truths)
        if value is False or entry is None:
            continue
        text = ast.unparse(node)
        key = f"{path}::{scope}::{text}"
        yield Fact(ID, key, f"{entry}::{path}::{scope}::{text}", path, node.lineno, text)


def _conditions(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.expr]]:
    """Every outermost boolean expression: tests, and values that are boolean operations or bare predicate calls."""
    for child in ast.iter_child_nodes(node):
        inner = scope
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{child.name}" if scope else child.name
        if isinstance(child, ast.BoolOp | ast.Call | ast.UnaryOp | ast.Compare) or (
            isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load)
        ):
            yield inner, child
            if isinstance(child, ast.Call) and not _is_predicate_call(child):
                yield from _conditions(child, inner)
        else:
            yield from _conditions(child, inner)


def _is_predicate_call(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name | ast.Attribute) and not node.args and not node.keywords


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _predicates(node: ast.expr, truths: dict[str, bool]) -> set[str]:
    """Predicates used in a boolean position (a call, or a module-level flag), not merely mentioned."""
    if isinstance(node, ast.BoolOp):
        return {n for v in node.values for n in _predicates(v, truths)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _predicates(node.operand, truths)
    name = _name(node)
    if isinstance(node, ast.Call) and name in truths:
        return {name}
    return {name} if isinstance(node, ast.Name) and name.startswith("_ON_") and name in truths else set()


def _three(node: ast.expr, truths: dict[str, bool]) -> bool | None:
    """True, False or None (open) for gfx936."""
    if isinstance(node, ast.BoolOp):
        values = [_three(v, truths) for v in node.values]
        decisive = isinstance(node.op, ast.Or)
        if decisive in values:
            return decisive
        return None if None in values else not decisive
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        value = _three(node.operand, truths)
        return None if value is None else not value
    return truths.get(_name(node)) if _predicates(node, truths) else None


def _entry(node: ast.expr, truths: dict[str, bool]) -> str | None:
    """ "taken" where a predicate true for gfx936 speaks for the condition, "left-over" where only a negation does."""
    if isinstance(node, ast.BoolOp):
        parts = {_entry(v, truths) for v in node.values}
        return "taken" if "taken" in parts else "left-over" if "left-over" in parts else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "left-over" if _predicates(node, truths) and _three(node, truths) is True else None
    return "taken" if _three(node, truths) is True else None


def _literals(tree: Tree) -> Iterator[Fact]:
    """Quoted arch texts that are a part of "gfx936", in Python, CMake and C++."""
    pattern = re.compile(rf"""["'\\^|(;]({"|".join(TRAPS)})(?=["'.*|);\[\\])""")
    for folder, suffixes in (("vllm/", (".py",)), ("cmake/", (".cmake", ".py")), ("csrc/", (".cu", ".cuh", ".h", ".cpp"))):
        for path in tree.containing("gfx9", folder, *suffixes):
            if path.startswith(("vllm/dcu/", "csrc/rocm/dcu_")) or path == "cmake/dcu.cmake":
                continue
            yield from _literals_in(path, tree.text(path), pattern)
    yield from _literals_in("CMakeLists.txt", tree.text("CMakeLists.txt"), pattern)


def _literals_in(path: str, text: str, pattern: re.Pattern[str]) -> Iterator[Fact]:
    for match in pattern.finditer(text):
        start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
        line = text[start:end].strip()
        if not line.startswith(("#", "//", "*")):
            yield Fact(LITERAL, f"{path}::{line}", f"{path}::{line}", path, line_of(text, match.start()), match[1])
