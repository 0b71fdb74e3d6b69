# SPDX-License-Identifier: Apache-2.0
"""A profile of what the child runs left.  Imports no torch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vllm.dcu.evidence.ladder import measure
from vllm.dcu.profile.account import account
from vllm.dcu.profile.flame import write_flame
from vllm.dcu.profile.pieces import Names, names_of
from vllm.dcu.profile.report import Account, Group, Linear, Profile
from vllm.dcu.profile.runs import Phase, Ran, Spec
from vllm.dcu.profile.suggest import Facts, suggestions
from vllm.dcu.profile.trace import Shape, read_trace

__all__ = ["profile_of"]


def profile_of(spec: Spec, ran: Ran, folder: Path, eager: tuple[Ran, Path] | None, out: Path, compare: str) -> Profile:
    """The profile of a run.

    Args:
        folder: where its traces are.
        eager: the eager run that has the names, and its folder; None where the run has them itself.
        out: where a flame graph of each phase is written.
        compare: the command that profiles again and says what changed.

    Raises:
        TraceError: a trace cannot be read.
    """
    choices = {Shape(c.dtype, c.n, c.m, c.k): c for c in (eager[0] if eager else ran).choices}
    accounts = []
    for index, phase in enumerate(ran.phases):
        names = names_of(read_trace(eager[1] / eager[0].phases[index].trace)) if eager else None
        accounts.append(_account(spec, ran, phase, folder, choices, names, out, compare))
    return Profile(1, spec.model, spec.arguments, spec.context, ran.captured, ran.eager, ran.binding, ran.read, tuple(accounts))


def _account(
    spec: Spec, ran: Ran, phase: Phase, folder: Path, choices: Mapping[Shape, Linear], names: Names | None, out: Path, compare: str
) -> Account:
    table = account(read_trace(folder / phase.trace), choices, names)
    step, profiled = measure(phase.us), measure(table.profiled)
    left = step.median - sum(line.us for line in table.lines)
    found = Account(phase.phase, phase.rows, step, profiled, table.lines, left, ())
    write_flame(table.stacks, f"{spec.model}: {found.name}, {step.median / 1e3:.3f} ms a step", out, found.name)
    if phase.phase != "decode":
        return found
    kv = ran.kv * phase.rows * spec.context if found.total(Group.ATTENTION) else 0.0
    facts = Facts(
        table.lines,
        step.median,
        profiled.median - step.median,
        ran.read.median,
        kv,
        ran.eager,
        ran.captured,
        spec.model,
        spec.arguments,
        compare,
    )
    return replace(found, suggestions=suggestions(facts))
