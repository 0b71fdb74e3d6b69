"""Truth of every arch predicate and arch-dependent platform method for gfx936, by running upstream's code.

Nothing here knows the names of the predicates: whatever boolean, function or class method the release's ROCm platform
has is evaluated for gfx936 and for the arches below, so that a predicate that did not exist yesterday is found today.
"""

from __future__ import annotations

import json
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from scripts.drift.contracts.alone import Unanswered, say_of
from scripts.drift.contracts.model import BLOCK, INFO, REVIEW, Fact, Facts, Finding, Tree, changes, hunk

ID = "arch-truth"
HOLDS = ("rocm.", "RocmPlatform.", "aiter.")
ARCH = "gfx936"
SPELLED = "gfx936:sramecc+:xnack-"
#: What "depends on the arch" is measured against. gfx906 is a Vega with no CDNA features, like the target.
OTHERS = ("gfx906", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
PROBED_FILES = ("vllm/platforms", "vllm/envs.py", "vllm/_aiter_ops.py", "vllm/dcu")
#: Answers that matter although they do not depend on the arch: they choose what runs on the DCU.
CHOICES = ("rocm._get_backend_priorities()", "RocmPlatform.get_vit_attn_backend()", "RocmPlatform.opaque_attention_op()")


SECONDS = 120.0


@cache
def probe(tree: Tree, arch: str) -> dict[str, Any]:
    """Evaluate one tree for one arch in a child process with an empty environment.

    Raises:
        Unanswered: upstream's platform code did not run under the probe: the question is open, which is a BLOCK.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree.write(Path(folder), *PROBED_FILES)
        answers: dict[str, Any] = say_of("probe.py", folder, arch, seconds=SECONDS)
    return answers


def collect(tree: Tree) -> list[Fact]:
    """One fact per question; `value` holds gfx936's answer and whether the arch matters to it."""
    try:
        ours = _both(probe(tree, ARCH)["truth"], probe(tree, SPELLED)["truth"])
        others = [probe(tree, arch)["truth"] for arch in OTHERS]
    except Unanswered as error:
        return [Fact(ID, "probe", str(error), "vllm/platforms/rocm.py", 1)]
    facts = []
    for key, answer in ours.items():
        depends = any(o.get(key) != answer for o in others)
        path, line, region = _where(tree, key)
        value = json.dumps({"answer": answer, "arch-dependent": depends}, sort_keys=True)
        facts.append(Fact(ID, key, value, path, line, region))
    return facts


def _both(bare: dict[str, Any], spelled: dict[str, Any]) -> dict[str, Any]:
    """Answers for both spellings of the name; where they differ, each of them."""
    found = {}
    for key in {**bare, **spelled}:
        a, b = bare.get(key, {"skipped": "absent"}), spelled.get(key, {"skipped": "absent"})
        if a == b or "value" not in a or "value" not in b or _arch_itself(a, b):
            found[key] = a if "value" in a or "value" not in b else b
        else:
            values = [
                v
                for answer in (a, b)
                for v in (answer["value"].get("any of", []) if isinstance(answer["value"], dict) else [answer["value"]])
            ]
            found[key] = {"value": {"any of": sorted({json.dumps(v): v for v in values}.values(), key=repr)}}
    return found


def _arch_itself(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return (a["value"], b["value"]) == (ARCH, SPELLED)


def judge(base: Facts, new: Facts) -> list[Finding]:
    """BLOCK where a predicate becomes true for gfx936; REVIEW where any other arch-dependent answer moves."""
    before, after = base.of(ID), new.of(ID)
    if "probe" in after:
        stopped = after["probe"]
        return [_finding(BLOCK, stopped, f"upstream's ROCm platform does not run under the probe ({stopped.value}).")]
    found: list[Finding] = []
    closed: list[Fact] = []
    for key, old, fact in changes(before, after):
        if fact is None:
            if old is not None and _load(old)["arch-dependent"]:
                found.append(_finding(REVIEW, old, f"{key} is gone; whatever asked it asks something else now."))
            continue
        if old is None and _load(fact)["answer"].get("value", "") in (False, 0, None):
            closed.append(fact)
            continue
        verdict = _verdict(key, _load(old) if old else None, _load(fact))
        if verdict:
            found.append(_finding(verdict[0], fact, verdict[1], old.region if old else ""))
    closed = [f for f in closed if _load(f)["arch-dependent"]]
    if closed:
        sentence = f"{len(closed)} new predicate(s), all false for gfx936: {', '.join(_short(f.key) for f in closed)}."
        found.append(Finding(INFO, ID, "closed", closed[0].path, closed[0].line, sentence))
    return found


def _verdict(key: str, old: dict[str, Any] | None, new: dict[str, Any]) -> tuple[str, str] | None:
    answer, was = new["answer"], old["answer"] if old else None
    truth = _truth(answer)
    matters = new["arch-dependent"] or bool(old and old["arch-dependent"])
    if matters and truth is True and _truth(was) is not True:
        what = "new and true" if old is None else "now true"
        return BLOCK, f"{key} is {what} for gfx936: code that upstream opens by it would run there unproven."
    if matters and _truth(was) is True and truth is not True:
        return BLOCK, f"{key} was true for gfx936 and is now {_text(answer)}."
    if not matters:
        if key in CHOICES and old is not None and answer != was:
            return REVIEW, f"{key} for gfx936 changes from {_text(was)} to {_text(answer)}."
        return None
    if old is None:
        return REVIEW, f"{key} is new; for gfx936 it is {_text(answer)}."
    if answer != was:
        return REVIEW, f"{key} for gfx936 changes from {_text(was)} to {_text(answer)}."
    return None


def _truth(answer: dict[str, Any] | None) -> bool | None:
    if answer is None:
        return None
    value = answer.get("value")
    if isinstance(value, dict):
        return True if True in value.get("any of", []) else None
    return value if isinstance(value, bool) else None


def _text(answer: dict[str, Any] | None) -> str:
    if answer is None:
        return "absent"
    if "value" not in answer:
        return f"not evaluated ({answer.get('unknown', answer.get('skipped', ''))})"
    value = answer["value"]
    if isinstance(value, dict):
        return "one of " + ", ".join(map(str, value["any of"]))
    text = json.dumps(value) if isinstance(value, list) else str(value)
    return re.sub(r"<\w+\.(\w+)>", r"\1", text).replace('"', "")


def _short(key: str) -> str:
    return key.split(".", 1)[1].removesuffix("()")


def _load(fact: Fact) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(fact.value)
    return data


def _finding(level: str, fact: Fact, sentence: str, before: str = "") -> Finding:
    return Finding(level, ID, fact.key, fact.path, fact.line, sentence, hunk(before, fact.region))


def _where(tree: Tree, key: str) -> tuple[str, int, str]:
    """File, line and text of the definition a key names."""
    owner, name = key.split(".", 1) if "." in key else (key, key)
    name = name.removesuffix("()")
    if owner == "aiter":
        candidates = ["vllm/_aiter_ops.py"]
    elif owner == "rocm":
        candidates = ["vllm/platforms/rocm.py"]
    else:
        candidates = ["vllm/platforms/rocm.py", "vllm/platforms/interface.py"]
    pattern = re.compile(rf"^( *)(?:def {re.escape(name)}\(|{re.escape(name)} *(?::[^=\n]+)?= )", re.M)
    for path in candidates:
        text = tree.text(path)
        match = pattern.search(text)
        if match:
            lines = text[match.start() :].splitlines()
            indent = len(match[1])
            end = 1
            while end < len(lines) and (
                not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent or lines[end].strip()[:1] == ")"
            ):
                end += 1
            return path, text.count("\n", 0, match.start()) + 1, "\n".join(lines[:end]).rstrip()
    return candidates[0], 0, ""
