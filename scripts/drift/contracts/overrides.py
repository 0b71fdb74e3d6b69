"""Methods that our platform class overrides: upstream must still have them, and both sides must take the same arguments.

An override that does not know a new parameter fails when vLLM starts; one of a method that is gone is silently dead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from scripts.common.paths import ROOT
from scripts.drift.contracts.model import BLOCK, Fact, Facts, Finding, Tree

ID = "overrides"
HOLDS = ("",)
OURS = "vllm/dcu/platform.py"
OUR_CLASS = "DcuRocmPlatform"
UPSTREAM = (("vllm/platforms/rocm.py", "RocmPlatform"), ("vllm/platforms/interface.py", "Platform"))


def collect(tree: Tree) -> list[Fact]:
    """One fact an override; `value` is "" where it fits, else the sentence that says why not."""
    path = ROOT / "overlay" / OURS
    text = tree.text(OURS) if tree.patched else path.read_text(encoding="utf-8") if path.is_file() else ""
    facts = []
    for ours in _methods(ast.parse(text), OUR_CLASS):
        if ours.name.startswith("__"):
            continue
        theirs, where = _upstream(tree, ours.name)
        if theirs is None:
            facts.append(Fact(ID, ours.name, "gone", UPSTREAM[0][0], 1))
        else:
            region = "\n".join(tree.text(where).splitlines()[theirs.lineno - 1 : theirs.body[0].lineno - 1])
            facts.append(Fact(ID, ours.name, _misfit(ours, theirs), where, theirs.lineno, region))
    return facts


def judge(base: Facts, new: Facts) -> list[Finding]:
    """An override that does not fit blocks, whatever the base has."""
    found = []
    for key, fact in sorted(new.of(ID).items()):
        if fact.value and fact.value != "gone":  # `touches` says what is gone
            found.append(Finding(BLOCK, ID, key, fact.path, fact.line, f"our override of {key} {fact.value}", "+" + fact.region))
    return found


def _methods(parsed: ast.Module, name: str) -> Iterator[ast.FunctionDef]:
    for node in parsed.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from (n for n in node.body if isinstance(n, ast.FunctionDef))


def _upstream(tree: Tree, name: str) -> tuple[ast.FunctionDef | None, str]:
    for path, cls in UPSTREAM:
        if re.search(rf"\bdef {re.escape(name)}\(", tree.text(path)):
            try:
                parsed = ast.parse(tree.text(path))
            except SyntaxError:
                continue
            for method in _methods(parsed, cls):
                if method.name == name:
                    return method, path
    return None, ""


def _names(node: ast.FunctionDef) -> tuple[list[str], list[str], bool]:
    """Positional names without cls/self, keyword-only names, and whether anything else is taken by **kwargs."""
    positional = [a.arg for a in (*node.args.posonlyargs, *node.args.args)][1:]
    return positional, [a.arg for a in node.args.kwonlyargs], node.args.kwarg is not None


def _misfit(ours: ast.FunctionDef, theirs: ast.FunctionDef) -> str:
    mine, mine_keyword, open_ended = _names(ours)
    positional, keyword, _ = _names(theirs)
    unknown = [n for n in (*positional, *keyword) if n not in mine and n not in mine_keyword]
    if unknown and not open_ended:
        return f"does not take {', '.join(unknown)}, which upstream passes."
    gone = [n for n in (*mine, *mine_keyword) if n not in positional and n not in keyword and theirs.args.kwarg is None]
    if gone:
        return f"hands on {', '.join(gone)}, which upstream does not take any more."
    shared = [n for n in positional if n in mine]
    if shared != mine[: len(shared)] or shared != positional[: len(shared)]:
        return f"has its parameters in another order: upstream {', '.join(positional)}, ours {', '.join(mine)}."
    return ""
