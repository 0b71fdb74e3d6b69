"""What the build would compile for gfx936: sources, flags and definitions of every native module."""

from __future__ import annotations

import json
import re
from functools import cache

from scripts.drift.contracts import cmake_eval, cxx
from scripts.drift.contracts.includes import compiled, reached
from scripts.drift.contracts.model import BLOCK, INFO, OPEN, REVIEW, Fact, Facts, Finding, Tree, changes, closing

ID = "build-set"
HOLDS = ("source:_rocm_C:",)
#: The module whose every kernel is a capability of its own: nothing new may enter it for gfx936 unseen.
NATIVE = "_rocm_C"
#: Text that ties a source to instructions of other arches: matrix and dot instructions by builtin or mnemonic, and assembly by hand.
HAZARD = re.compile(
    r"__builtin_amdgcn_\w*(?:mfma|smfmac|wmma|fdot|sdot|udot)\w*|\bv_(?:\w*mfma|smfmac|wmma|swmmac|dot\d)\w*"
    r"|\brocwmma\b|\basm\s*(?:volatile|__volatile__)?\s*\(\s*\"\s*[svd]\w*_\w+"
)


def hazards(tree: Tree, source: str) -> list[str]:
    """`file: instruction` for everything arch-bound that a source reaches and that gfx936 may be compiled with."""
    found = set()
    for path in reached(tree, source).files:
        found |= {f"{path.removeprefix('csrc/')}: {word}" for word in _in_file(tree.files.get(path, b""))}
    return sorted(found)


@cache
def _in_file(data: bytes) -> frozenset[str]:
    text = cxx.without_comments(data.decode("utf-8", "replace"))
    return frozenset(" ".join(m[0].split()) for m in HAZARD.finditer(text) if compiled(text, m.start()))


def collect(tree: Tree) -> list[Fact]:
    """Per module: one fact a source, one for the flags, one for the definitions."""
    try:
        build = cmake_eval.evaluate(tree)
    except cmake_eval.EvaluationFailed as error:
        return [Fact(ID, "evaluation", str(error), "CMakeLists.txt", 1)]
    facts = []
    for name in build.modules():
        module = build.module(name)
        for source in module.sources:
            out = sorted({n.split("/")[0] for n in reached(tree, source).outside})
            kind = "device" if source.endswith((".cu", ".hip")) else "host"
            value = json.dumps([kind, hazards(tree, source)[:60], len(reached(tree, source).files), out])
            facts.append(Fact(ID, f"source:{name}:{source}", value, "CMakeLists.txt", _line(tree, source), source))
        for library in module.links:
            part = build.targets.get(library)
            if part is not None and part.kind == "OBJECT":
                facts.append(Fact(ID, f"objects:{name}:{library}", " ".join(part.sources), "CMakeLists.txt", _line(tree, library), library))
        facts.append(Fact(ID, f"flags:{name}", " ".join(module.flags), "CMakeLists.txt", _line(tree, name), name))
        facts.append(Fact(ID, f"definitions:{name}", " ".join(sorted(module.definitions)), "CMakeLists.txt", 0, name))
    mode = "one shared target, closed before the end of the file" if "hipify_all" in build.hipify else "one target a module"
    facts.append(Fact(ID, "hipify", mode, "CMakeLists.txt", _line(tree, "vllm_finalize_hipify_target")))
    return facts


def judge(base: Facts, new: Facts) -> list[Finding]:
    """BLOCK for anything new in `_rocm_C`; REVIEW for flags, hipify and hazardous sources; INFO for the rest."""
    after = new.of(ID)
    if "evaluation" in after:
        stopped = after["evaluation"]
        level = REVIEW if stopped.value.startswith("not evaluated") else BLOCK
        return [Finding(level, ID, "evaluation", stopped.path, stopped.line, f"CMake does not evaluate for gfx936: {stopped.value}")]
    found: list[Finding] = []
    known = {_word(w) for key, f in base.of(ID, "source:").items() for w in json.loads(f.value)[1]}
    quiet: list[str] = []
    native: list[Fact] = []
    for key, old, fact in changes(base.of(ID), after):
        kind, _, rest = key.partition(":")
        module, _, source = rest.partition(":")
        if kind == "source":
            before = json.loads(old.value)[3] if old is not None else []
            if fact is not None and (blind := [o for o in json.loads(fact.value)[3] if o.startswith("macro ") and o not in before]):
                sentence = f"not evaluated: what {source} of {module} includes by {', '.join(blind)}, and with which instructions."
                found.append(Finding(OPEN, ID, f"blind:{rest}", fact.path, fact.line, sentence, f"+{source}"))
            found.extend(_source(key, module, source, old, fact, quiet, native, known))
        elif kind == "hipify" and fact is not None and old is not None:
            sentence = f"hipify is now {fact.value} (before: {old.value}): a target added after that point is an error."
            row = Finding(BLOCK, ID, key, fact.path, fact.line, sentence, f"-{old.value}\n+{fact.value}")
            joined = f"source:{NATIVE}:csrc/rocm/dcu_llmm1.cu" in after
            found.append(closing(row, "our source, which joins _rocm_C before that point (cmake/dcu.cmake)" if joined else ""))
        elif kind == "objects" and module == NATIVE:
            at = fact or old
            assert at is not None
            what = f"holds {fact.value}" if fact else "is gone"
            sentence = f"the object library {source} of {NATIVE} {what}" + (f" (before: {old.value})." if old else ": it is new.")
            found.append(Finding(REVIEW, ID, key, at.path, at.line, sentence))
        elif fact is not None and old is not None and kind in ("flags", "definitions"):
            gone, come = set(old.value.split()) - set(fact.value.split()), set(fact.value.split()) - set(old.value.split())
            note = " (compressed code objects: the audit cannot read them)" if "--offload-compress" in come else ""
            sentence = f"{kind} of {module} change{note}: " + " ".join([*(f"-{g}" for g in sorted(gone)), *(f"+{c}" for c in sorted(come))])
            level = REVIEW if module == NATIVE else INFO
            found.append(Finding(level, ID, key, fact.path, fact.line, sentence, f"-{old.value}\n+{fact.value}"))
    if native:
        native.sort(key=lambda f: f.region)
        listing = ", ".join(f.region.removeprefix("csrc/rocm/") for f in native[:4]) + (" ..." if len(native) > 4 else "")
        sentence = f"{len(native)} new source(s) in {NATIVE} would be built for gfx936: {listing}."
        hunk_text = "\n".join(f"+{f.region}" for f in native)
        found.append(Finding(BLOCK, ID, "new-native-sources", "CMakeLists.txt", native[0].line, sentence, hunk_text))
    if quiet:
        now = [
            json.loads(f.value)
            for k, f in after.items()
            if k.startswith("source:") and f"+{k.removeprefix('source:').replace(':', ' ', 1)}" in quiet
        ]
        out = sorted({o for row in now for o in row[3]})
        held = sorted({_word(w) for row in now for w in row[1]})
        none = "none with arch-bound instructions" + (f" but those that the base has too ({', '.join(held)})" if held else "")
        reach = f"{none} in the {sum(row[2] for row in now)} file(s) of this tree that they reach" if now else "none new"
        sentence = f"{len(quiet)} source(s) outside {NATIVE} enter or leave the build, {reach}"
        sentence += f"; not read, for they are not in it: {', '.join(out[:12])}{' ...' if len(out) > 12 else ''}." if out else "."
        found.append(Finding(INFO, ID, "sources", "CMakeLists.txt", 0, sentence, "\n".join(quiet)))
    return found


def _word(hazard: str) -> str:
    """The instruction of a `file: instruction`."""
    return hazard.split(": ", 1)[1].replace('asm volatile("', "")


def _source(
    key: str, module: str, source: str, old: Fact | None, new: Fact | None, quiet: list[str], native: list[Fact], known: set[str]
) -> list[Finding]:
    if new is None and old is not None:
        if module == NATIVE:
            sentence = f"{source} is no longer built into {NATIVE}."
            return [Finding(REVIEW, ID, key, "CMakeLists.txt", old.line, sentence, f"-{source}")]
        quiet.append(f"-{module} {source}")
    elif new is not None:
        kind, words, *_ = json.loads(new.value)
        if old is not None:
            more = [w for w in words if _word(w) not in known]
            if module == NATIVE or not more:
                return []
            sentence = f"{source} of {module} reaches instructions of other archs now: {', '.join(more)}."
            return [Finding(REVIEW, ID, key, "CMakeLists.txt", new.line, sentence, f"+{source}")]
        if module == NATIVE and kind == "device":
            native.append(new)
        elif more := [w for w in words if _word(w) not in known]:
            what = ", ".join(more[:6])
            sentence = f"{source} is new in {module}, would be built for gfx936 and reaches instructions of other archs: {what}."
            return [Finding(REVIEW, ID, key, "CMakeLists.txt", new.line, sentence, f"+{source}")]
        else:
            quiet.append(f"+{module} {source}")
    return []


def _line(tree: Tree, token: str) -> int:
    text = tree.text("CMakeLists.txt")
    at = text.find(token)
    return text.count("\n", 0, at) + 1 if at >= 0 else 0
