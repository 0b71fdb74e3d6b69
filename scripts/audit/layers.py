"""The audit's checks. Each takes facts and returns faults, one sentence a fault; no fault means the statement holds."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.audit.configure import Command, Configured

__all__ = [
    "blast_radius_faults",
    "commands_faults",
    "diagnosis_faults",
    "identical_files_faults",
    "routing",
    "routing_faults",
]

DCU_UNIT = "csrc/rocm/dcu_llmm1.hip"
OWN_UNIT, OWN_BINDINGS = "csrc/dcu/gemv.cu", "csrc/dcu/bindings.cpp"
# Which unit of _rocm_C gets which archs, for each arch list that is configured.
EXPECTED_ROUTING: dict[str, dict[str, frozenset[str]]] = {
    "gfx936;gfx90a": {
        DCU_UNIT: frozenset({"gfx936"}),
        "csrc/rocm/skinny_gemms.hip": frozenset({"gfx90a"}),
        "csrc/rocm/attention.hip": frozenset({"gfx90a"}),
        "csrc/rocm/torch_bindings.cpp": frozenset(),
    },
    "gfx936": {DCU_UNIT: frozenset({"gfx936"}), "csrc/rocm/dcu_bindings.cpp": frozenset()},
    "gfx90a": {
        "csrc/rocm/skinny_gemms.hip": frozenset({"gfx90a"}),
        "csrc/rocm/attention.hip": frozenset({"gfx90a"}),
        "csrc/rocm/torch_bindings.cpp": frozenset(),
    },
}


def routing(commands: Sequence[Command]) -> dict[str, frozenset[str]]:
    """Unit -> archs of its compile command, for the units of _rocm_C."""
    return {command.unit: command.offload for command in commands if command.target.startswith("_rocm_C")}


def routing_faults(archs: str, commands: Sequence[Command], expected: Mapping[str, frozenset[str]] | None = None) -> list[str]:
    """Layer a: exactly the expected units, each with exactly its archs; and the other extensions with the whole list."""
    wanted = EXPECTED_ROUTING[archs] if expected is None else expected
    found = routing(commands)
    faults = []
    for unit in sorted(wanted.keys() | found.keys()):
        if unit not in found:
            faults.append(f"{archs}: {unit} is not compiled")
        elif unit not in wanted:
            faults.append(f"{archs}: {unit} is compiled for {_names(found[unit])}, and should not be")
        elif found[unit] != wanted[unit]:
            faults.append(f"{archs}: {unit} is compiled for {_names(found[unit])}, not for {_names(wanted[unit])}")
    redirected = any("-DLLMM1=dcu_LLMM1" in c.words for c in commands if c.unit.endswith("rocm/torch_bindings.cpp"))
    mixed = "csrc/rocm/torch_bindings.cpp" in wanted and DCU_UNIT in wanted
    if redirected != mixed:
        faults.append(f"{archs}: the op LLMM1 is bound to {'dcu_LLMM1' if redirected else 'upstream'}; the other was expected")
    own = {command.unit: command.offload for command in commands if command.target == "_dcu_C"}
    dcu = wanted.get(DCU_UNIT, frozenset())
    expected_own = {OWN_UNIT: dcu, OWN_BINDINGS: frozenset[str]()} if dcu else {}
    if own != expected_own:
        said = ", ".join(f"{unit} for {_names(where)}" for unit, where in sorted(own.items()))
        faults.append(f"{archs}: _dcu_C is compiled from {said or 'nothing'}; its units are for {_names(dcu)}")
    everywhere = frozenset(archs.split(";"))
    for command in commands:
        if not command.target.startswith("_rocm_C") and command.unit.endswith(".hip") and command.offload != everywhere:
            faults.append(f"{archs}: {command.unit} of {command.target} is compiled for {_names(command.offload)}, not for the list")
    return faults


def _plain(command: Command, configured: Configured) -> str:
    words = shlex.join(command.words)
    return words.replace(str(configured.folder), "BUILD").replace(str(configured.tree), "SOURCE")


def commands_faults(upstream: Configured, patched: Configured, ours: Sequence[Command], theirs: Sequence[Command]) -> list[str]:
    """Layer c: for a list without a DCU, every target has upstream's sources and flags, word for word."""
    left = {(c.target, c.unit): _plain(c, upstream) for c in theirs}
    right = {(c.target, c.unit): _plain(c, patched) for c in ours}
    faults = [f"{unit} of {target} is compiled by upstream only" for target, unit in sorted(left.keys() - right.keys())]
    faults += [f"{unit} of {target} is compiled by the patched tree only" for target, unit in sorted(right.keys() - left.keys())]
    for target, unit in sorted(left.keys() & right.keys()):
        if left[target, unit] != right[target, unit]:
            faults.append(f"{unit} of {target}: the compile command differs from upstream's")
    return faults


def identical_files_faults(upstream: Path, patched: Path) -> list[str]:
    """Layer c: below csrc/, the patched tree differs from upstream by new dcu_* files and the folder csrc/dcu only."""
    left, right = _sums(upstream), _sums(patched)
    faults = [f"csrc/{name} is gone" for name in sorted(left.keys() - right.keys())]
    faults += [
        f"csrc/{name} is new and not a dcu_ file"
        for name in sorted(right.keys() - left.keys())
        if not ("/dcu_" in "/" + name or name.startswith("dcu/"))
    ]
    faults += [f"csrc/{name} differs from upstream's" for name in sorted(left.keys() & right.keys()) if left[name] != right[name]]
    return faults


def _sums(tree: Path) -> dict[str, str]:
    csrc = tree / "csrc"
    files = (file for file in csrc.rglob("*") if file.is_file())
    return {str(file.relative_to(csrc)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def blast_radius_faults(upstream: Path, patched: Path, what: str) -> list[str]:
    """Layer c: two objects, host part and code objects alike, are the same bytes."""
    left, right = upstream.read_bytes(), patched.read_bytes()
    if left == right:
        return []
    first = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    return [f"{what} differs from upstream's: {len(right)} bytes against {len(left)}, first difference at byte {first}"]


def diagnosis_faults(code: int, stderr: str, expected: str, what: str) -> list[str]:
    """A build that must fail: it failed, and every error it gave is the expected diagnosis."""
    given = re.findall(r"(?m)^.*?\berror: (.*)$", stderr)
    given = [line for line in given if not line.startswith(("too many errors", "clang frontend command failed"))]
    if code == 0:
        return [f"{what}: the compiler accepted it"]
    if not given:
        return [f"{what}: it failed without a diagnosis"]
    strange = [line for line in given if expected not in line]
    return [f"{what}: it failed for another reason: {strange[0]}"] if strange else []


def _names(archs: frozenset[str]) -> str:
    return ", ".join(sorted(archs)) or "no device"
