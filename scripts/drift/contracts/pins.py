"""Toolchain pins: C++ standard, Python versions, torch, the ROCm requirement files."""

from __future__ import annotations

import re

from scripts.drift.contracts import cmake_eval
from scripts.drift.contracts.model import BLOCK, INFO, REVIEW, Fact, Facts, Finding, Tree, changes, closing

ID = "pins"
HOLDS = ("CMAKE_CXX_STANDARD", "TORCH_SUPPORTED_VERSION_ROCM", "requires-python")
#: The Python and the torch of the reference device.
REFERENCE_PYTHON = "3.10"
VARIABLES = ("CMAKE_CXX_STANDARD", "CMAKE_HIP_STANDARD", "PYTHON_SUPPORTED_VERSIONS", "TORCH_SUPPORTED_VERSION_ROCM")
#: What a requirement file is for -> where it has been.
FILES = {
    "build": ("pyproject.toml",),
    "ROCm build": ("requirements/build/rocm.txt", "requirements/rocm-build.txt"),
    "ROCm": ("requirements/rocm.txt",),
}
PACKAGES = ("torch", "torchvision", "torchaudio", "triton", "amdsmi", "cmake", "setuptools", "setuptools-scm")


def collect(tree: Tree) -> list[Fact]:
    """CMake's variables, Python's range, and the lines of the requirement files that can move torch."""
    facts = []
    try:
        variables = cmake_eval.evaluate(tree).variables
    except cmake_eval.EvaluationFailed:
        variables = {}
    for name in VARIABLES:
        if name in variables:
            facts.append(Fact(ID, name, variables[name], "CMakeLists.txt", _line(tree.text("CMakeLists.txt"), f"set({name} ")))
    stated = re.search(r"set\(VLLM_DCU_CXX_STANDARDS ([\d ]+)\)", tree.text("cmake/dcu.cmake")) if tree.patched else None
    if stated:
        facts.append(Fact(ID, "our standards", ";".join(stated[1].split()), "cmake/dcu.cmake", 1))
    pyproject = tree.text("pyproject.toml")
    requires = re.search(r"^requires-python\s*=\s*\"([^\"]*)\"", pyproject, re.M)
    if requires:
        facts.append(Fact(ID, "requires-python", requires[1], "pyproject.toml", _line(pyproject, "requires-python")))
    for label, paths in FILES.items():
        path = next((p for p in paths if p in tree), paths[0])
        text = tree.text(path)
        for number, line in enumerate(text.splitlines(), 1):
            match = re.match(r"\s*\"?([A-Za-z0-9_.-]+)\s*([=<>!~][^\",;#]*)", line)
            if match and match[1].lower() in PACKAGES and "requires-python" not in line:
                facts.append(Fact(ID, f"{label}: {match[1].lower()}", match[2].strip(), path, number, line.strip()))
    return facts


def judge(base: Facts, new: Facts) -> list[Finding]:
    """Every change is a REVIEW: the machine has to follow; a requirement that appears or goes is INFO."""
    found = []
    torch: list[tuple[str, Fact]] = []
    for key, old, fact in changes(base.of(ID), new.of(ID)):
        at = fact or old
        assert at is not None
        if re.search(r"torch|triton", key, re.I) and old is not None and fact is not None:
            torch.append((f"{key}: {old.value} -> {fact.value}", at))
            continue
        if old is None or fact is None:
            sentence = f"{key} " + (f"is required now: {at.value}." if old is None else f"({at.value}) is no longer pinned.")
            found.append(Finding(INFO, ID, key, at.path, at.line, sentence))
            continue
        sentence = f"{key} changes from {old.value or 'unset'} to {fact.value or 'unset'}."
        gone = (
            key == "PYTHON_SUPPORTED_VERSIONS"
            and REFERENCE_PYTHON in old.value.split(";")
            and REFERENCE_PYTHON not in fact.value.split(";")
        )
        if gone:
            sentence += f" Python {REFERENCE_PYTHON}, the reference device's, is out."
        standard = key == "CMAKE_CXX_STANDARD"
        added = key == "PYTHON_SUPPORTED_VERSIONS" and set(old.value.split(";")) < set(fact.value.split(";"))
        quiet = (
            added or ": " in key or key == "CMAKE_HIP_STANDARD" or (key == "requires-python" and "PYTHON_SUPPORTED_VERSIONS" in new.of(ID))
        )
        level = BLOCK if standard else INFO if quiet else REVIEW
        if standard:
            sentence += " Our unit is compiled with it."
        row = Finding(level, ID, key, at.path, at.line, sentence, f"-{old.value}\n+{fact.value}")
        ours = new.of(ID).get("our standards")
        known = standard and ours is not None and fact.value in ours.value.split(";")
        found.append(closing(row, f"cmake/dcu.cmake, which takes C++ {ours.value} for our unit and no other" if known and ours else ""))
    if torch:
        sentence = f"the release is built for another torch: {'; '.join(t for t, _ in torch)}."
        found.append(Finding(REVIEW, ID, "torch", torch[0][1].path, torch[0][1].line, sentence, "\n".join(t for t, _ in torch)))
    return found


def _line(text: str, token: str) -> int:
    at = text.find(token)
    return text.count("\n", 0, at) + 1 if at >= 0 else 0
