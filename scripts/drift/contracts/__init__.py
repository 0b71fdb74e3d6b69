"""The contracts of the drift scan, one module a kind: each notes facts of a tree and judges two sets of them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from types import ModuleType

from scripts.drift.contracts import arch_sites, arch_truth, build_set, environment, names, native_ops, overrides, pins, python_code
from scripts.drift.contracts.model import Facts, Finding, Tree, sort_findings

__all__ = ["CONTRACTS", "collect", "judge", "tool_id"]

CONTRACTS: tuple[ModuleType, ...] = (arch_truth, arch_sites, build_set, native_ops, python_code, overrides, environment, pins, names)


def collect(tree: Tree) -> Facts:
    """Every fact of a tree."""
    return Facts(tree.version, tuple(fact for contract in CONTRACTS for fact in contract.collect(tree)))


def judge(base: Facts, new: Facts) -> list[Finding]:
    """Every finding of `new` against `base`, BLOCK first."""
    return sort_findings(finding for contract in CONTRACTS for finding in contract.judge(base, new))


@cache
def tool_id() -> str:
    """Digest of the contracts' own text: facts taken by other contracts are not comparable and are taken again."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*")):
        if path.suffix in (".py", ".cmake") and path.name not in ("page.py", "behave.py"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
