"""Environment variables that choose what runs on the DCU: names and defaults, evaluated by upstream's own getters."""

from __future__ import annotations

import json
import re

from scripts.drift.contracts import arch_truth
from scripts.drift.contracts.alone import Unanswered
from scripts.drift.contracts.model import BLOCK, INFO, REVIEW, Fact, Facts, Finding, Tree, changes, line_of
from scripts.drift.contracts.touches import variables

ID = "environment"
FILE = "vllm/envs.py"
HOLDS = ("",)


def collect(tree: Tree) -> list[Fact]:
    """One fact a variable; the value is the default for an empty environment."""
    try:
        defaults = arch_truth.probe(tree, arch_truth.ARCH)["env"]
        again = arch_truth.probe(tree, arch_truth.OTHERS[0])["env"]
    except Unanswered:
        return []  # arch-truth reports it
    text = tree.text(FILE)
    facts = [f for name in sorted(set().union(*variables()) - set(defaults)) if (f := _read_elsewhere(tree, name))]
    for name, answer in defaults.items():
        if name in variables()[0] and name not in answer["asks"]:
            continue  # the name is there, and what is set by it is not read
        value = answer.get("value", "not evaluated")
        if answer != again.get(name):
            value = "made up anew in each process"
        elif isinstance(value, str) and "/" in value:
            value = "a path"  # depends on the home folder of the probe
        at = max(text.rfind(f'"{name}"'), text.rfind(f"'{name}'"))
        line = text.count("\n", 0, at) + 1 if at >= 0 else 0
        facts.append(Fact(ID, name, json.dumps(value), FILE, line, text.splitlines()[line - 1].strip() if line else ""))
    return facts


def _read_elsewhere(tree: Tree, name: str) -> Fact | None:
    """A variable that the table does not have and that upstream reads all the same (0.18.1 reads the batch-invariant mode so)."""
    for path in tree.containing(name, "vllm/", ".py"):
        match = re.search(rf"""(?:getenv|environ(?:\.get)?)[(\[]\s*["']{name}["'].*""", tree.text(path))
        if match and path != FILE and not path.startswith("vllm/dcu/"):
            return Fact(ID, name, "false" if "BATCH" in name else "null", path, line_of(tree.text(path), match.start()), match[0])
    return None


def judge(base: Facts, new: Facts) -> list[Finding]:
    """What the gate obeys must be there, whatever the base has; what we read or withdraw is reviewed; the rest is one line."""
    found, rest = [], []
    obeyed, read = variables()
    for name in sorted(obeyed - set(new.of(ID))):
        old = base.of(ID).get(name)
        sentence = f"{name} is gone or renamed; setting it no longer does anything, and the gate obeys it."
        found.append(Finding(BLOCK, ID, name, FILE, old.line if old else 1, sentence, f"-{old.region}" if old else ""))
    for name, old, fact in changes(base.of(ID), new.of(ID)):
        ours = name in obeyed or name in read
        if old is not None and fact is None:
            if name in obeyed:
                continue
            level = REVIEW
            sentence = f"{name} is gone or renamed; setting it no longer does anything."
            diff = f"-{old.region}"
        elif old is None and fact is not None:
            level, sentence, diff = INFO, f"{name} is new, default {fact.value}.", f"+{fact.region}"
        else:
            assert old is not None
            assert fact is not None
            level, sentence = REVIEW, f"the default of {name} changes from {old.value} to {fact.value}."
            diff = f"-{old.region}\n+{fact.region}"
        if ours:
            at = fact or old
            assert at is not None
            found.append(Finding(level, ID, name, FILE, at.line, sentence, diff))
        else:
            rest.append(("-" if fact is None else "+" if old is None else " ") + name)
    if rest:
        gone = sum(1 for r in rest if r.startswith("-"))
        sentence = f"{len(rest)} variable(s) that we neither read nor withdraw changed ({gone} gone)."
        found.append(Finding(INFO, ID, "others", FILE, 0, sentence, "\n".join(rest)))
    return found
