"""Upstream Python that our hooks stand on: signatures, bodies, call arguments, order of returns, moment of dispatch."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator

from scripts.drift.contracts.model import BLOCK, INFO, REVIEW, Fact, Facts, Finding, Tree, changes, hunk

ID = "python-code"
UTILS = "vllm/model_executor/layers/utils.py"
ROCM = "vllm/platforms/rocm.py"
PLATFORMS = "vllm/platforms/__init__.py"
TORCH_UTILS = "vllm/utils/torch_utils.py"
OPS = "vllm/_custom_ops.py"
LINEAR = "vllm/model_executor/layers/linear.py"
EMBEDDING = "vllm/model_executor/layers/vocab_parallel_embedding.py"

#: What we call, wrap or gate: (file, qualified name, what its loss means).
WATCHED = (
    (UTILS, "rocm_unquantized_gemm_impl", BLOCK),
    (UTILS, "rocm_unquantized_gemm_fake", BLOCK),
    (UTILS, "rocm_unquantized_gemm", BLOCK),
    (UTILS, "dispatch_unquantized_gemm", BLOCK),
    (UTILS, "default_unquantized_gemm", REVIEW),
    (TORCH_UTILS, "direct_register_custom_op", BLOCK),
    (OPS, "LLMM1", BLOCK),
    (PLATFORMS, "rocm_platform_plugin", BLOCK),
    (PLATFORMS, "resolve_current_platform_cls_qualname", REVIEW),
    (ROCM, "_get_gcn_arch", BLOCK),
    (ROCM, "_query_gcn_arch_from_amdsmi", REVIEW),
    (ROCM, "_capability_from_gcn_arch", REVIEW),
    (ROCM, "with_amdsmi_context", REVIEW),
    (ROCM, "RocmPlatform.get_device_name", BLOCK),
    (ROCM, "RocmPlatform.use_custom_allreduce", REVIEW),
    (LINEAR, "UnquantizedLinearMethod.apply", REVIEW),
    (EMBEDDING, "UnquantizedEmbeddingMethod.apply", REVIEW),
)
IMPL = (UTILS, "rocm_unquantized_gemm_impl")
DISPATCH = "dispatch_unquantized_gemm"
#: Calls whose argument order is a contract: callee name -> files that call it.
CALLS = {"LLMM1": (UTILS, OPS), "rocm_unquantized_gemm": (UTILS,), "dispatch_unquantized_gemm": (LINEAR, EMBEDDING)}


def collect(tree: Tree) -> list[Fact]:
    """Facts of every watched definition, of the impl's returns, of the calls and of where the choice is made."""
    facts: list[Fact] = []
    parsed = {path: _parse(tree, path) for path in {p for p, _, _ in WATCHED}}
    for path, name, _ in WATCHED:
        node = _find(parsed[path], name)
        if node is not None:
            region = _source(tree, path, node)
            facts.append(Fact(ID, f"signature:{path}:{name}", _signature(node), path, node.lineno, region.split("\n", 1)[0]))
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
    return facts


def judge(base: Facts, new: Facts) -> list[Finding]:
    """Missing or re-ordered interfaces block; changed bodies and moments are for a reader."""
    levels = {f"{p}:{n}": level for p, n, level in WATCHED}
    found = []
    for key, old, fact in changes(base.of(ID), new.of(ID)):
        kind, _, name = key.partition(":")
        at = fact or old
        assert at is not None
        said = _say(kind, name, old, fact, levels.get(name, REVIEW))
        if said:
            diff = hunk(old.region if old else "", fact.region if fact else "")
            found.append(Finding(said[0], ID, key, at.path, at.line, said[1], diff))
    return found


def _say(kind: str, name: str, old: Fact | None, new: Fact | None, level: str) -> tuple[str, str] | None:
    short = name.split(":")[-1]
    if kind == "signature":
        if new is None:
            return level, f"{short} is gone from {name.split(':')[0]}: what we hook or call there must find its new place."
        if old is None:
            return INFO, f"{short} is new in this release."
        verdict = compare_signatures(json.loads(old.value), json.loads(new.value))
        return (verdict[0], f"{short}: {verdict[1]}") if verdict else None
    if kind == "body" and old is not None and new is not None:
        return REVIEW, f"the body of {short} changed (docstrings and layout not counted)."
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
        return REVIEW, f"the GEMM implementation is chosen elsewhere: {_places(old)} -> {_places(new)}."
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


def compare_signatures(old: list[list[str]], new: list[list[str]]) -> tuple[str, str] | None:
    """Old and new parameters as [name, kind, default]: BLOCK where a caller of the old form breaks or swaps."""
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


def _signature(node: ast.FunctionDef) -> str:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    rows = [[a.arg, "positional", ast.unparse(d) if d else "required"] for a, d in zip(positional, defaults, strict=True)]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        rows.append([argument.arg, "keyword", ast.unparse(default) if default else "required"])
    return json.dumps(rows)


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
