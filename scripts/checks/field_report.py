"""What a person may send back from a machine with a DCU: facts about device, toolchain, build and rungs, and nothing about whose they are.

Everything in it is picked by name; what is free text (why something failed) loses every folder, host, user, address and serial number.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.common import errors
from scripts.common.outside import StrictError, plain_json
from scripts.common.overlay import overlay_module
from scripts.common.paths import shown
from scripts.machine import memory
from scripts.machine.diagnosis import Finding
from scripts.machine.facts import Machine

__all__ = ["Step", "field_report", "rungs_of", "scrubbed"]

FORMAT = 1
_MOST_WORDS = 600
_FIRST = (  # before names: they stand in these
    (re.compile(r"\b(?:https?|ssh|git|file)://\S+"), "<address>"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\b"), "<mail>"),
)
_PRIVATE = (
    (re.compile(r"(?<![\w.])(?:~|\.{0,2})/[^\s'\"`,;:()]+"), "<path>"),
    (re.compile(r"\b[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d\b"), "<bus id>"),
    (re.compile(r"\b(?:GPU-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\bGPU-[0-9a-fA-F]{8,}\b"), "<uuid>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"), "<address>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{1,4}\b"), "<address>"),
    (re.compile(r"\b(?=[0-9A-Fa-f]*\d)[0-9A-Fa-f]{12,}\b|\b(?=\w*\d{7})\w{8,}\b"), "<number>"),
)


@dataclass(frozen=True)
class Step:
    """One step of the first hour: its name, `passed`, `failed` or `not run`, why, and how long it took (seconds)."""

    name: str
    outcome: str
    why: str = ""
    seconds: float = 0.0


def _own_names(environ: Mapping[str, str]) -> list[str]:
    """Names of this person, machine and their folders, longest first."""
    found = {socket.gethostname(), socket.gethostname().partition(".")[0], str(Path.home()), Path.home().name, str(Path.cwd())}
    found |= {environ[name] for name in ("USER", "LOGNAME", "SUDO_USER", "HOSTNAME", "HOME") if environ.get(name)}
    with suppress(KeyError, OSError):
        found.add(getpass.getuser())
    return sorted((name for name in found if len(name) > 2 and name not in ("root", "/root")), key=len, reverse=True)


def scrubbed(text: str, environ: Mapping[str, str] | None = None) -> str:
    """A text for people without folders, hosts, users, addresses and serial numbers; printable, one line, bounded."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    for pattern, instead in _FIRST:
        text = pattern.sub(instead, text)
    for name in _own_names(os.environ if environ is None else environ):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<name>", text)
    for pattern, instead in _PRIVATE:
        text = pattern.sub(instead, text)
    return text if len(text) <= _MOST_WORDS else text[:_MOST_WORDS] + "..."


def rungs_of(report: Path) -> list[dict[str, Any]]:
    """Rungs of a climb's report.json: id, outcome, why, and figures that are numbers; empty where there is none.

    Raises:
        errors.CheckFailed: it is no report.
    """
    if not os.path.lexists(report):
        return []
    try:
        return [
            {
                "id": scrubbed(step["id"]),
                "outcome": scrubbed(step["result"]["outcome"]),
                "why": scrubbed(step["result"]["why"]),
                "figures": {name: _figure(value) for name, value in step["result"]["figures"].items()},
            }
            for step in plain_json(report)["steps"]
        ]
    except (StrictError, KeyError, TypeError, AttributeError) as error:
        raise errors.CheckFailed(f"{shown(report)} cannot be used", repr(error), f"rm {shown(report)}, and climb again") from None


def _figure(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _figure(part) for name, part in value.items()}
    return value if isinstance(value, int | float) else scrubbed(str(value))


def field_report(
    machine: Machine, findings: Sequence[Finding], steps: Sequence[Step], build: Mapping[str, Any], rungs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The report as plain data. `build`: version, tree, archs, toolchain and stand-in of the wheel, if one was made."""
    nodes = overlay_module("device.kfd").gpu_nodes(environ=machine.environ)
    p = machine.python
    return {
        "format": FORMAT,
        "machine": {
            "devices": [{"arch": node.dcu_arch or "other", "gfx_target_version": node.gfx_target_version} for node in nodes],
            "kernel": (re.match(r"\d+\.\d+(?:\.\d+)?", os.uname().release) or [""])[0],
            "processors": memory.processors(),
            "memory_gb": round(memory.available_gb()),
            "python": ".".join(map(str, p.version)),
            "torch": p.torch,
            "hip": p.hip,
            "torch_archs": list(p.archs),
            "vendor_packages": p.vendor,
            "dtk_found": "no" if machine.toolchain is None else "sourced" if "sourced" in machine.toolchain.origin else "environment",
        },
        "findings": [
            {"name": f.name, "ok": f.ok, "found": "" if f.ok else scrubbed(f.found), "blocks": f.blocks} for f in findings
        ],
        "steps": [{**asdict(step), "why": scrubbed(step.why), "seconds": round(step.seconds, 1)} for step in steps],
        "build": dict(build),
        "rungs": [dict(rung) for rung in rungs],
    }  # fmt: skip
