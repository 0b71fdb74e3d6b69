"""The native side we stand on: op schemas and their #if guards, bound symbols, LLMM1's text, the wave size."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from scripts.drift.contracts import cmake_eval, cxx
from scripts.drift.contracts.includes import reached
from scripts.drift.contracts.model import BLOCK, INFO, REVIEW, Fact, Facts, Finding, Tree, changes, closing, hunk, line_of

ID = "native-ops"
HOLDS = ("schema:", "bound:", "region:", "wave:", "hipify:")
MODULE = "_rocm_C"
#: The op our capability calls; every other op of the module is watched, not used.
USED = "LLMM1"
BINDINGS = "csrc/rocm/torch_bindings.cpp"
#: Definitions whose text is the evidence's subject.
KERNEL = ("LLGemm1_kernel", "LLMM1")
#: Where hipify's rules live, and the functions that decide when it runs.
HIPIFY = "cmake/hipify.py"


def collect(tree: Tree) -> list[Fact]:
    """Facts for schemas, bindings, the LLMM1 region, WARP_SIZE and hipify."""
    return [*_schemas(tree), *_bindings(tree), *_kernel(tree), *_wave(tree), *_hipify(tree)]


def judge(base: Facts, new: Facts) -> list[Finding]:
    """See the sentences: the used op, its kernel text and an undefined symbol block; the rest is for a reader."""
    found = []
    others: list[str] = []
    for key, old, fact in changes(base.of(ID), new.of(ID)):
        kind, _, name = key.partition(":")
        if kind in ("schema", "guard") and name != USED:
            others.extend(f"{sign}{kind} {name}: {f.value}" for sign, f in (("-", old), ("+", fact)) if f)
            continue
        level, sentence = _say(kind, name, old, fact)
        if level:
            at = fact or old
            assert at is not None
            diff = hunk(old.region if old else "", fact.region if fact else "")
            row = Finding(level, ID, key, at.path, at.line, sentence, diff)
            found.append(closing(row, _closed(kind, new)) if level == BLOCK else row)
    if others:
        names = {line.split()[1].rstrip(":") for line in others}
        sentence = f"{len(names)} other op(s) of {MODULE} change schema or guard; none is opened for gfx936."
        found.append(Finding(INFO, ID, "other-ops", BINDINGS, 1, sentence, "\n".join(others)))
    return found


def _closed(kind: str, new: Facts) -> str:
    """What of ours answers a BLOCK in a carried tree: our own bindings, and our unit's own checks."""
    bound = [f for f in new.of(ID, "bound:").values() if f.path == "csrc/rocm/dcu_bindings.cpp" and json.loads(f.value) is True]
    if not bound:
        return ""
    if kind == "guard":
        return "csrc/rocm/dcu_bindings.cpp, which binds the operator for gfx936 under no guard"
    if kind == "place":
        return "csrc/rocm/dcu_llmm1.cu, which takes upstream's own includes (cmake/dcu.cmake) and asserts WARP_SIZE when it is compiled"
    return ""


def _say(kind: str, name: str, old: Fact | None, new: Fact | None) -> tuple[str, str]:
    if name == USED and kind == "schema":
        return BLOCK, f"op {MODULE}::{name} is " + ("gone." if new is None else f"now {new.value}")
    if name == USED and kind == "guard" and new is not None:
        return BLOCK, f"op {MODULE}::{name} now stands under #if {new.value or 'nothing'}: the gfx936 build must satisfy it."
    if kind == "bound" and new is not None and json.loads(new.value) is False:
        return BLOCK, f"{name} is bound in {BINDINGS} but nothing that is built for gfx936 defines it: the module would not load."
    if kind == "region":
        if new is None:
            return BLOCK, f"{name} is not in csrc/ any more: the capability has no kernel."
        if old is None:
            return BLOCK, f"{name} has a new definition in {new.path}."
        return BLOCK, f"the text of {name} changed: numbers and records taken with the old text do not hold for it."
    if kind == "place" and old is not None and new is not None:
        level = BLOCK if name.startswith("WARP_SIZE") else REVIEW
        return level, f"{name} moved from {old.value} to {new.value}: includes and the generated prefix must follow."
    if kind in ("wave", "macro"):
        where = f" ({', '.join(sorted(set(re.findall('// in (.*)', new.region))))})" if new else ""
        return BLOCK, f"the definition of {name} changed as LLMM1's unit sees it{where}." if new else f"{name} has no definition any more."
    if kind == "hipify" and old is not None:
        return REVIEW, f"{name} changed: the names and places of hipified files may have moved."
    return "", ""


def _schemas(tree: Tree) -> Iterator[Fact]:
    text = tree.text(BINDINGS)
    for match in re.finditer(r"\b\w+\.def\(\s*((?:\"(?:\\.|[^\"\\])*\"\s*)+)", text):
        schema = " ".join("".join(re.findall(r"\"((?:\\.|[^\"\\])*)\"", match[1])).split())
        guard = " && ".join(cxx.guards(text, match.start()))
        name = schema.split("(", 1)[0]
        line = line_of(text, match.start())
        yield Fact(ID, f"schema:{name}", schema, BINDINGS, line, schema)
        yield Fact(ID, f"guard:{name}", guard, BINDINGS, line, f"#if {guard}" if guard else "")


def _bindings(tree: Tree) -> Iterator[Fact]:
    """For each symbol bound with the macros of the gfx936 build: is it defined in a source of that build?"""
    try:
        module = cmake_eval.evaluate(tree).module(MODULE)
    except cmake_eval.EvaluationFailed:
        return  # build-set reports it
    defined = {d.split("=")[0] for d in module.definitions} | {f[2:].split("=")[0] for f in module.flags if f.startswith("-D")}
    bindings = [s for s in module.sources if s.endswith(".cpp")] or [BINDINGS]
    device = [s for s in module.sources if s.endswith((".cu", ".hip"))]
    for path in bindings:
        text = tree.text(path)
        for match in re.finditer(r"\.impl\(\s*\"(\w+)\"[^;]*?&\s*([\w:]+)\s*\)", text):
            if cxx.active(cxx.guards(text, match.start()), defined) is False:
                continue
            symbol = match[2].split("::")[-1]
            has = any(cxx.definitions(tree.text(s), symbol) for s in [*device, *bindings])
            yield Fact(ID, f"bound:{symbol}", json.dumps(has), path, line_of(text, match.start()), match[0])


def _kernel(tree: Tree) -> Iterator[Fact]:
    for name in KERNEL:
        regions: list[tuple[str, int, str]] = []
        for path in tree.containing(name, "csrc/", ".cu", ".cuh"):
            if path.startswith("csrc/rocm/dcu_"):
                continue
            text = tree.text(path)
            regions.extend((path, line_of(text, a), text[a:b]) for a, b in cxx.definitions(text, name))
        if not regions:
            continue
        joined = "\n".join(r for _, _, r in regions)
        path, line, _ = regions[0]
        digest = hashlib.sha256(joined.encode()).hexdigest()
        yield Fact(ID, f"region:{name}", digest, path, line, joined)
        yield Fact(ID, f"place:{name}", path, path, line)
        helpers = _helpers(tree.text(path), joined)
        if helpers:
            digest = hashlib.sha256(helpers.encode()).hexdigest()
            yield Fact(ID, f"region:helpers of {name}", digest, path, line, helpers)


def _words(region: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w{3,}", cxx.without_comments(region)))


def _extents(text: str, plain: str, word: str) -> Iterator[tuple[int, int]]:
    """Where a function, struct or macro called `word` is defined."""
    if re.search(rf"\b{word}\s*\(", plain):
        yield from cxx.definitions(text, word)
    for match in re.finditer(rf"^[^\n#]*\bstruct\s+{word}\b[^;{{]*\{{", plain, re.M):
        yield match.start(), cxx.closing(plain, match.end() - 1)
    for match in re.finditer(rf"^[ \t]*#[ \t]*define[ \t]+{word}\b(?:[^\n]*\\\n)*[^\n]*", plain, re.M):
        yield match.span()


def _helpers(text: str, region: str) -> str:
    """The text of what `region` uses from its own file: functions, structs and macros, in file order."""
    plain = cxx.without_comments(text)
    spans: set[tuple[int, int]] = set()
    seen: set[str] = set(KERNEL)
    words = _words(region)
    while new := words - seen:
        for word in new:
            spans.update(_extents(text, plain, word))
        seen |= new
        words = {w for a, b in spans for w in _words(text[a:b])}
    return "\n".join(text[a:b] for a, b in sorted(spans))


def _unit(tree: Tree) -> str:
    """The source that holds LLMM1."""
    holds = (p for p in tree.containing(USED, "csrc/") if not p.startswith("csrc/rocm/dcu_") and cxx.definitions(tree.text(p), USED))
    return next(holds, "csrc/rocm/skinny_gemms.cu")


def _wave(tree: Tree) -> Iterator[Fact]:
    """WARP_SIZE as LLMM1's unit sees it, and every other macro that the kernel's text uses and a file it reaches defines."""
    unit = _unit(tree)
    used = set().union(*(_words(tree.text(unit)[a:b]) for name in KERNEL for a, b in cxx.definitions(tree.text(unit), name)), {"WARP_SIZE"})
    macros: dict[str, list[tuple[str, str, int]]] = {}
    for path in reached(tree, unit).files:
        plain = cxx.without_comments(tree.text(path))
        for match in re.finditer(r"^[ \t]*#[ \t]*(?:define|undef)[ \t]+(\w+)(?:[^\n]*\\\n)*[^\n]*", plain, re.M):
            if match[1] in used and (path != unit or match[1] == "WARP_SIZE"):
                guard = " && ".join(cxx.guards(plain, match.start()))
                macros.setdefault(match[1], []).append(
                    (f"{' '.join(match[0].split())}  // if {guard}", path, line_of(plain, match.start()))
                )
    for name, given in _given(tree):
        if name in used:
            macros.setdefault(name, []).append((f"-D{given}", "CMakeLists.txt", max(1, line_of(tree.text("CMakeLists.txt"), 0))))
    for name, rows in sorted(macros.items()):
        text = "\n".join(sorted(r[0] for r in rows))
        if name == "WARP_SIZE":  # and what its definition calls, which stands before it in the same header
            text += "".join(_before(tree, path) for path in sorted({r[1] for r in rows} - {"CMakeLists.txt"}))
        kind = "wave" if name == "WARP_SIZE" else "macro"
        shown = "\n".join(f"{row[0]}  // in {row[1]}" for row in rows)
        yield Fact(ID, f"{kind}:{name}", hashlib.sha256(text.encode()).hexdigest(), rows[-1][1], rows[-1][2], shown)
        if name == "WARP_SIZE" and (headers := sorted({r[1] for r in rows} - {"CMakeLists.txt"})):
            yield Fact(ID, "place:WARP_SIZE's header", ", ".join(headers), rows[0][1], rows[0][2])


def _given(tree: Tree) -> Iterator[tuple[str, str]]:
    """Macros that the build itself gives to the module's units: (name, definition)."""
    try:
        module = cmake_eval.evaluate(tree).module(MODULE)
    except cmake_eval.EvaluationFailed:
        return  # build-set reports it
    for given in dict.fromkeys([*module.definitions, *(f[2:] for f in module.flags if f.startswith(("-D", "-U")))]):
        yield given.split("=")[0], given


def _before(tree: Tree, path: str) -> str:
    """The text of a header from its first #if to the last definition of WARP_SIZE, without layout."""
    plain = cxx.without_comments(tree.text(path))
    first = re.search(r"^[ \t]*#[ \t]*if", plain, re.M)
    region = plain[first.start() if first else 0 : plain.rfind("WARP_SIZE")]
    return "\n".join(" ".join(line.split()) for line in region.splitlines() if line.strip())


def _hipify(tree: Tree) -> Iterator[Fact]:
    text = tree.text(HIPIFY)
    plain = "\n".join(line.rstrip() for line in text.splitlines() if not line.lstrip().startswith("#"))
    yield Fact(ID, "hipify:" + HIPIFY, hashlib.sha256(plain.encode()).hexdigest(), HIPIFY, 1, plain)
    utils = tree.text("cmake/utils.cmake")
    for name in ("hipify_sources_target", "override_gpu_arches", "define_extension_target", "define_gpu_extension_target"):
        match = re.search(rf"^(?:function|macro)\s*\(\s*{name}\b.*?^end(?:function|macro)\s*\([^)]*\)", utils, re.M | re.S)
        if match:
            body = "\n".join(line.rstrip() for line in match[0].splitlines() if not line.lstrip().startswith("#"))
            digest = hashlib.sha256(body.encode()).hexdigest()
            yield Fact(ID, f"hipify:{name}", digest, "cmake/utils.cmake", line_of(utils, match.start()), body)
