"""The contracts of the drift scan, one module a kind: each notes facts of a tree and judges two sets of them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from types import ModuleType

from scripts.common.paths import PATCHES, ROOT
from scripts.drift.contracts import (
    arch_flow,
    arch_sites,
    arch_truth,
    build_set,
    environment,
    names,
    native_ops,
    overrides,
    pins,
    python_code,
    touches,
    way,
)
from scripts.drift.contracts.model import BLOCK, Facts, Finding, Tree, sort_findings

__all__ = ["CONTRACTS", "collect", "judge", "tool_id"]

CONTRACTS: tuple[ModuleType, ...] = (
    touches,
    way,
    arch_truth,
    arch_flow,
    arch_sites,
    build_set,
    native_ops,
    python_code,
    overrides,
    environment,
    pins,
    names,
)


def collect(tree: Tree) -> Facts:
    """Every fact of a tree."""
    return Facts(tree.version, tuple(fact for contract in CONTRACTS for fact in contract.collect(tree)))


def judge(base: Facts, new: Facts) -> list[Finding]:
    """Every finding of `new` against `base`, BLOCK first."""
    found = [finding for contract in CONTRACTS for finding in contract.judge(base, new)]
    return sort_findings([*found, *_empty(new, {f.contract for f in found if f.level == BLOCK})])


def _empty(new: Facts, said: set[str]) -> list[Finding]:
    """A contract that finds nothing to hold on to has judged nothing: that is a BLOCK, not an empty list, whatever the base has."""
    found = []
    for contract in CONTRACTS:
        for prefix in getattr(contract, "HOLDS", ()):
            if not new.of(contract.ID, prefix) and contract.ID not in said:
                what = f"`{prefix}`" if prefix else "anything"
                sentence = f"the contract {contract.ID} does not find {what} in this release: what it holds on to is gone or renamed."
                found.append(Finding(BLOCK, contract.ID, f"empty:{prefix}", getattr(contract, "FILE", ""), 0, sentence))
    return found


@cache
def tool_id() -> str:
    """Digest of the contracts' own text: facts taken by other contracts are not comparable and are taken again."""
    digest = hashlib.sha256()
    drift = Path(__file__).parent.parent
    ours = [*(ROOT / "overlay").rglob("*.*"), *(ROOT / "csrc").rglob("*.*"), *PATCHES.glob("*.patch")]  # what `touches` reads
    for path in sorted([*drift.glob("[!s]*.py"), *drift.glob("contracts/*"), *ours]):
        if path.suffix in (".py", ".cmake", ".patch", ".cu", ".h", ".cpp") and path.name not in ("page.py", "behave.py"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
