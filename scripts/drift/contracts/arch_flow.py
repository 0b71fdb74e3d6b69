"""The arch string and the capability, followed through every module: what reads them is run for gfx936, or *not evaluated*.

Which code reads them is found from the text (the sources below, and the names of readers as other modules import them); what it
decides is found by running it (`flow.py`), for both spellings of gfx936, for other archs, and for one that nobody can know of. What is
true for gfx936 and false for the unknown arch takes gfx936 in by resemblance: a BLOCK.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scripts.common.overlay import overlay_module
from scripts.drift.contracts import arch_truth
from scripts.drift.contracts.alone import Unanswered, say_of
from scripts.drift.contracts.model import BLOCK, INFO, OPEN, REVIEW, Fact, Facts, Finding, Tree, changes, closing, hunk

ID = "arch-flow"
HOLDS = ("reader:",)
SPELLINGS = ("gfx936", "gfx936:sramecc+:xnack-")
#: An arch that no release supports; what is true for it is true for every ROCm device.
UNKNOWN = "gfx1033"
OTHERS = ("gfx942",)
#: For all archs together; a reader that does not end is stopped long before (`flow.py`).
SECONDS = 600.0
#: Modules that see the string itself are run for its bare spelling too.
STRING = re.compile(rb"gcnArchName|get_arch_list|target_graphics|_ARCH\b|gcn_?arch|get_current_target|getenv|environ", re.I)
ROCM = "vllm/platforms/rocm.py"
#: Ways to the arch or the capability that are not upstream's own names; those are read from the platform file.
SOURCES = (
    r"gcnArchName|target_graphics_version|PYTORCH_ROCM_ARCH|gfx_target_version|\w*[gG][cC][nN]_?[aA][rR][cC][hH]\w*"
    r"|(?:get|has|is)_device_capability\w*|get_device_properties|get_arch_list|get_current_target"
)
#: What gives the arch itself: what is done with it is anybody's guess until it runs. The rest are predicates with an answer of their own.
RAW = re.compile(
    r"(?:gcnArchName|target_graphics_version|PYTORCH_ROCM_ARCH|gfx_target_version|\w*gcn_?arch\w*|get_device_capability|get_arch_list|major|minor|get_current_target)$",
    re.I,
)
#: vLLM's own tooling that asks the arch to print it.
_LEFT_OUT = (
    "vllm/dcu/",
    *(f"vllm/platforms/{name}.py" for name in ("cuda", "xpu", "cpu", "tpu", "zen_cpu")),
    "vllm/collect_env.py",
    "vllm/usage/",
    "vllm/third_party/",
    "vllm/entrypoints/",
    "vllm/benchmarks/",
)


def _sources(tree: Tree) -> re.Pattern[str]:
    """The sources, with every arch predicate that the platform file defines."""
    own = re.findall(r"(?m)^(?:def )?(_?(?:on|ON)_\w+)\b(?:\(| *(?::[^=\n]+)?=)", tree.text(ROCM))
    return re.compile(rf"\b(?:{'|'.join([SOURCES, *sorted(set(own))])})\b")


@dataclass(frozen=True)
class _Unit:
    """A function, method, or attribute of a module or class: what it mentions, and a digest of its code."""

    name: str
    line: int
    mentions: frozenset[str]
    digest: str


@cache
def _units_of(data: bytes) -> tuple[_Unit, ...]:
    try:
        parsed = ast.parse(data)
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        _Unit(name, node.lineno, frozenset(m for part in (node, *under) for m in _mentions(part)), _digest(node, *under))
        for name, node, under in _units(parsed.body, "")
    )


def _digest(node: ast.AST, *under: ast.expr) -> str:
    """Of the code alone: a comment, its layout or its docstring is no change."""
    documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None
    words = [ast.dump(inner) for inner in (*ast.iter_child_nodes(node), *under)]
    return hashlib.sha256("\n".join(w for w in words if not (documented and w == ast.dump(node.body[0]))).encode()).hexdigest()[:12]  # type: ignore[attr-defined]


@cache
def readers(tree: Tree) -> dict[str, dict[str, int]]:
    """{path: {reader: line}}: what mentions a source, and what uses such a reader in its own module or as an import."""
    pattern = _sources(tree)
    found: dict[str, dict[str, int]] = {}
    exported: dict[tuple[str, str], None] = {}
    texts = {p: tree.text(p) for p in tree.under("vllm/", ".py") if not p.startswith(_LEFT_OUT) and pattern.search(tree.text(p))}
    for path in texts:
        found[path] = _in_module(_units_of(tree.files[path]), lambda n: bool(pattern.fullmatch(n)))
    for _ in range(3):
        fresh = {(_module(p), r) for p, rs in found.items() for r in rs if "." not in r} - set(exported)
        exported.update(dict.fromkeys(fresh))
        for path, names in _importers(tree, fresh).items():
            if path == ROCM or path.startswith(_LEFT_OUT):
                continue
            found.setdefault(path, {}).update(_in_module(_units_of(tree.files[path]), names.__contains__))
    return {p: rs for p, rs in found.items() if rs}


def _importers(tree: Tree, fresh: set[tuple[str, str]]) -> dict[str, set[str]]:
    """Which modules import which of the fresh readers, by the name they give them."""
    found: dict[str, set[str]] = {}
    for path, data in tree.files.items():
        if path.startswith("vllm/") and path.endswith(".py"):
            for module, name, given in _imports(path, data):
                if (module, name) in fresh:
                    found.setdefault(path, set()).add(given)
    return found


@cache
def _imports(path: str, data: bytes) -> tuple[tuple[str, str, str], ...]:
    """(module, name, name given) of every `from ... import` of vLLM's own."""
    found = []
    for match in re.finditer(rb"(?m)^[ \t]*from (\.[\w.]*|vllm[\w.]*) import (\([^)]*\)|[^\n(]+)", data):
        module = match[1].decode()
        if module.startswith("."):
            package = _module(path).split(".")
            up = len(module) - len(module.lstrip("."))
            package = package[: len(package) - up + (1 if path.endswith("__init__.py") else 0)]
            module = ".".join([*package, *filter(None, [module.lstrip(".")])])
        for part in re.sub(r"#[^\n]*|[()]", "", match[2].decode("utf-8", "replace")).split(","):
            name, _, given = part.strip().partition(" as ")
            found.append((module, name.strip(), given.strip() or name.strip()))
    return tuple(found)


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _in_module(units: tuple[_Unit, ...], is_source: Callable[[str], bool]) -> dict[str, int]:
    """Readers of one module, to a fixed point: functions, methods, module and class attributes that mention a source or a reader."""
    found = {u.name: u.line for u in units if any(map(is_source, u.mentions))}
    while True:
        local = {name.split(".")[-1] for name in found}
        fresh = {u.name: u.line for u in units if u.name not in found and not local.isdisjoint(u.mentions)}
        if not fresh:
            return found
        found.update(fresh)


def _units(
    body: list[ast.stmt], owner: str, under: tuple[ast.expr, ...] = ()
) -> Iterator[tuple[str, ast.stmt | ast.expr, tuple[ast.expr, ...]]]:
    """(name, what gives it its value, the conditions under which it does) of everything that a module or class defines."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner + node.name, node, under
        elif isinstance(node, ast.ClassDef):
            yield from _units(node.body, f"{owner}{node.name}.", under)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                        yield owner + name.id, node.value, under
        else:  # a statement with others inside: what it asks decides about them
            asks = (*under, *(n for n in (getattr(node, f, None) for f in ("test", "iter", "subject")) if isinstance(n, ast.expr)))
            inner = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            inner += [part.body for part in (*getattr(node, "handlers", []), *getattr(node, "cases", []))]
            for part in inner:
                yield from _units(part, owner, asks)


def _mentions(node: ast.AST) -> Iterator[str]:
    """Names, attributes and whole texts inside a node, docstrings left out."""
    docs = ast.get_docstring(node, clean=False) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr
        elif isinstance(child, ast.Constant) and isinstance(child.value, str) and child.value != docs:
            yield child.value
        elif isinstance(child, ast.alias):
            yield child.name


@cache
def flowed(tree: Tree) -> dict[str, dict[str, list[str]]]:
    """{arch: {module:reader: outcomes}}."""
    whole = {_module(p): list(rs) for p, rs in readers(tree).items()}
    wanted = _wanted(tree)
    if wanted is not None:
        whole = {m: [r for r in rs if f"reader:{m}:{r}" in wanted] for m, rs in whole.items()}
    bare = {_module(p): whole[_module(p)] if STRING.search(tree.files[p]) else [] for p in readers(tree)}
    plans = {SPELLINGS[0]: bare} | dict.fromkeys((SPELLINGS[1], UNKNOWN, *OTHERS), whole)
    with tempfile.TemporaryDirectory() as folder:
        tree.write(Path(folder), "vllm/platforms", "vllm/envs.py", "vllm/_aiter_ops.py", "vllm/dcu", *readers(tree))
        try:
            said: dict[str, dict[str, list[str]]] = say_of("flow.py", folder, seconds=SECONDS, given=json.dumps(plans))
        except Unanswered as error:
            return {SPELLINGS[1]: {":": [f"open: {error}"]}}
    return said


def _wanted(tree: Tree) -> dict[str, Fact] | None:
    """For a carried release: what the release as it is says, whose readers alone can answer differently with the series; else None."""
    return tree.pristine.of(ID) if tree.patched and tree.pristine is not None else None


def collect(tree: Tree) -> list[Fact]:
    """A fact for each reader whose outcome depends on the arch, and for each that could not be followed."""
    said = flowed(tree)
    lines = {f"{_module(p)}:{r}": (p, line) for p, rs in readers(tree).items() for r, line in rs.items()}
    texts = _texts(tree)
    by_module = {_module(p): p for p in readers(tree)}
    facts = [f for key, f in (_wanted(tree) or {}).items() if key.startswith("open:")]
    ours = [said.get(s, {}) for s in SPELLINGS]
    ours[0] = {**ours[1], **ours[0]}
    judged = _judged(tree)
    for key in sorted({k for s in ours for k in s} - judged):
        path, line = lines.get(key, (by_module.get(key.split(":")[0], ROCM), 1))
        both = sorted({o for s in ours for o in s.get(key, ["absent"])})
        unknown = said.get(UNKNOWN, {}).get(key, ["absent"])
        spelled = ours[0].get(key) != ours[-1].get(key)
        depends = spelled or any(said.get(a, {}).get(key, ["absent"]) != ours[0].get(key) for a in (UNKNOWN, *OTHERS))
        known = [o for o in both if not o.startswith("open: ")]
        if (
            len(known) < len(both) and not tree.patched
        ):  # a way that was not followed could be the one that matters: it is counted, not left out
            digest, raw = texts.get(key, ("", True))
            value = json.dumps({"open": [o.removeprefix("open: ") for o in both if o not in known], "text": digest, "raw": raw})
            facts.append(Fact(ID, f"open:{key}", value, path, line, key.split(":")[1]))
        if depends and known:
            shut = _shut_backend(tree, path, key) if tree.patched else ""
            value = json.dumps({"outcomes": known, "unknown": unknown, "spelled": spelled, "shut": shut}, sort_keys=True)
            facts.append(Fact(ID, f"reader:{key}", value, path, line, key.split(":")[1]))
    return facts


def _shut_backend(tree: Tree, path: str, key: str) -> str:
    """By what a reader of an attention backend's own module is out of reach: our platform refuses the backend by its name."""
    name = key.split(":")[1].split(".")[-1]
    if any(p != path and not p.startswith("vllm/dcu/") for p in tree.containing(name, "vllm/", ".py")):
        return ""
    registry = tree.text("vllm/v1/attention/backends/registry.py")
    named = re.findall(rf"""(?m)^\s+(\w+)\s*=\s*\(?\s*["']{re.escape(_module(path))}\.""", registry)
    allowed = overlay_module("device.shut").ATTENTION_OPEN
    return f"our platform, which refuses {', '.join(named)} (vllm/dcu/device/shut.py)" if named and not allowed & set(named) else ""


def _judged(tree: Tree) -> set[str]:
    """What `arch-truth` evaluates already, with sample arguments."""
    try:
        truths = arch_truth.probe(tree, arch_truth.ARCH)["truth"]
    except Unanswered:
        return set()
    prefixes = {"rocm": "vllm.platforms.rocm:", "RocmPlatform": "vllm.platforms.rocm:RocmPlatform.", "aiter": "vllm._aiter_ops:"}
    return {prefixes[k.split(".")[0]] + k.split(".", 1)[1].removesuffix("()") for k in truths if "." in k}


def _texts(tree: Tree) -> dict[str, tuple[str, bool]]:
    """(digest of a reader's code: one that is open counts again when it changed; whether it takes the arch itself)."""
    return {
        f"{_module(p)}:{u.name}": (u.digest, any(map(RAW.match, u.mentions)))
        for p, names in readers(tree).items()
        for u in _units_of(tree.files[p])
        if u.name in names
    }


def judge(base: Facts, new: Facts) -> list[Finding]:
    """BLOCK for a new truth by resemblance, one REVIEW row a file for other answers that moved, *not evaluated* for what is newly open."""
    found: list[Finding] = []
    moved: dict[str, list[str]] = {}
    quiet: list[str] = []
    behind: list[str] = []
    where: dict[str, Fact] = {}
    before = base.of(ID)
    for key, old, fact in changes(before, new.of(ID)):
        if fact is None:
            continue
        kind, _, name = key.partition(":")
        if kind == "open" and not json.loads(fact.value)["raw"]:
            behind.append(f"{fact.path}:{fact.line}: {fact.region}")
        elif kind == "open":
            moved.setdefault(f"open:{fact.path}", []).append(f"{fact.region} ({'; '.join(json.loads(fact.value)['open'])[:90]})")
            where.setdefault(f"open:{fact.path}", fact)
        if kind == "open":
            continue
        answer, was = json.loads(fact.value), json.loads(old.value) if old else None
        verdict = _verdict(answer, was)
        said = f"{name.removeprefix('vllm.')} is {_text(answer)} for gfx936" + (f", it was {_text(was)}" if was else "")
        if verdict == BLOCK:
            sentence = f"{said}, and not for an arch that is unknown: code that upstream opens by it would run there unproven."
            row = Finding(BLOCK, ID, key, fact.path, fact.line, sentence, hunk(_text(was) if was else "", _text(answer)))
            found.append(closing(row, answer.get("shut", "")))
        elif verdict == REVIEW:
            moved.setdefault(fact.path, []).append(said)
            where.setdefault(fact.path, fact)
        else:
            quiet.append(said)
    for path, rows in sorted(moved.items()):
        at, level = where[path], OPEN if path.startswith("open:") else REVIEW
        what = "not evaluated: what reads the arch or the capability here" if level == OPEN else "the arch or the capability decides here"
        sentence = f"{what}: {'; '.join(rows[:3])}" + (f"; and {len(rows) - 3} more" if len(rows) > 3 else "") + "."
        found.append(Finding(level, ID, path, at.path, at.line, sentence, "\n".join(f"+{r}" for r in rows)))
    if behind:
        sentence = (
            f"{len(behind)} function(s) that ask evaluated predicates are new or changed and could not be run to every end; "
            "the predicates' own answers stand above or are as before."
        )
        found.append(Finding(INFO, ID, "behind", ROCM, 0, sentence, "\n".join(behind)))
    if quiet:
        sentence = (
            f"{len(quiet)} reader(s) of the arch or the capability are new or changed and treat gfx936 as they treat an unknown arch."
        )
        found.append(Finding(INFO, ID, "quiet", ROCM, 0, sentence, "\n".join(quiet)))
    return found


def _verdict(answer: dict[str, Any], was: dict[str, Any] | None) -> str:
    outcomes, unknown = ({o for o in answer[k] if not o.startswith(("raises", "open: "))} for k in ("outcomes", "unknown"))
    yes = [o for o in outcomes - unknown if _YES.match(o)]
    if yes and all(_YES.match(o) or _NO.match(o) for o in outcomes):
        return BLOCK if was is None or not any(_YES.match(o) for o in was["outcomes"]) else REVIEW
    if answer["spelled"]:
        return REVIEW
    return INFO if outcomes <= unknown or all(_NO.match(o) for o in outcomes) else REVIEW


#: An answer of a predicate, alone or before its reason: `true`, `[true, null]`.
_YES, _NO = re.compile(r"\[?true\b"), re.compile(r"\[?false\b|null$")


def _text(answer: dict[str, Any] | None) -> str:
    if answer is None:
        return "absent"
    shown = [o if len(o) < 60 else o[:57] + "..." for o in answer["outcomes"]]
    return " or ".join(shown[:3]) + (" ..." if len(shown) > 3 else "") + (" (depending on how it is spelled)" if answer["spelled"] else "")
