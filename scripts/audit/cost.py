"""What a gfx936 _rocm_C costs to compile, against upstream's: CPU seconds of every unit, measured one after the other."""

from __future__ import annotations

import json
import os
import resource
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripts.audit.configure import AUDIT, Bench, Configured, commands, compile_targets, configure, run_unit
from scripts.common import errors
from scripts.common.files import atomic_write, say
from scripts.common.paths import TREE

__all__ = ["Cost", "measure_costs"]


@dataclass(frozen=True)
class Cost:
    """CPU seconds (user + system) of the units of one `_rocm_C`, and of `_dcu_C` where there is one."""

    what: str
    units: dict[str, float]

    @property
    def total(self) -> float:
        """Sum over the units."""
        return sum(self.units.values())


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cost(what: str, built: Configured, hipify_for: str) -> Cost:
    compile_targets(built, [hipify_for])  # makes the hipified sources, which are not counted
    units = {}
    for command in commands(built):
        if not command.target.startswith(("_rocm_C", "_dcu_C")):
            continue
        with tempfile.TemporaryDirectory() as folder:
            before = _children()
            done = run_unit(command, built, [], Path(folder) / "x.o", kept=False)
            units[command.unit] = round(_children() - before, 1)
        if done.returncode:
            raise errors.CheckFailed(f"{command.unit} does not compile", done.stderr.strip()[-300:], "run the audit first")
        say(f"audit: {what}: {command.unit} {units[command.unit]} CPU s")
    return Cost(what, units)


def measure_costs(bench: Bench, upstream: Path) -> list[Cost]:
    """The DCU's units for a stand-in, then upstream's for the same arch and for gfx90a; written to build/audit/cost.json.

    Raises:
        errors.CheckFailed: a unit does not compile.
    """
    bindings = "CMakeFiles/_rocm_C.dir/csrc/rocm/{}.cpp.o"
    costs = [
        _cost("gfx936's units for gfx906", configure(bench, TREE, "gfx906", stand_in="gfx906"), bindings.format("dcu_bindings")),
        _cost("upstream for gfx906", configure(bench, upstream, "gfx906"), bindings.format("torch_bindings")),
        _cost("upstream for gfx90a", configure(bench, upstream, "gfx90a"), bindings.format("torch_bindings")),
    ]
    rows = [{"what": cost.what, "cpu_seconds": round(cost.total, 1), "units": cost.units} for cost in costs]
    load = os.getloadavg()[0]
    atomic_write(AUDIT / "cost.json", (json.dumps({"rows": rows, "load_average": load}, indent=1) + "\n").encode())
    return costs
