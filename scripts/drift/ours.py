"""What our own sources touch of upstream, collected by reading them: the contract that every release is held against.

Nothing is listed by hand. A touch is a module and a chain of names below it, from the overlay's Python (imports, attributes,
arguments, overrides, writes), from the lines that the series adds to upstream's files, and from our CMake and C++.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

from scripts.common.paths import ROOT

__all__ = ["CALL", "ITEM", "Touch", "overlay_touches", "read_python"]

#: Links of a chain that are not names: the result of a call, an element of a container.
CALL, ITEM = "()", "[]"
_DOTTED = re.compile(r"vllm(?:\.\w+)+")
_VARIABLE = re.compile(r"VLLM_[A-Z0-9_]+")
_OPERATOR = re.compile(r"_\w*C::(\w+)")


@dataclass(frozen=True)
class Touch:
    """One upstream thing that a line of ours depends on.

    Attributes:
        module: dotted module, or one of "env", "cmake", "file", "text".
        chain: names below it; `CALL` and `ITEM` stand for a result and an element.
        how: import, read, call, write, override, wrap.
        positional, keywords: the arguments of a call (positional None: unknown, because of a star).
        where: file:line of ours.
    """

    module: str
    chain: tuple[str, ...]
    how: str
    where: str
    positional: int | None = 0
    keywords: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The same touch in any release and from any line."""
        return f"{self.module}:{'.'.join(self.chain)}:{self.how}" + (
            f":{self.positional}:{','.join(self.keywords)}" if self.how == "call" else ""
        )


@dataclass(frozen=True)
class _Ref:
    module: str
    chain: tuple[str, ...] = ()

    def then(self, *links: str) -> _Ref:
        return _Ref(self.module, (*self.chain, *links))


def _ours(module: str) -> bool:
    return module == "vllm.dcu" or module.startswith("vllm.dcu.")


@dataclass
class _Reader(ast.NodeVisitor):
    """One module of ours: names bound to upstream things are followed through assignments, loops, calls and annotations."""

    path: str
    found: list[Touch] = field(default_factory=list)
    escapes: list[Touch] = field(default_factory=list)
    scopes: list[dict[str, _Ref]] = field(default_factory=lambda: [{}])
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    bases: list[tuple[_Ref, set[str]]] = field(default_factory=list)
    returning: list[ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=list)
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict)  # constants of the module that are texts, by name
    handed: dict[tuple[str, str], _Ref] = field(default_factory=dict)  # upstream modules that enter a function of ours, by argument

    def note(self, node: ast.AST, ref: _Ref, how: str, call: ast.Call | None = None) -> None:
        positional: int | None = 0
        keywords: tuple[str, ...] = ()
        if call is not None:
            star = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
            positional = None if star else len(call.args)
            keywords = tuple(k.arg for k in call.keywords if k.arg)
        self.found.append(Touch(ref.module, ref.chain, how, f"{self.path}:{getattr(node, 'lineno', 1)}", positional, keywords))

    def lookup(self, name: str) -> _Ref | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    # Bindings.

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "vllm" and not _ours(alias.name):
                self.note(node, _Ref(alias.name), "import")
                self.scopes[-1][alias.asname or "vllm"] = _Ref(alias.name if alias.asname else "vllm")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if module.split(".")[0] == "vllm" and not _ours(module):
            for alias in node.names:
                if module == "vllm" and alias.name == "dcu":
                    continue
                ref = _Ref(module, (alias.name,))
                self.note(node, ref, "import")
                self.scopes[-1][alias.asname or alias.name] = ref

    def _bind(self, target: ast.expr, ref: _Ref | None) -> None:
        if isinstance(target, ast.Name):
            if ref is not None:
                self.scopes[-1][target.id] = ref
            else:
                self.scopes[-1].pop(target.id, None)
        elif isinstance(target, ast.Attribute):
            owner = self.ref(target.value)
            if owner is not None:
                self.note(target, owner.then(target.attr), "write")
            else:
                self.visit(target.value)
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._bind(element, None)
        else:
            self.visit(target)

    def visit_Assign(self, node: ast.Assign) -> None:
        ref = self.ref(node.value)
        for target in node.targets:
            self._bind(target, ref)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        ref = self.ref(node.value) if node.value is not None else None
        self._bind(node.target, self.annotated(node.annotation) or ref)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.ref(node.value)
        self._bind(node.target, self.lookup(node.target.id) if isinstance(node.target, ast.Name) else None)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, self.ref(node.value))

    def visit_For(self, node: ast.For) -> None:
        over = self.ref(node.iter)
        self._bind(node.target, over.then(ITEM) if over else None)
        for child in (*node.body, *node.orelse):
            self.visit(child)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.scopes.append({})
        for generator in node.generators:
            over = self.ref(generator.iter)
            self._bind(generator.target, over.then(ITEM) if over else None)
            for condition in generator.ifs:
                self.ref(condition)
        for value in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.ref(value)
        self.scopes.pop()

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def annotated(self, node: ast.expr | None) -> _Ref | None:
        """The upstream class that an annotation names, alone or in a union."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                return None
        if isinstance(node, ast.BinOp):
            return self.annotated(node.left) or self.annotated(node.right)
        if isinstance(node, ast.Name):
            return self.lookup(node.id)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in ("list", "Sequence", "Iterable"):
            inner = self.annotated(node.slice)
            return None if inner is None else _Ref(inner.module, (*inner.chain, "*"))
        return None

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.ref(decorator)
        scope: dict[str, _Ref] = {}
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            ref = self.annotated(argument.annotation) or self.handed.get((node.name, argument.arg))
            if ref:
                scope[argument.arg] = ref
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.ref(default)
        self.scopes.append(scope)
        self.returning.append(node)
        for child in node.body:
            self.visit(child)
        self.returning.pop()
        self.scopes.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_Return(self, node: ast.Return) -> None:
        ref = self.ref(node.value)
        if ref is not None and self.returning and isinstance(node.value, ast.Call | ast.Name):
            declared = self.returning[-1].returns
            if declared is None or ast.unparse(declared) in ("Any", "object"):
                self.escapes.append(Touch(ref.module, ref.chain, "escape", f"{self.path}:{node.lineno}"))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        theirs = [r for r in (self.ref(b) for b in node.bases) if r is not None]
        mine = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        self.bases.extend((r, mine) for r in theirs)
        for base in theirs:
            for child in node.body:
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("__"):
                    self.note(child, base.then(child.name), "override")
        for child in node.body:
            self.visit(child)
        del self.bases[len(self.bases) - len(theirs) :]

    # Uses.

    def ref(self, node: ast.expr | None) -> _Ref | None:
        """What upstream thing an expression is, noting every touch on the way."""
        if isinstance(node, ast.Name):
            if node.id in ("cls", "self") and self.bases:
                return self.bases[-1][0]
            return self.lookup(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Subscript):
            if ast.unparse(node.value) == "sys.modules" and (module := self._module(node, node.slice)) is not None:
                return module
            self.ref(node.slice)
            owner = self.ref(node.value)
            return owner.then(ITEM) if owner else None
        if isinstance(node, ast.IfExp):
            self.ref(node.test)
            left, right = self.ref(node.body), self.ref(node.orelse)
            return left or right
        if isinstance(node, ast.BoolOp):
            refs = [self.ref(v) for v in node.values]
            return next((r for r in refs if r), None)
        if isinstance(node, ast.Await):
            return self.ref(node.value)
        if isinstance(node, ast.NamedExpr):
            self.visit_NamedExpr(node)
            return self.lookup(node.target.id)
        if node is not None:
            super().visit(node)
        return None

    def _attribute(self, node: ast.Attribute) -> _Ref | None:
        owner = self.ref(node.value)
        if owner is None:
            return None
        if owner.module == "vllm" and not owner.chain and node.attr == "dcu":
            return None
        if isinstance(node.value, ast.Name) and node.value.id in ("cls", "self") and self.bases and node.attr in self.bases[-1][1]:
            return None
        ref = owner.then(node.attr)
        self.note(node, ref, "read")
        return ref

    def _call(self, node: ast.Call) -> _Ref | None:
        function = node.func
        name = function.id if isinstance(function, ast.Name) else ""
        if name == "super" and self.bases:
            return self.bases[-1][0]
        if name in ("getattr", "hasattr", "setattr") and len(node.args) >= 2 and (text := self._text(node.args[1])):
            owner = self.ref(node.args[0])
            if owner is not None and not text.startswith("dcu"):  # a mark of our own
                ref = owner.then(text)
                self.note(node, ref, "write" if name == "setattr" else "read")
                return ref
        called = ast.unparse(function) if isinstance(function, ast.Attribute) else ""
        by_name = self._module(node, node.args[0]) if called in ("sys.modules.get", "importlib.import_module") and node.args else None
        if by_name is not None:
            return by_name
        if called == "functools.wraps" and node.args and (wrapped := self.ref(node.args[0])) is not None:
            self.note(node, wrapped, "wrap")
            return None
        callee = self.ref(function)
        values = [(None, a) for a in node.args] + [(k.arg, k.value) for k in node.keywords]
        for position, (keyword, value) in enumerate(values):
            given = self.ref(value.value if isinstance(value, ast.Starred) else value)
            if given is not None and name in self.functions:
                self._hand_on(name, position, keyword, given)
        if name in ("str", "int", "bool", "list", "tuple", "sorted", "type", "len", "repr", "set"):
            return None
        if callee is None:
            own = self.functions.get(name)
            return self.annotated(own.returns) if own is not None else None
        self.note(node, callee, "call", node)
        return callee.then(CALL)

    def _text(self, node: ast.expr) -> str:
        """The text that an expression is: a literal, or a constant of the module; "" for any other."""
        if isinstance(node, ast.Name):
            return next(iter(self.texts.get(node.id, ())), "")
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""

    def _module(self, node: ast.expr, named: ast.expr) -> _Ref | None:
        text = self._text(named)
        if not _is_upstream(text):
            return None
        ref = _Ref(text)
        self.note(node, ref, "import")
        return ref

    def visit_Compare(self, node: ast.Compare) -> None:
        """`c.__name__ in NAMES`: classes that we know by their name alone."""
        if isinstance(node.left, ast.Attribute) and node.left.attr == "__name__":
            for other in node.comparators:
                literals = other.elts if isinstance(other, ast.Tuple | ast.List | ast.Set) else [other]
                names = self.texts.get(other.id, ()) if isinstance(other, ast.Name) else map(self._text, literals)
                for name in filter(None, names):
                    self.note(node, _Ref("class", (name,)), "name")
        self.generic_visit(node)

    def _hand_on(self, name: str, position: int, keyword: str | None, ref: _Ref) -> None:
        """An upstream thing that enters a function of ours under an annotation that does not name it cannot be followed there."""
        own = self.functions[name]
        arguments = [*own.args.posonlyargs, *own.args.args, *own.args.kwonlyargs]
        named = [a for a in arguments if a.arg == keyword] if keyword else arguments[position : position + 1]
        argument = named[0] if named else None
        if argument is None or self.annotated(argument.annotation) is not None:
            return
        if argument.annotation is not None and ast.unparse(argument.annotation) == "ModuleType":
            self.handed[name, argument.arg] = ref
            return
        for inner in ast.walk(own):
            if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == argument.arg:
                self.escapes.append(Touch(ref.module, (*ref.chain, inner.attr), "escape", f"{self.path}:{inner.lineno}"))

    def visit_Constant(self, node: ast.Constant) -> None:
        if _is_upstream(node.value):
            self.note(node, _Ref("dotted", (str(node.value),)), "read")
        elif isinstance(node.value, str) and _VARIABLE.fullmatch(node.value) and not node.value.startswith("VLLM_DCU_"):
            self.note(node, _Ref("env", (node.value,)), "read")
        elif isinstance(node.value, str) and (named := _OPERATOR.fullmatch(node.value)):
            self.note(node, _Ref("op", (named[1],)), "call")

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute | ast.Call | ast.Subscript | ast.IfExp | ast.BoolOp):
            self.ref(node)
        else:
            super().visit(node)


def _is_upstream(value: object) -> bool:
    return isinstance(value, str) and bool(_DOTTED.fullmatch(value)) and not _ours(value)


def read_python(path: str, text: str) -> tuple[list[Touch], list[Touch]]:
    """(touches, escapes) of one Python file of ours; an escape is a use that cannot be followed and therefore not be held."""
    parsed = ast.parse(text)
    reader = _Reader(path, texts=_texts(parsed))
    reader.functions = {n.name: n for n in parsed.body if isinstance(n, ast.FunctionDef)}
    # Imports first: annotations name classes that a TYPE_CHECKING block or a function brings.
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vllm" and not _ours(node.module):
            for alias in node.names:
                if alias.name != "dcu":
                    reader.scopes[0].setdefault(alias.asname or alias.name, _Ref(node.module, (alias.name,)))
    docstrings = {id(n.value) for n in ast.walk(parsed) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    for node in ast.walk(parsed):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, [v for v in value if not (isinstance(v, ast.Expr) and id(v.value) in docstrings)] or value)
    once, scope = dict(reader.handed), dict(reader.scopes[0])
    while True:  # what is handed on is known when all callers were read
        reader.found, reader.escapes, reader.scopes = [], [], [dict(scope)]
        reader.visit(parsed)
        if reader.handed == once:
            return reader.found, reader.escapes
        once = dict(reader.handed)


def _texts(parsed: ast.Module) -> dict[str, tuple[str, ...]]:
    """Constants of a module that are a text or several."""
    found = {}
    for node in parsed.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values = node.value.elts if isinstance(node.value, ast.Tuple | ast.List | ast.Set) else [node.value]
            texts = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
            if texts and len(texts) == len(values):
                found[node.targets[0].id] = tuple(texts)
    return found


def overlay_touches(root: Path = ROOT) -> tuple[list[Touch], list[Touch]]:
    """(touches, escapes) of every Python file of the overlay."""
    found: list[Touch] = []
    escapes: list[Touch] = []
    for path in sorted((root / "overlay").rglob("*.py")):
        touches, escaped = read_python(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        found += touches
        escapes += escaped
    return found, escapes
