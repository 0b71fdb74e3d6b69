"""What the build would compile for gfx936: sources, flags and definitions of every native module."""

from __future__ import annotations

import json
import re

from scripts.drift.contracts import cmake_eval
from scripts.drift.contracts.model import BLOCK, INFO, REVIEW, Fact, Facts, Finding, Tree, changes

ID = "build-set"
HOLDS = ("source:_rocm_C:",)
#: The module whose every kernel is a capability of its own: nothing new may enter it for gfx936 unseen.
NATIVE = "_rocm_C"
#: Text that ties a source to instructions of other arches.
HAZARD = re.compile(r"__builtin_amdgcn_(?:w?mfma|smfmac|wmma|fdot2|sdot|udot)\w*|asm\s+volatile\s*\(\s*\"v_\w+|\bv_dot2\w*")


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
            text = tree.text(source)
            hazards = sorted(set(HAZARD.findall(text)))
            value = json.dumps(["device" if source.endswith((".cu", ".hip")) else "host", hazards[:5]])
            facts.append(Fact(ID, f"source:{name}:{source}", value, "CMakeLists.txt", _line(tree, source), source))
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
    quiet: list[str] = []
    native: list[Fact] = []
    for key, old, fact in changes(base.of(ID), after):
        kind, _, rest = key.partition(":")
        module, _, source = rest.partition(":")
        if kind == "source":
            found.extend(_source(key, module, source, old, fact, quiet, native))
        elif kind == "hipify" and fact is not None and old is not None:
            sentence = f"hipify is now {fact.value} (before: {old.value}): a target added after that point is an error."
            found.append(Finding(REVIEW, ID, key, fact.path, fact.line, sentence, f"-{old.value}\n+{fact.value}"))
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
        sentence = f"{len(quiet)} source(s) outside {NATIVE} enter or leave the build, none with arch-bound instructions."
        found.append(Finding(INFO, ID, "sources", "CMakeLists.txt", 0, sentence, "\n".join(quiet)))
    return found


def _source(key: str, module: str, source: str, old: Fact | None, new: Fact | None, quiet: list[str], native: list[Fact]) -> list[Finding]:
    if new is None and old is not None:
        if module == NATIVE:
            sentence = f"{source} is no longer built into {NATIVE}."
            return [Finding(REVIEW, ID, key, "CMakeLists.txt", old.line, sentence, f"-{source}")]
        quiet.append(f"-{module} {source}")
    elif new is not None:
        kind, hazards = json.loads(new.value)
        if old is not None:
            before = json.loads(old.value)[1]
            if module == NATIVE or sorted(hazards) == sorted(before):
                return []
            quiet.append(f" {module} {source}: {before} -> {hazards}")
        elif module == NATIVE and kind == "device":
            native.append(new)
        elif hazards:
            sentence = f"{source} is new in {module}, would be built for gfx936 and holds {', '.join(hazards)}."
            return [Finding(REVIEW, ID, key, "CMakeLists.txt", new.line, sentence, f"+{source}")]
        else:
            quiet.append(f"+{module} {source}")
    return []


def _line(tree: Tree, token: str) -> int:
    text = tree.text("CMakeLists.txt")
    at = text.find(token)
    return text.count("\n", 0, at) + 1 if at >= 0 else 0
