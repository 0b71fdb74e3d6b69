"""doctor: whether this machine can build, for which target, with reasons (exit 0 only if it can).

Runs on a bare Python: it is what a person runs first.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from scripts.common import childenv, errors, git, tools
from scripts.common.files import sha256_of
from scripts.common.paths import OFFLINE, ROOT, cache_dir, kept, shown
from scripts.machine import doctor_device, facts
from scripts.machine.diagnosis import Finding
from scripts.upstream.releases import read_pin

__all__ = ["Finding", "examine", "main", "table"]

_NEEDED_DISK_GB = {"rocm": 6.0}  # objects of one arch, an estimate; for the others see below
_NEEDED_DISK_GB_ELSE = 2.0  # base import, tree and a CPU wheel; the serving environment for tests takes 8 more


def _python(target: str) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < (3, 10):  # noqa: UP036  (a person may run this on any Python)
        return Finding("python", False, version, "the tools and vLLM 0.18.1 need 3.10 or newer", "make doctor PYTHON=python3.10")
    if sys.version_info < (3, 11) and not os.environ.get("TOOLS_PYTHON") and importlib.util.find_spec("tomli") is None:
        return Finding("python", True, f"{version} (tomli comes with the tools environment)")
    return Finding("python", True, version)


def _git(target: str) -> Finding:
    try:
        return Finding("git", True, ".".join(map(str, git.git_version())))
    except errors.Fatal as error:
        return Finding("git", False, error.what, error.why, error.do)


def _venv(target: str) -> Finding:
    if given := os.environ.get("TOOLS_PYTHON"):
        there = Path(given).is_file()
        return Finding("tools", there, f"TOOLS_PYTHON={given}", "" if there else "it is not a file",
                       "" if there else "unset TOOLS_PYTHON, or point it at a Python")  # fmt: skip
    commands = tools.ways()
    if tools.made() or commands is not None:
        by = "" if tools.made() or commands is None or commands[0][1] != "venv" else ", made by uv: this Python has no venv or no ensurepip"
        return Finding("tools", True, f"own environment in {shown(tools.FOLDER)}{by}")
    error = tools.no_way()
    return Finding("tools", False, error.what, error.why, error.do)


def _disk(target: str) -> Finding:
    free = shutil.disk_usage(ROOT).free / 1e9
    needed = _NEEDED_DISK_GB.get(target, _NEEDED_DISK_GB_ELSE)
    if free < needed:
        return Finding("disk", False, f"{free:.1f} GB free", f"a build needs {needed:.0f} GB", "free some space, or clone to another disk")
    return Finding("disk", True, f"{free:.0f} GB free")


def _writable(target: str) -> Finding:
    for folder in (ROOT, cache_dir()):
        place = folder
        while not place.exists():
            place = place.parent
        if not os.access(place, os.W_OK):
            return Finding("folders", False, f"{shown(folder)} is not writable", "build/, dist/ and the download cache live there",
                           "chown it, or set GFX936_CACHE to a folder of yours")  # fmt: skip
    return Finding("folders", True, f"downloads in {shown(cache_dir())}")


def _pinned(target: str) -> dict[str, bool]:
    """What a build of the target needs of the index, and whether the very file is here (by its hash): in the cache, offline/, or given."""
    pin = read_pin()
    wanted = {"the sdist": (pin.sdist, "UPSTREAM_SDIST")}
    if target == "cpu" and (wheel := pin.cpu_wheels.get({"arm64": "aarch64"}.get(platform.machine(), platform.machine()))):
        wanted["the CPU libraries"] = (wheel, "CPU_WHEEL")
    found = {}
    for name, (artifact, variable) in wanted.items():
        given = os.environ.get(variable)
        places = [Path(given)] if given else kept(artifact.name)
        found[name] = any(place.is_file() and sha256_of(place) == artifact.sha256 for place in places)
    return found


def _sdist(target: str) -> Finding:
    pin, given, here = read_pin(), os.environ.get("UPSTREAM_SDIST"), _pinned(target)["the sdist"]
    if given and not here:
        is_file = Path(given).is_file()
        return Finding("sdist", False, f"UPSTREAM_SDIST={given}", "it is not the pinned file (sha256)" if is_file else "it is not a file",
                       f"point it at the pinned sdist, {pin.sdist.name}, or unset it")  # fmt: skip
    cached = cache_dir() / pin.sdist.name
    if not given and cached.is_file() and not here:
        return Finding("sdist", False, f"{shown(cached)} is not the pinned file", "its sha256 is another: it is damaged", f"rm {shlex.quote(str(cached))}")  # fmt: skip
    return Finding("sdist", True, f"{pin.sdist.name} is here" if here else f"{pin.sdist.name} is not in the cache: it is fetched once")


def _network(target: str) -> Finding:
    """Asked only where something has still to be fetched: pip, as it is configured, asks its index for a name."""
    needs = [name for name, there in (*_pinned(target).items(), ("the tools' packages", _have_tools())) if not there]
    if not needs:
        return Finding("network", True, "not needed: all that is fetched is here")
    if importlib.util.find_spec("pip") is None:
        return Finding("network", True, f"not asked: no pip here; to be fetched: {', '.join(needs)}")
    argv = [sys.executable, "-m", "pip", "--timeout", "10", "--retries", "0", "index", "versions", "packaging"]
    try:
        done = subprocess.run(argv, env=childenv.for_pip(), stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60)
        answers = done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        answers = False
    if answers:
        return Finding("network", True, f"pip's index answers; to be fetched: {', '.join(needs)}")
    return Finding("network", False, "pip's index does not answer", f"to be fetched: {', '.join(needs)}",
                   "on a machine with a network: make bundle; unpack its file here and run `make` in there")  # fmt: skip


def _have_tools() -> bool:
    return bool(os.environ.get("TOOLS_PYTHON")) or tools.made() or any(OFFLINE.glob("wheels/*.whl"))


CHECKS: tuple[Callable[[str], Finding], ...] = (_python, _git, _venv, _writable, _disk, _sdist, _network)


def examine(target: str, machine: facts.Machine) -> list[Finding]:
    """Every finding for a target, in the order in which a build and then a server would meet it."""
    found = [check(target) for check in CHECKS]
    if target != "rocm":
        hip = machine.python.hip
        return [*found, Finding("torch", True, f"HIP {hip}" if hip else "no HIP torch: not needed for this target")]
    return [*found, *(check(machine) for check in doctor_device.CHECKS)]


def table(findings: Sequence[Finding], color: bool) -> str:
    """What a person reads: one line a finding, then why and what to do for each problem."""
    lines = []
    for f in findings:
        mark = "ok     " if f.ok else "problem"
        if color:
            mark = f"\033[3{2 if f.ok else 1}m{mark}\033[0m"
        lines.append(f"{mark}  {f.name:9} {f.found}")
        if not f.ok:
            lines += [f"           why: {f.why}", f"         do:  {f.do}"]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Command line of `doctor`."""
    parser = argparse.ArgumentParser(prog="doctor", description=__doc__)
    parser.add_argument("--target", default=os.environ.get("TARGET") or "auto", choices=facts.TARGETS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    machine = facts.look()
    target = facts.resolve(args.target, machine)
    findings = examine(target, machine)
    can = all(f.ok or not f.blocks for f in findings)
    later = sum(not f.ok and not f.blocks for f in findings)
    if args.json:
        print(json.dumps({"target": target, "can_build": can, "findings": [asdict(f) for f in findings]}, indent=1))
    else:
        print(table(findings, sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
        print(f"\n{'can' if can else 'cannot'} build TARGET={target} here" + (f"; {later} problem(s) for serving" if later else ""))
    return 0 if can else errors.CannotBuild.exit_code
