"""Upstream Python that our hooks stand on: signatures, bodies, call arguments, order of returns, moment of dispatch."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator

from scripts.drift.contracts import touches, way
from scripts.drift.contracts.model import BLOCK, INFO, REVIEW, Fact, Facts, Finding, Tree, changes, closing, hunk
from scripts.drift.contracts.signatures import compare_signatures, signature
from scripts.drift.upstream_names import External, Gone, names_of

ID = "python-code"
UTILS = "vllm/model_executor/layers/utils.py"
OPS = "vllm/_custom_ops.py"
LINEAR = "vllm/model_executor/layers/linear.py"
EMBEDDING = "vllm/model_executor/layers/vocab_parallel_embedding.py"

HOLDS = ("body:", "returns:", "registration:", "moment:", "call:")
OP = "rocm_unquantized_gemm"
IMPL = (UTILS, f"{OP}_impl")
DISPATCH = "dispatch_unquantized_gemm"
#: Calls whose argument order is a contract: callee name -> files that call it.
CALLS = {"LLMM1": (UTILS, OPS), "rocm_unquantized_gemm": (UTILS,), "dispatch_unquantized_gemm": (LINEAR, EMBEDDING)}


def watched(tree: Tree) -> list[tuple[str, str]]:
    """(file, qualified name) of what we call, wrap, override or hand on, of what the way goes through, and of what `CALLS` names."""
    names = names_of(tree)
    found = set(way.functions(tree))
    for touch in touches.touched():
        if touch.module.startswith("vllm") and touch.how in ("call", "wrap", "override", "read") and touch.chain:
            try:
                place = names.find(touch.module, touch.chain)
            except (Gone, External):
                continue  # `touches` says so
            if isinstance(place.node, ast.FunctionDef):
                owner = f"{place.owner[1].name}." if place.owner else ""
                found.add((place.path, owner + place.node.name))
    found.update((path, callee) for callee in CALLS for path in (UTILS, OPS))
    return sorted(found)


def collect(tree: Tree) -> list[Fact]:
    """Facts of every watched definition, of the impl's returns, of the calls and of where the choice is made."""
    facts: list[Fact] = []
    watch = watched(tree)
    parsed = {path: _parse(tree, path) for path in {UTILS, *(p for p, _ in watch)}}
    for path, name in watch:
        node = _find(parsed[path], name)
        if node is not None:
            region = _source(tree, path, node)
            if name in CALLS:
                facts.append(Fact(ID, f"signature:{path}:{name}", json.dumps(signature(node)), path, node.lineno, region.split("\n", 1)[0]))
            facts.append(Fact(ID, f"body:{path}:{name}", body_hash(node), path, node.lineno, region))
    impl = _find(parsed[IMPL[0]], IMPL[1])
    if impl is not None:
        order = returns(impl)
        facts.append(Fact(ID, "returns:" + IMPL[1], json.dumps(order), IMPL[0], impl.lineno, "\n".join(order)))
    for callee, paths in CALLS.items():
        for path in paths:
            seen: dict[str, int] = {}
            for line, scope, text in _calls(parsed.get(path) or _parse(tree, path), callee):
                seen[scope] = seen.get(scope, 0) + 1
                facts.append(Fact(ID, f"call:{path}:{scope}#{seen[scope]}:{callee}", text, path, line, text))
    facts.extend(_registration(tree, parsed[UTILS]))
    facts.extend(_moments(tree))
    facts.extend(_other_ways(tree))
    return facts


def judge(base: Facts, new: Facts) -> list[Finding]:
    """Re-ordered interfaces and a second way to the implementation block; changed bodies are for a reader, in one row."""
    found = []
    bodies: list[tuple[str, Fact, Fact]] = []
    for key, old, fact in changes(base.of(ID), new.of(ID)):
        kind, _, name = key.partition(":")
        at = fact or old
        assert at is not None
        if kind == "body":
            if old is not None and fact is not None:
                bodies.append((name.split(":")[-1], old, fact))
            continue
        said = _say(kind, name, old, fact)
        if said:
            diff = hunk(old.region if old else "", fact.region if fact else "")
            row = Finding(said[0], ID, key, at.path, at.line, said[1], diff)
            held = kind == "moment" and row.level == BLOCK and way.arrives(new)
            found.append(closing(row, "the gate at the operator's registration, where the walk of every layer arrives" if held else ""))
    hooked = {t.chain[-1] for t in touches.touched() if t.where.startswith("vllm/") and t.chain}
    ordered = {f.key.partition(":")[2] for f in found if f.key.startswith("returns:")}
    for level, what, rows in (
        (REVIEW, "that our hooks wrap or hand on", [b for b in bodies if b[0] in hooked and b[0] not in ordered]),
        (INFO, "on the way or under our overrides, where the walk arrives as `way` says", [b for b in bodies if b[0] not in hooked]),
    ):
        if rows:
            sentence = f"the body of {', '.join(sorted(b[0] for b in rows))} changed, {what} (docstrings and layout not counted)."
            diff = "\n".join(f"# {n}\n{hunk(o.region, f.region, 30)}" for n, o, f in rows)
            found.append(Finding(level, ID, f"body:{level}", rows[0][2].path, rows[0][2].line, sentence, diff))
    return found


def _say(kind: str, name: str, old: Fact | None, new: Fact | None) -> tuple[str, str] | None:
    short = name.split(":")[-1]
    if kind == "signature":
        if old is None or new is None:
            return None  # `touches` and `way` say what is gone
        verdict = compare_signatures(json.loads(old.value), json.loads(new.value))
        return (verdict[0], f"{short}: {verdict[1]}") if verdict and verdict[0] == BLOCK else None
    if kind == "aside" and old is None and new is not None:
        return BLOCK, f"{name.split('::')[0]} names {IMPL[1]} itself: a call that goes that way does not meet the gate."
    if kind == "pass" and new is not None:
        return (
            REVIEW,
            f"the graph pass {name} matches or makes calls of {OP} by its name ({new.value}): what it replaces does not meet the gate.",
        )
    if kind == "returns" and old is not None and new is not None:
        before, after = json.loads(old.value), json.loads(new.value)
        early = [r for r in after if r not in before and after.index(r) < _first_llmm1(after)]
        what = f" {len(early)} new return(s) come before LLMM1's." if early else ""
        return REVIEW, f"the order of returns in {short} changed.{what}"
    if kind == "call" and old is not None and new is not None:
        before, after = json.loads(old.value), json.loads(new.value)
        if sorted(before) == sorted(after):
            return BLOCK, f"the arguments of a call of {short} are in another order: {', '.join(before)} -> {', '.join(after)}."
        return REVIEW, f"a call of {short} has other arguments: {', '.join(before)} -> {', '.join(after)}."
    if kind == "registration":
        return BLOCK, f"the registration of the op changed: {new.value if new else 'gone'}."
    if kind == "moment" and new is not None and old is not None:
        level = REVIEW if name == "elsewhere" else BLOCK
        return level, f"the GEMM implementation is chosen elsewhere: {_places(old)} -> {_places(new)}."
    return None


def _places(fact: Fact) -> str:
    return ", ".join(p.split("/")[-1] for p in json.loads(fact.value)) or "nowhere"


def _first_llmm1(order: list[str]) -> int:
    return next((i for i, r in enumerate(order) if "LLMM1" in r), len(order))


def body_hash(node: ast.AST) -> str:
    """A hash of the code itself: docstrings, comments, layout and line numbers do not count."""
    clone = ast.parse(ast.unparse(node))
    for child in ast.walk(clone):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(child) is not None:
            child.body = child.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(clone).encode()).hexdigest()


def returns(node: ast.FunctionDef) -> list[str]:
    """Every way out in order, with the innermost condition it stands under."""

    def walk(body: list[ast.stmt], condition: str) -> Iterator[str]:
        for statement in body:
            if isinstance(statement, ast.Return):
                yield f"if {condition}: return {ast.unparse(statement.value)}" if statement.value else condition
            elif isinstance(statement, ast.If):
                yield from walk(statement.body, ast.unparse(statement.test))
                yield from walk(statement.orelse, f"not ({ast.unparse(statement.test)})" if statement.orelse else condition)
            elif isinstance(statement, ast.With | ast.For | ast.While | ast.Try):
                yield from walk(statement.body, condition)

    return list(walk(node.body, "reached"))


def _parse(tree: Tree, path: str) -> ast.Module:
    try:
        return ast.parse(tree.text(path))
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def _find(parsed: ast.Module, name: str) -> ast.FunctionDef | None:
    body: list[ast.stmt] = parsed.body
    *owners, last = name.split(".")
    for owner in owners:
        match = next((n for n in body if isinstance(n, ast.ClassDef) and n.name == owner), None)
        if match is None:
            return None
        body = match.body
    return next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == last), None)


def _source(tree: Tree, path: str, node: ast.FunctionDef) -> str:
    return "\n".join(tree.text(path).splitlines()[node.lineno - 1 : node.end_lineno])


def _calls(parsed: ast.AST, callee: str, scope: str = "") -> Iterator[tuple[int, str, str]]:
    for child in ast.iter_child_nodes(parsed):
        inner = f"{scope}.{child.name}".strip(".") if isinstance(child, ast.FunctionDef | ast.ClassDef) else scope
        if isinstance(child, ast.Call):
            name = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
            if name == callee:
                arguments = [ast.unparse(a) for a in child.args]
                arguments += [f"{k.arg}={ast.unparse(k.value)}" for k in child.keywords]
                yield child.lineno, inner, json.dumps(arguments)
        yield from _calls(child, callee, inner)


def _registration(tree: Tree, parsed: ast.Module) -> Iterator[Fact]:
    for line, _, arguments in _calls(parsed, "direct_register_custom_op"):
        if "op_name='rocm_unquantized_gemm'" in json.loads(arguments):
            # Our own hook wraps op_func at this place; the rest of the row is upstream's.
            kept = [a for a in json.loads(arguments) if not a.startswith("op_func=")]
            yield Fact(ID, "registration:rocm_unquantized_gemm", ", ".join(kept), UTILS, line, "\n".join(kept))


def _moments(tree: Tree) -> Iterator[Fact]:
    """Which functions of the dense and embedding layers ask for the implementation: per call, or once at construction."""
    for path in (LINEAR, EMBEDDING):
        scopes = sorted({f"{path}:{scope}" for _, scope, _ in _calls(_parse(tree, path), DISPATCH) if scope})
        line = next((n for n, s, _ in _calls(_parse(tree, path), DISPATCH) if s), 1)
        yield Fact(ID, f"moment:{path}", json.dumps(scopes), path, line, "\n".join(scopes))
    elsewhere = sorted(
        p for p in tree.containing(DISPATCH, "vllm/", ".py") if p not in (LINEAR, EMBEDDING, UTILS) and not p.startswith("vllm/dcu/")
    )
    yield Fact(ID, "moment:elsewhere", json.dumps(elsewhere), elsewhere[0] if elsewhere else LINEAR, 1, "\n".join(elsewhere))


def _other_ways(tree: Tree) -> Iterator[Fact]:
    """Code that names the implementation outside of its registration, and graph passes that name the operator."""
    for path in tree.containing(OP, "vllm/", ".py"):
        if path.startswith("vllm/dcu/"):
            continue
        passes: dict[str, int] = {}
        for line, scope, name, call in _names(_parse(tree, path)):
            if name == IMPL[1] and call != "direct_register_custom_op":
                yield Fact(ID, f"aside:{path}::{scope}", "", path, line, scope)
            elif name == OP and "/compilation/" in path:
                passes.setdefault(scope.split(".")[0] or "module", line)
        if passes:
            yield Fact(ID, f"pass:{path.split('/')[-1]}", ", ".join(passes), path, min(passes.values()), "\n".join(passes))


def _names(node: ast.AST, scope: str = "", call: str = "") -> Iterator[tuple[int, str, str, str]]:
    """(line, scope, name, innermost call) of every read of a name or attribute, and of every text that is a name."""
    for child in ast.iter_child_nodes(node):
        inner, inside = scope, call
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{child.name}".strip(".")
        if isinstance(child, ast.Call):
            # `gate.wrap(impl)` inside the registration is the registration's own.
            inside = call if call == "direct_register_custom_op" else ast.unparse(child.func).split(".")[-1]
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
            yield child.lineno, scope, child.id, call
        elif isinstance(child, ast.Attribute):
            yield child.lineno, scope, child.attr, call
        elif isinstance(child, ast.Constant) and isinstance(child.value, str) and len(child.value) < 80:
            yield child.lineno, scope, child.value.split("::")[-1].split(".")[-1], call
        elif isinstance(child, ast.ImportFrom):
            yield from ((child.lineno, scope, a.name, "import") for a in child.names)
        yield from _names(child, inner, inside)
