"""first-hour: doctor, apply, build, audit, import and the rungs that need no model, then one page and a report to send back. Resumable.

For the person who has a DCU for an hour. Nothing is installed into the Python in use: the wheel is unpacked into build/first-hour.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.checks.field_report import Step, field_report, rungs_of
from scripts.common import errors
from scripts.common.childenv import for_python
from scripts.common.files import atomic_write, hold, new_folder, say, sha256_of
from scripts.common.outside import plain_json
from scripts.common.overlay import overlay_module
from scripts.common.paths import BUILD, DIST, shown
from scripts.common.run import echoed
from scripts.machine import doctor, facts
from scripts.machine.diagnosis import Finding
from scripts.series.apply import apply_tree, describe
from scripts.series.worktree import read_lock
from scripts.upstream.releases import read_pin
from scripts.wheel import build, device, finish, install

__all__ = ["RUNGS", "main"]

FOLDER = BUILD / "first-hour"
RUNGS = ("V0", "V1", "V2", "V2S")
"""The rungs of `verify` that need no model."""


@dataclass
class Hour:
    """What was found and done so far; `done` holds the wheel of a former run that passed its checks: name -> sha256, by plan and tree."""

    machine: facts.Machine
    findings: list[Finding]
    steps: list[Step] = field(default_factory=list)
    wheel: Path | None = None
    next: str = ""
    stopped: errors.Fatal | None = None

    def step(self, name: str, work: Callable[[], str]) -> bool:
        """Run a step unless an earlier one stopped the hour; whether it passed. `work` returns why it did not run, or ""."""
        if self.stopped is not None:
            self.steps.append(Step(name, "not run", "an earlier step failed"))
            return False
        say(f"== {name}")
        started = time.monotonic()
        try:
            why = work()
        except errors.Fatal as error:
            self.stopped, self.next = error, error.do
            print(f"error: {error}", file=sys.stderr)
            self.steps.append(Step(name, "failed", f"{error.what}: {error.why}", time.monotonic() - started))
            return False
        self.steps.append(Step(name, "not run" if why else "passed", why, time.monotonic() - started))
        return not why


def _doctor(hour: Hour) -> str:
    print(doctor.table([f for f in hour.findings if not f.ok] or hour.findings[:1], color=False))
    stand_in = os.environ.get("STAND_IN", "").strip()
    worst = next((f for f in hour.findings if not f.ok and f.blocks and not (stand_in and f.name == "compiler")), None)
    if worst is not None:
        raise errors.CannotBuild(f"{worst.name}: {worst.found}", worst.why, worst.do)
    return ""


def _apply() -> str:
    state, changed = apply_tree(read_pin())
    print(describe(state, changed))
    return ""


def _known(plan: device.Plan) -> tuple[Path, list[Step]] | None:
    """The wheel of a former run and its steps, where it is still what passed the checks then, of this very tree and plan."""
    try:
        said = plain_json(FOLDER / "passed.json")
        wheel = DIST / Path(str(said["wheel"])).name
        same = said["key"] == _key(plan) and sha256_of(wheel) == said["sha256"]
        steps = [Step(str(name), str(outcome), f"in a former run; {why}".rstrip("; ")) for name, outcome, why in said["steps"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (wheel, steps) if same else None


def _key(plan: device.Plan) -> str:
    return f"{read_lock()['tree']} {plan.folder.name} {' '.join(plan.components)} {plan.triton_kernels}"


def _made(hour: Hour, plan: device.Plan) -> bool:
    """Build, audit and import, or take the wheel that passed all three before."""
    if (known := _known(plan)) is not None:
        hour.wheel, steps = known
        hour.steps += steps
        say(f"not again: {hour.wheel.name} was built and checked in a former run")
        return True

    def built() -> str:
        hour.wheel = build.build("rocm")
        return ""

    def checked(check: Callable[[Path, device.Plan], str]) -> Callable[[], str]:
        def run() -> str:
            assert hour.wheel is not None
            try:
                return check(hour.wheel, plan)
            except errors.Fatal:
                hour.wheel = finish.set_aside(hour.wheel)
                raise

        return run

    hour.step("build", built)
    hour.step("audit", checked(finish.audit))
    hour.step("import", checked(finish.imports))
    if hour.stopped is None and hour.wheel is not None:
        rows = [(step.name, step.outcome, step.why) for step in hour.steps[-3:]]
        passed = {"key": _key(plan), "wheel": hour.wheel.name, "sha256": sha256_of(hour.wheel), "steps": rows}
        atomic_write(FOLDER / "passed.json", json.dumps(passed).encode())
    return hour.stopped is None


def _verify(hour: Hour, plan: device.Plan) -> str:
    assert hour.wheel is not None
    if plan.stand_in:
        return f"a stand-in for {plan.stand_in} is never run"
    if hour.machine.device is None:
        return "no DCU is to be seen here"
    usable = next((f for f in hour.findings if f.name == "usable" and not f.ok), None)
    if usable is not None:
        hour.next = usable.do
        return usable.found
    site = FOLDER / "site"
    with new_folder(site) as work, zipfile.ZipFile(hour.wheel) as archive:  # our own file
        archive.extractall(work)
    climb = _climb(hour)
    env = {**for_python(plan.env), "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [plan.env.get("PYTHONPATH", "")])])}
    argv: list[str | Path] = [plan.python.python, "-m", "vllm.dcu", "verify", "--folder", climb, "--evidence", climb / "evidence.json"]
    argv += [word for rung in RUNGS for word in ("--rung", rung)] + (["--resume"] if climb.is_dir() else [])
    climb.parent.mkdir(parents=True, exist_ok=True)
    code = echoed(argv, cwd=FOLDER, base=env)
    if code == 4:
        return "a rung could not run here: see the rungs below"
    if code:
        raise errors.CheckFailed(f"verify ended with {code}", "its own sentence stands above", f"read {shown(climb / 'report.md')}")
    return ""


def _climb(hour: Hour) -> Path:
    return FOLDER / f"climb-{sha256_of(hour.wheel)[:12] if hour.wheel else 'none'}"


def _about(wheel: Path | None) -> dict[str, Any]:
    """What the manifest says of the wheel; no folder of this machine stands in it."""
    if wheel is None or not wheel.is_file():
        return {}
    with zipfile.ZipFile(wheel) as archive:
        manifest = overlay_module("manifest").parse(archive.read(build.MANIFEST))
    return {
        "wheel": wheel.name, "sha256": sha256_of(wheel), "version": manifest.version, "tree": manifest.tree, "archs": list(manifest.archs),
        "stand_in": manifest.stand_in, "toolchain": dict(manifest.toolchain),
    }  # fmt: skip


def _page(hour: Hour, about: Mapping[str, Any], rungs: Sequence[Mapping[str, Any]]) -> str:
    made = "passed" if about and not str(about["wheel"]).endswith(finish.REFUSED) else ""
    lines = ["# The first hour", "", "## What was made", ""]
    lines += (
        [f"- `{about['wheel']}`, for {', '.join(about['archs']) or 'no device'}, sha256 `{about['sha256']}`"] if about else ["- no wheel"]
    )
    if about and about["stand_in"]:
        lines.append(f"- **a stand-in for {about['stand_in']}: it is not for a DCU, and nothing below is evidence about one**")
    lines += ["", "## What is proven on this machine", "", "| step | outcome | seconds | why |", "|---|---|---|---|"]
    lines += [f"| {s.name} | {s.outcome} | {s.seconds:.0f} | {_cell(s.why)} |" for s in hour.steps]
    if rungs:
        lines += ["", "| rung | outcome | why |", "|---|---|---|"]
        lines += [f"| {r['id']} | {r['outcome']} | {_cell(r['why'])} |" for r in rungs]
    later = [f for f in hour.findings if not f.ok]
    if later:
        lines += ["", "| doctor found | to do |", "|---|---|", *(f"| {f.name}: {_cell(f.found)} | {_cell(f.do)} |" for f in later)]
    lines += ["", "Not proven here: a served model (V3 to V7), several devices, speed in service.", "", "## What is next", ""]
    if hour.next:
        lines.append(f"- {hour.next}; then `make first-hour` again: it goes on where it stopped")
    elif made and not about["stand_in"] and hour.wheel is not None:
        constraint = DIST / install.CONSTRAINTS
        lines += [f"- `{line.partition('   #')[0]}`" for line in install.install_lines(hour.wheel, constraint, hour.machine.python)]
        lines.append(
            '- `make verify ARGS="--model /path/to/MODEL"`: the rungs that need one; only then does a capability open by evidence of this machine'
        )
    lines += [
        "", "## What to send back", "",
        "`report.json` beside this page: device, toolchain, build, steps and rungs; no names, hosts, folders, addresses or serial numbers. Read it before you send",
        "it. Attach it to an issue of the repository that this checkout is from.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def main(argv: Sequence[str]) -> int:
    """Command line of `first-hour`.

    Raises:
        errors.CannotBuild: this machine is none for a DCU, or a step refused; errors.CheckFailed, errors.NotRun: see the page.
    """
    argparse.ArgumentParser(prog="first-hour", description=__doc__).parse_args(argv)
    machine = facts.look()
    if facts.resolve(os.environ.get("TARGET") or "auto", machine) != "rocm":
        raise errors.CannotBuild(
            "no DCU, no DTK and no vendor's torch is here",
            "the first hour is for a machine with a DCU, or for one that builds for it",
            "make apply && make build, for a CPU wheel; or TARGET=rocm PYTORCH_ROCM_ARCH=gfx936 make first-hour, on a machine that has a DTK",
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    with hold(FOLDER / ".lock", "first-hour"):
        hour = Hour(machine, doctor.examine("rocm", machine))
        hour.step("doctor", lambda: _doctor(hour))
        hour.step("apply", _apply)
        if hour.stopped is None:
            try:
                plan = device.plan()
                if _made(hour, plan):
                    if not plan.stand_in and hour.wheel is not None:
                        finish.record(hour.wheel, plan)
                    hour.step("verify", lambda: _verify(hour, plan))
            except errors.Fatal as error:
                hour.stopped, hour.next = error, error.do
                hour.steps.append(Step("build", "failed", f"{error.what}: {error.why}"))
        about, rungs = _about(hour.wheel), rungs_of(_climb(hour) / "report.json") if hour.wheel and hour.wheel.is_file() else []
        atomic_write(FOLDER / "page.md", _page(hour, about, rungs).encode())
        report = field_report(machine, hour.findings, hour.steps, about, rungs)
        atomic_write(FOLDER / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    print((FOLDER / "page.md").read_text(encoding="utf-8"))
    say(f"page: {shown(FOLDER / 'page.md')}; to send back: {shown(FOLDER / 'report.json')}")
    if hour.stopped is not None:
        raise hour.stopped
    if left := [step.name for step in hour.steps if step.outcome != "passed"]:
        raise errors.NotRun(f"not run: {', '.join(left)}", "the page says why", hour.next or "see the page")
    return 0
