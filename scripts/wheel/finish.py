"""What `make build TARGET=rocm` does with the finished wheel: audit, import check, constraints, and the lines to install it."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, say
from scripts.common.paths import shown
from scripts.machine import archs
from scripts.wheel import device, install

__all__ = ["NAME", "REFUSED", "audit", "check_and_say", "imports", "record", "set_aside"]

NAME = "device-wheel.txt"
"""Holds the file name of the device wheel that passed last: dist/ may hold others beside it."""

REFUSED = ".refused"
"""Suffix of a wheel that failed its checks: kept to be looked at, and not a file that pip installs."""


def check_and_say(wheel: Path) -> None:
    """Check the wheel and print how to install it. One that fails is renamed, so that nobody installs it.

    Raises:
        errors.Fatal: a check failed.
    """
    plan = device.plan()
    try:
        audit(wheel, plan)
        if why := imports(wheel, plan):
            print(f"not run: import check of the libraries ({why})")
    except errors.Fatal:
        set_aside(wheel)
        raise
    print(own_kernels(wheel))
    if plan.stand_in:
        print(f"stand-in arch {plan.stand_in}: this wheel is for inspection; pip takes it nowhere, and there is no line to install it")
        return
    constraint = record(wheel, plan)
    print("install it with:")
    for line in install.install_lines(wheel, constraint, plan.python):
        print(f"  {line}")
    if held := install.held_back(wheel, plan.python):
        print(f"where one of these is in the way, delete its line in {shown(constraint)} (never the vendor's), or leave it as it is:")
        for line in held:
            print(f"  {line}")


def own_kernels(wheel: Path) -> str:
    """One line: whether the wheel has this project's own kernels, and why not. From its manifest, which says what was built."""
    with zipfile.ZipFile(wheel) as archive:
        said = str(json.loads(archive.read("vllm/dcu/manifest.json"))["toolchain"].get("dcu_kernels", ""))
    if said == device.OWN_KERNELS:
        return f"{said}: in the wheel; closed until `python -m vllm.dcu verify --kernel GEMV` has run on the device"
    return f"{device.OWN_KERNELS} {said} (DCU_KERNELS=required makes that an error)"


def set_aside(wheel: Path) -> Path:
    """Rename a wheel that failed, so that nobody installs it; returns its new path."""
    aside = wheel.with_name(wheel.name + REFUSED)
    wheel.replace(aside)
    say(f"the wheel failed its checks and was renamed to {shown(aside)}")
    return aside


def record(wheel: Path, plan: device.Plan) -> Path:
    """Write beside a wheel that passed what it is installed with: its name and the constraints, whose path is returned."""
    atomic_write(wheel.parent / NAME, f"{wheel.name}\n".encode())
    return install.write_constraints(wheel.parent, plan.python)


def audit(wheel: Path, plan: device.Plan) -> str:
    """Audit the wheel's device code; returns why it did not run, or "".

    Raises:
        errors.CheckFailed: it holds more than LLMM1 for a DCU.
    """
    from scripts.audit.verb import audit_wheel

    # The audit takes its disassembler from there; where doctor sourced env.sh in a child, only the plan knows it.
    os.environ["ROCM_PATH"] = str(plan.toolchain.prefix)
    if "_rocm_C" not in plan.components:
        return "_rocm_C was not built"
    for arch in sorted(archs.dcu_archs() & set(plan.archs)):
        report = audit_wheel(wheel, plan.stand_in or arch)
        if report.faults:
            raise errors.CheckFailed(
                f"the audit of {wheel.name} found {report.faults} fault(s)",
                "only LLMM1 and the kernels of csrc/dcu may be compiled for a DCU; each fault is listed above",
                "do not use this build; report it with the log of the build",
            )
    return ""


def imports(wheel: Path, plan: device.Plan) -> str:
    """Import the wheel's libraries in a child; returns why that did not run, or "".

    Raises:
        errors.CheckFailed: one does not load.
    """
    if plan.stand_in:
        return f"a stand-in for {plan.stand_in}, linked without a HIP torch, does not load"
    for module, said in install.import_check(wheel, plan.python, plan.env).items():
        print(f"ok   import   {module}: {said}")
    return ""
