"""Environment variables that choose what runs on the DCU: names and defaults, evaluated by upstream's own getters."""

from __future__ import annotations

import json

from scripts.drift.contracts import arch_truth
from scripts.drift.contracts.model import BLOCK, INFO, REVIEW, Fact, Facts, Finding, Tree, changes

ID = "environment"
FILE = "vllm/envs.py"
#: Without these our gate cannot keep its promise: the switch it obeys, and the mode in which it must be closed.
NEEDED = ("VLLM_ROCM_USE_SKINNY_GEMM", "VLLM_BATCH_INVARIANT")
#: Read by us or by the service recipes.
WATCHED = ("VLLM_PLUGINS", "VLLM_CACHE_ROOT", "VLLM_TARGET_DEVICE", "VLLM_CPU_KVCACHE_SPACE", "VLLM_NO_USAGE_STATS")


def collect(tree: Tree) -> list[Fact]:
    """One fact a variable; the value is the default for an empty environment."""
    try:
        defaults = arch_truth.probe(tree, arch_truth.ARCH)["env"]
        again = arch_truth.probe(tree, arch_truth.OTHERS[0])["env"]
    except arch_truth.ProbeFailed:
        return []  # arch-truth reports it
    text = tree.text(FILE)
    facts = []
    for name, answer in defaults.items():
        value = answer.get("value", "not evaluated")
        if answer != again.get(name):
            value = "made up anew in each process"
        elif isinstance(value, str) and "/" in value:
            value = "a path"  # depends on the home folder of the probe
        at = max(text.rfind(f'"{name}"'), text.rfind(f"'{name}'"))
        line = text.count("\n", 0, at) + 1 if at >= 0 else 0
        facts.append(Fact(ID, name, json.dumps(value), FILE, line, text.splitlines()[line - 1].strip() if line else ""))
    return facts


def judge(base: Facts, new: Facts) -> list[Finding]:
    """A needed variable that is gone blocks; ROCm variables are reviewed; the rest is one line."""
    found, rest = [], []
    if not new.of(ID):
        return []
    for name, old, fact in changes(base.of(ID), new.of(ID)):
        rocm = "ROCM" in name or "SKINNY" in name or name in NEEDED or name in WATCHED
        if old is not None and fact is None:
            level = BLOCK if name in NEEDED else REVIEW
            sentence = f"{name} is gone or renamed; setting it no longer does anything."
            diff = f"-{old.region}"
        elif old is None and fact is not None:
            level, sentence, diff = INFO, f"{name} is new, default {fact.value}.", f"+{fact.region}"
        else:
            assert old is not None
            assert fact is not None
            level, sentence = REVIEW, f"the default of {name} changes from {old.value} to {fact.value}."
            diff = f"-{old.region}\n+{fact.region}"
        if rocm:
            at = fact or old
            assert at is not None
            found.append(Finding(level, ID, name, FILE, at.line, sentence, diff))
        else:
            rest.append(("-" if fact is None else "+" if old is None else " ") + name)
    if rest:
        gone = sum(1 for r in rest if r.startswith("-"))
        sentence = f"{len(rest)} variable(s) that are not ROCm's and that we do not read changed ({gone} gone)."
        found.append(Finding(INFO, ID, "others", FILE, 0, sentence, "\n".join(rest)))
    return found
