"""The wheel's METADATA and entry points, derived from upstream's own files.

Upstream's PKG-INFO was made on its release machine, for CUDA. What holds for every target (summary, licence, extras and
what they need, description) is kept word for word; the version and the plain requirements are this build's: those that
upstream's setup.py reads for the target from `requirements/*.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from scripts.common import errors
from scripts.common.outside import parse_toml
from scripts.machine.interpreter import VENDOR

__all__ = ["EXTRA", "OURS", "REQUIREMENTS_FILE", "entry_points", "metadata", "requirements"]

# Our entry points (group, name, target): the dispatch counters on /metrics.
OURS = (("vllm.general_plugins", "dcu_metrics", "vllm.dcu.dispatch.metrics:register"),)

# Upstream's setup.py, get_requirements(): which file for which device.
REQUIREMENTS_FILE = {"rocm": "rocm.txt", "cpu": "cpu.txt", "empty": "common.txt"}
# The wheel for a device is installed beside a vendor's own torch, triton and amdsmi. What rocm.txt asks for beyond
# common.txt is written for AMD's: it pins (numba, grpcio, setuptools) or pulls builds of triton and torch (conch-triton-kernels,
# timm, peft). All of it is optional for serving, so it is an extra: `vllm[rocm]`, to be asked for by name.
EXTRA = "rocm"


def requirements(files: Mapping[str, bytes], target: str) -> list[str]:
    """The plain requirements of `target`, normalised, in upstream's order; for a device see EXTRA.

    A local version in a pin (`torch==2.10.0+cpu`) is dropped: `torch==2.10.0` accepts that build too, and also the one
    on the public index, so that the metadata of an installed wheel holds where it serves.

    Args:
        files: tree path -> content; needs `requirements/*.txt`.
    """
    plain = [Requirement(line) for line in _lines(files, REQUIREMENTS_FILE["empty" if target == "rocm" else target])]
    return [_without_local(row) for row in plain if target != "rocm" or row.name.lower() not in VENDOR]


def _extra(files: Mapping[str, bytes]) -> list[str]:
    """What rocm.txt asks for beyond common.txt, never one of VENDOR, as requirements of the extra."""
    common = set(_lines(files, REQUIREMENTS_FILE["empty"]))
    rows = [Requirement(line) for line in _lines(files, REQUIREMENTS_FILE["rocm"]) if line not in common]
    found = []
    for row in rows:
        if row.name.lower() not in VENDOR:
            row.marker = Marker(f"({row.marker}) and extra == '{EXTRA}'" if row.marker else f"extra == '{EXTRA}'")
            found.append(_without_local(row))
    return found


def _lines(files: Mapping[str, bytes], name: str) -> list[str]:
    path = f"requirements/{name}"
    if path not in files:
        raise errors.MissingInput(
            f"{path} is not in the tree",
            "the wheel's requirements are read from it, as upstream's setup.py does",
            "run `make apply`; if upstream moved the file, REQUIREMENTS_FILE in scripts/wheel/metadata.py has to follow",
        )
    found: list[str] = []
    for raw in files[path].decode().splitlines():
        line = re.split(r"(?:^|\s)#", raw, maxsplit=1)[0].strip()
        if line.startswith("-r "):
            found += _lines(files, line.split()[1])
        elif line and not line.startswith("--"):
            found.append(line)
    return found


def _without_local(requirement: Requirement) -> str:
    specifier = ",".join(str(part).split("+")[0] for part in requirement.specifier)
    requirement.specifier = SpecifierSet(specifier)
    return str(requirement)


def metadata(files: Mapping[str, bytes], version: str, target: str) -> bytes:
    """METADATA for `version`: upstream's PKG-INFO with this build's version and requirements.

    Raises:
        errors.MissingInput: the tree has no PKG-INFO, or it is not the core metadata of vllm.
    """
    head, gap, description = files.get("PKG-INFO", b"").decode().partition("\n\n")
    lines = head.splitlines()
    if not gap or "Name: vllm" not in lines or sum(line.startswith("Version: ") for line in lines) != 1:
        raise errors.MissingInput(
            "the tree has no usable PKG-INFO",
            "the wheel's metadata starts from upstream's own core metadata",
            "run `make apply` on an untouched sdist",
        )
    plain = [f"Requires-Dist: {requirement}" for requirement in requirements(files, target)]
    if target == "rocm":
        lines += [f"Provides-Extra: {EXTRA}", *(f"Requires-Dist: {requirement}" for requirement in _extra(files))]
    kept: list[str] = []
    for line in lines:
        if line.startswith("Version: "):
            kept.append(f"Version: {version}")
        elif line.startswith("Requires-Dist: ") and "extra ==" not in line:
            kept += plain  # all of them, where upstream's first one stood
            plain = []
        else:
            kept.append(line)
    return "\n".join([*kept, *plain]).encode() + b"\n\n" + description.encode()


def entry_points(files: Mapping[str, bytes]) -> bytes:
    """entry_points.txt: `[project.scripts]` and `[project.entry-points]` of upstream's pyproject.toml, and OURS.

    Raises:
        errors.MissingInput: upstream has taken our plugin's name.
    """
    project: dict[str, Any] = parse_toml(files["pyproject.toml"], any_text=True)["project"]
    groups: dict[str, dict[str, str]] = {"console_scripts": project["scripts"], **project.get("entry-points", {})}
    for group, name, target in OURS:
        if name in groups.get(group, {}):
            raise errors.MissingInput(f"upstream has an entry point {name} of its own", "ours would replace it", "rename ours in OURS")
        groups[group] = {**groups.get(group, {}), name: target}
    blocks = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in sorted(points.items()))
        for group, points in sorted(groups.items())
    ]
    return "\n".join(blocks).encode()
