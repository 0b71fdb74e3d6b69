"""Everything of upstream that our overlay, hooks and CMake touch, held against a release: none of it is listed by hand.

`scripts/drift/ours.py` and `hooks.py` collect it from our sources. What a release no longer has is a BLOCK, whichever release it is
compared with: a name that is gone takes our line with it, and an override or a field that nothing reads any more is a dead lock.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from scripts.common.paths import ROOT
from scripts.drift import hooks, ours
from scripts.drift.contracts import cmake_eval
from scripts.drift.contracts.model import BLOCK, REVIEW, Fact, Facts, Finding, Tree, changes, hunk, line_of, tree_from_sdist
from scripts.drift.contracts.signatures import accepts, compare_signatures, signature
from scripts.drift.ours import Touch
from scripts.drift.upstream_names import External, Gone, Place, names_of
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import read_pin

ID = "touches"
#: A release in which none of these is found has not been looked at: the contract would be holding on to nothing.
HOLDS = ("vllm.",)


@cache
def touched(root: Path = ROOT) -> tuple[Touch, ...]:
    """Every touch of ours once, by key; the first place is the one that is shown."""
    pin = read_pin()
    pinned = tree_from_sdist(fetch(pin.release(pin.version)), pin.version)
    found, _ = ours.overlay_touches(root)
    once: dict[str, Touch] = {}
    for touch in [*found, *hooks.hook_touches(pinned), *hooks.native_touches(root)]:
        once.setdefault(touch.key, touch)
    return tuple(once.values())


def variables() -> tuple[set[str], set[str]]:
    """Upstream's environment variables that (the gate obeys, anything else of ours reads or withdraws)."""
    names: tuple[set[str], set[str]] = (set(), set())
    for touch in touched():
        if touch.module == "env":
            names[0 if touch.where.startswith("overlay/vllm/dcu/env.py") else 1].add(touch.chain[0])
    return names[0], names[1] - names[0]


def operators() -> set[str]:
    """Native operators that a kernel of ours is dispatched to or named by."""
    return {t.chain[0] for t in touched() if t.module == "op"}


def collect(tree: Tree) -> list[Fact]:
    """One fact a touch: what it leads to, whether our use of it fits, and whether anything upstream still asks for it."""
    facts = []
    readers = _readers(tree)
    for touch in touched():
        if touch.module in ("env", "op"):
            continue  # `environment` and `native-ops` hold these
        value, path, line, region = _held(tree, touch)
        name = touch.chain[-1] if touch.chain else ""
        if touch.module.startswith("vllm") and (touch.how == "wrap" or (touch.how in ("override", "write") and len(touch.chain) > 1)):
            value["asked"] = name in readers
        facts.append(Fact(ID, touch.key, json.dumps({**value, "where": touch.where}, sort_keys=True), path, line, region))
    return facts


def judge(base: Facts, new: Facts) -> list[Finding]:
    """BLOCK for what is gone or does not take our call, known or not; then what changed in the signatures that we call or replace."""
    found: list[Finding] = []
    said: set[str] = set()
    for key, fact in sorted(new.of(ID).items(), key=lambda item: len(item[0])):
        value = json.loads(fact.value)
        why = value.get("gone") or value.get("misfit")
        if why and why not in said:
            said.add(why)
            found.append(
                Finding(BLOCK, ID, key, fact.path, max(fact.line, 1), f"{value['where']} {_verb(key)} {_shown(key)}: {why}.", fact.region)
            )
    for key, was, now in changes(base.of(ID), new.of(ID)):
        if was is None or now is None:
            continue
        before, after = json.loads(was.value), json.loads(now.value)
        if before.get("asked") and not after.get("asked", True) and "gone" not in after:
            sentence = f"{after['where']} {_verb(key)} {_shown(key)}, and nothing upstream asks for it any more: a dead lock."
            found.append(Finding(BLOCK, ID, key, now.path, now.line, sentence, hunk(was.region, now.region)))
        verdict = _moved(before, after)
        name = _shown(key).split(".")[-1]
        if verdict and f"{name}{verdict[1]}" not in said:
            said.add(f"{name}{verdict[1]}")
            at = f"{name}: {verdict[1]}"
            found.append(Finding(verdict[0], ID, key, now.path, now.line, at, hunk(was.region, now.region)))
    return found


def _moved(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, str] | None:
    """What a changed signature means to us: for a call, the parameters that it fills by position; for what we hand on, all of them."""
    if "signature" not in before or "signature" not in after:
        return None
    old, new = before["signature"], after["signature"]
    given = after.get("given")
    if given is None:
        return compare_signatures(old, new)
    first, then = [r[0] for r in old[:given]], [r[0] for r in new[:given]]
    if first != then:
        return BLOCK, f"parameters are in another order: what ours gives as {', '.join(first)} is now taken as {', '.join(then)}."
    defaults = {r[0]: r[2] for r in new}
    moved = [f"{n}={defaults[n]}" for n, _, d in old if n in defaults and defaults[n] != d]
    return (REVIEW, f"default(s) changed: {', '.join(moved)}.") if moved else None


def _verb(key: str) -> str:
    how = key.split(":")[2]
    return {
        "import": "imports",
        "read": "reads",
        "call": "calls",
        "write": "writes",
        "override": "overrides",
        "wrap": "wraps",
        "name": "knows",
    }.get(how, "uses")


def _shown(key: str) -> str:
    module, chain, *_ = key.split(":")
    return f"{module}.{chain}".rstrip(".").replace(".()", "()").replace(".[]", "[]")


def _held(tree: Tree, touch: Touch) -> tuple[dict[str, object], str, int, str]:
    """({state}, path, line, text) of one touch in a tree."""
    if touch.module == "file":
        here = touch.chain[0] in tree
        return ({} if here else {"gone": f"there is no {touch.chain[0]}"}), touch.chain[0], 1, ""
    if touch.module == "text":
        path, text = touch.chain
        count = tree.text(path).count(text)
        at = tree.text(path).find(text)
        gone = {"gone": f"{path} holds {text.strip().splitlines()[-1]!r} {count} times, not once"}
        return ({} if count == 1 else dict(gone)), path, line_of(tree.text(path), max(at, 0)), text
    if touch.module in ("cmake", "target"):
        return _in_build(tree, touch)
    if touch.module == "class":
        return _class(tree, touch.chain[0])
    names = names_of(tree)
    module, chain = touch.module, touch.chain
    if module == "dotted":
        return _dotted(tree, touch)
    if touch.how == "argument":
        return _argument(tree, touch)
    try:
        place = names.find(module, chain)
    except External:
        return {"external": True}, "", 0, ""
    except Gone as error:
        base = module.replace(".", "/")
        path = next((p for p in (f"{base}.py", f"{base}/__init__.py") if p in tree), f"{base}.py")
        return {"gone": str(error)}, path, 1, ""
    value: dict[str, object] = {}
    region = _first_lines(tree, place)
    if isinstance(place.node, ast.FunctionDef | ast.AsyncFunctionDef):
        called = any(t.how == "call" and (t.module, t.chain) == (module, chain) for t in touched())
        if touch.how != "override" and (touch.how == "call" or not called):
            value["signature"] = signature(place.node)
        if touch.how == "call":
            if touch.positional is not None:
                value["given"] = touch.positional + (place.owner is not None)
            misfit = accepts(place.node, place.owner is not None, touch.positional, touch.keywords)
            if misfit:
                value["misfit"] = misfit
    elif isinstance(place.node, ast.ClassDef) and touch.how == "call" and touch.keywords:
        value.update(_constructed(tree, place, touch))
    return value, place.path, place.line, region


def _constructed(tree: Tree, place: Place, touch: Touch) -> dict[str, object]:
    assert isinstance(place.node, ast.ClassDef)
    for keyword in touch.keywords:
        try:
            names_of(tree).member(place.module, place.node, keyword)
        except External:
            fields = {n.target.id for n in place.node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
            if not fields or keyword in fields or any(isinstance(n, ast.FunctionDef) and n.name == "__init__" for n in place.node.body):
                continue
            return {"misfit": f"{place.node.name} ({place.path}:{place.line}) takes no {keyword}"}
        except Gone:
            return {"misfit": f"{place.node.name} ({place.path}:{place.line}) takes no {keyword}"}
    return {}


def _dotted(tree: Tree, touch: Touch) -> tuple[dict[str, object], str, int, str]:
    """A dotted name in a text of ours: a module, a member of one, a compiled module of the build, or an entry point group."""
    names = names_of(tree)
    whole = touch.chain[0]
    if names.is_module(whole):
        return {}, names.path(whole), 1, whole
    if f'"{whole}"' in tree.text("vllm/plugins/__init__.py"):
        return {}, "vllm/plugins/__init__.py", 1, whole
    head, _, name = whole.rpartition(".")
    if head == "vllm" and name.endswith("_C"):
        own = (ROOT / "overlay" / "cmake" / "dcu.cmake").read_text(encoding="utf-8")
        if re.search(rf"_add_library\({name}\b", own):
            return {}, "cmake/dcu.cmake", 1, whole  # a module of ours
        return _in_build(tree, Touch("target", (name,), touch.how, touch.where))
    try:
        place = names.find(head, (name,))
    except External:
        return {"external": True}, "", 0, ""
    except Gone as error:
        return {"gone": str(error)}, f"{head.replace('.', '/')}.py", 1, ""
    return {}, place.path, place.line, whole


def _class(tree: Tree, name: str) -> tuple[dict[str, object], str, int, str]:
    """A class that we know by its name alone: somewhere among the layers it is defined."""
    for path in tree.containing(f"class {name}", "vllm/model_executor/layers/", ".py"):
        if match := re.search(rf"(?m)^class {name}\b.*", tree.text(path)):
            return {}, path, line_of(tree.text(path), match.start()), match[0]
    return {"gone": f"no layer's file defines a class {name}"}, "vllm/model_executor/layers", 1, ""


def _argument(tree: Tree, touch: Touch) -> tuple[dict[str, object], str, int, str]:
    """An argument with a fixed value in upstream's call that our own line stands in."""
    callee, argument = touch.chain
    name, _, wanted = argument.partition("=")
    names = names_of(tree)
    try:
        parsed, path = names.parse(touch.module), names.path(touch.module)
    except Gone as error:
        return {"gone": str(error)}, f"{touch.module.replace('.', '/')}.py", 1, ""
    for node in ast.walk(parsed):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == callee:
            for k in node.keywords:
                if k.arg == name and isinstance(k.value, ast.Constant) and k.value.value == wanted:
                    return {}, path, node.lineno, ast.unparse(node)
    return {"gone": f"no call of {callee} in {path} has {argument}"}, path, 1, ""


def _in_build(tree: Tree, touch: Touch) -> tuple[dict[str, object], str, int, str]:
    text, name = tree.text("CMakeLists.txt"), touch.chain[0]
    line = line_of(text, max(text.find(name), 0))
    if touch.module == "target":
        try:
            here = name in cmake_eval.evaluate(tree).targets
        except cmake_eval.EvaluationFailed:
            here = name in text  # build-set says what is wrong with the file
    else:
        texts = [text, *(tree.text(p) for p in tree.under("cmake/", ".cmake") if p != "cmake/dcu.cmake")]
        here = any(re.search(rf"\b{name}\b", t) for t in texts)
    return ({} if here else {"gone": f"upstream's build has no {name}"}), "CMakeLists.txt", line, name


def _first_lines(tree: Tree, place: Place) -> str:
    lines = tree.text(place.path).splitlines()
    body = getattr(place.node, "body", None)
    last = body[0].lineno - 1 if body else getattr(place.node, "end_lineno", place.line)
    return "\n".join(lines[place.line - 1 : max(last, place.line)])[:2000]


def _readers(tree: Tree) -> set[str]:
    """Names among those that we override, write or wrap which upstream's own code asks for: a call, a read, any use but the import."""
    forms = {"override": r"\.{}\s*\(", "write": r"\.{}\b(?!\s*=[^=])", "wrap": r"(?m)^(?!.*\bimport\b)(?:.*[^.\w])?(?<!def ){}\b(?!,$)"}
    asked = {t.chain[-1]: re.compile(forms[t.how].format(t.chain[-1]).encode()) for t in touched() if t.how in forms and t.chain}
    texts = [d for p, d in tree.files.items() if p.startswith("vllm/") and not p.startswith("vllm/dcu/") and p.endswith(".py")]
    return {name for name, pattern in asked.items() if any(name.encode() in d and pattern.search(d) for d in texts)}


def escapes(root: Path = ROOT) -> list[Touch]:
    """Uses of upstream things in the overlay that no contract can hold, because our own annotations do not say what they are."""
    return ours.overlay_touches(root)[1]
