# SPDX-License-Identifier: Apache-2.0
"""What the site's own evidence means for the gate, decided once before the first forward.  Standard library only.

Exact match opens: every rung up to V6 passed on the binding of this process. A difference demotes: the capability is shut, and one
sentence says which rung still holds, what differs and which command verifies again. A failed rung shuts it, here and on every later
toolchain, until a climb passes. A climb that is not finished changes nothing for a record of the catalogue and opens nothing.
An evidence file that must not be used shuts every capability: it may have held a failure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from vllm.dcu.evidence.binding import Binding, differences, file_hash, module_file, observe_binding
from vllm.dcu.evidence.ladder import Measure, Outcome
from vllm.dcu.evidence.store import RUNG_IDS, Entry, EvidenceError, read_store
from vllm.dcu.records.catalog import records_by_id
from vllm.dcu.records.kernels import KERNELS, LLMM1
from vllm.dcu.records.record import Record, Toolchain

__all__ = [
    "IMPORTED",
    "NO_SITE",
    "OPENING",
    "REHEARSED",
    "Site",
    "State",
    "Status",
    "command",
    "holds_up_to",
    "judge",
    "observe_site",
    "status_of",
]

OPENING: tuple[str, ...] = tuple(ident for ident in RUNG_IDS if ident != "V7")
"""Rungs that must all have passed. V7 is a claim about speed end to end; it opens nothing, and its failure shuts."""

REHEARSED: tuple[str, ...] = ("V0", "V2", "V3", "V4", "V5")
"""Those that must have in a simulation, which has no code object, no time and no graphs: what they open is open in that simulation alone."""

_DEPENDS: dict[str, frozenset[str]] = {
    "V0": frozenset({"vllm", "build", "platform"}),
    "V1": frozenset({"arch", "extension"}),
    "V2": frozenset({"device", "arch", "hip", "hip_runtime", "dtk", "driver", "extension"}),
    "V2S": frozenset({"device", "arch", "hip", "hip_runtime", "dtk", "driver", "extension", "torch", "blas"}),
    "V3": frozenset({"torch", "vllm", "build", "platform"}),
    "V4": frozenset({"torch", "vllm", "build", "extension", "platform"}),
}
"""What a change of a binding's field takes from each rung; the rungs above depend on all of them."""


class State(Enum):
    """How a capability stands by the site's evidence."""

    NONE = "none"
    VERIFIED = "verified"
    UNFINISHED = "unfinished"
    LAPSED = "lapsed"
    FAILED = "failed"


@dataclass(frozen=True)
class Status:
    """How one capability stands, the highest rung that still holds (empty: none), and a sentence for people."""

    state: State
    holds: str = ""
    sentence: str = ""


@dataclass(frozen=True)
class Site:
    """What the gate needs of the site's evidence.

    Attributes:
        records: the site's own records.
        status: how each capability stands that there is evidence about.
        problem: why the evidence file must not be used; empty where it may.
        times: microseconds that V2S measured for each capability that is verified here.
    """

    records: tuple[Record, ...] = ()
    status: Mapping[str, Status] = field(default_factory=dict)
    problem: str = ""
    times: Mapping[str, float] = field(default_factory=dict)

    def state(self, ident: str) -> State:
        """The state of one capability."""
        return self.status[ident].state if ident in self.status else State.NONE

    def owns(self, ident: str) -> bool:
        """Whether the record is the site's own, so that nothing but the site's evidence can open it."""
        return any(record.id == ident for record in self.records)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth saying once: the file's problem, and every capability that is shut by its evidence."""
        shut = tuple(s.sentence for s in self.status.values() if s.state in (State.LAPSED, State.FAILED))
        return ((self.problem,) if self.problem else ()) + shut


NO_SITE = Site()


IMPORTED = "imported: "
"""What a rung's sentence begins with that was climbed on another machine."""


def command(subject: str) -> str:
    """What verifies a capability again."""
    return f"python -m vllm.dcu verify --capability {subject} --model MODEL"


def holds_up_to(entry: Entry, changed: Iterable[str]) -> str:
    """The highest rung of `entry` that passed, as did all below it, and that no field in `changed` takes back."""
    gone = set(changed)
    highest = ""
    for ident in RUNG_IDS:
        result = entry.rungs.get(ident)
        takes = gone if ident not in _DEPENDS else gone & _DEPENDS[ident]
        if result is None or result.outcome is not Outcome.PASSED or takes:
            break
        highest = ident
    return highest


def status_of(subject: str, entries: Iterable[Entry], binding: Binding) -> Status:
    """How `subject` stands in a process of `binding`.

    Evidence of a simulation counts in that simulation only. Evidence with a plugin opens nothing without it, and the reverse; a rung that
    failed in the one shuts the other as well.
    """
    every = [e for e in entries if e.subject == subject and e.binding.simulated == binding.simulated]
    own = [e for e in every if bool(e.binding.platform) == bool(binding.platform)]
    own = own or [e for e in every if any(r.outcome is Outcome.FAILED for r in e.rungs.values())]
    if not own:
        return Status(State.NONE)
    exact = next((e for e in own if not differences(e.binding, binding)), None)
    entry = exact or max(own, key=lambda e: e.last)
    changed = differences(entry.binding, binding)
    holds = holds_up_to(entry, changed)
    broken = [(name, r) for name, r in entry.rungs.items() if r.outcome is Outcome.FAILED]
    if broken:
        name, result = broken[0]
        where = "" if exact else f" (seen with another {', '.join(changed)})"
        sentence = f"DCU capability {subject} is shut: {name} failed on this site{where}: {result.why} Verify again: {command(subject)}"
        return Status(State.FAILED, holds, sentence)
    if exact is None:
        what = f"evidence up to {holds} still holds" if holds else "no rung of its evidence holds any more"
        sentence = (
            f"DCU capability {subject} is shut: it was verified with another {', '.join(changed)}; {what}. Verify again: {command(subject)}"
        )
        return Status(State.LAPSED, holds, sentence)
    missing = [name for name in (REHEARSED if binding.simulated else OPENING) if name not in entry.rungs]
    if binding.unknown and not binding.simulated:
        return Status(
            State.UNFINISHED, holds, f"{subject}: {', '.join(binding.unknown)} cannot be read here, so that nothing can be bound to it"
        )
    if missing:
        return Status(State.UNFINISHED, holds, f"{subject}: {', '.join(missing)} did not run")
    where = (
        "on another machine of this very binding, and imported" if any(r.why.startswith(IMPORTED) for r in entry.rungs.values()) else "here"
    )
    return Status(State.VERIFIED, holds, f"{subject} is verified on this device and toolchain, {where}")


def extension_of(entry: Entry) -> str:
    """The module that holds the kernel which `entry` is about."""
    record = entry.record or records_by_id()[entry.subject]
    return KERNELS[record.kernel].extension


def judge(entries: tuple[Entry, ...], binding: Binding, hashes: Mapping[str, str] | None = None) -> Site:
    """What `entries` mean in a process of `binding`. `hashes`: module -> hash, for what does not lie in the binding's own extension."""
    here = [e for e in entries if e.binding.simulated == binding.simulated]

    def running(entry: Entry) -> Binding:
        own = (hashes or {}).get(extension_of(entry))
        return binding if own is None else replace(binding, extension=own)

    status = {e.subject: status_of(e.subject, here, running(e)) for e in here}
    newest: dict[str, Entry] = {}
    for entry in sorted(here, key=lambda e: (not differences(e.binding, running(e)), e.last)):
        if entry.record is not None:
            newest[entry.subject] = entry
    times = {e.subject: took for e in here if _stands(e, status, running) and (took := _time(e)) is not None}
    return Site(tuple(e.record for e in newest.values() if e.record is not None), status, times=times)


def _stands(entry: Entry, status: Mapping[str, Status], running: Callable[[Entry], Binding]) -> bool:
    return status[entry.subject].state is State.VERIFIED and not differences(entry.binding, running(entry))


def _time(entry: Entry) -> float | None:
    """The kernel's microseconds by V2S."""
    result = entry.rungs.get("V2S")
    found = result.figures.get("kernel time") if result else None
    return found.median if isinstance(found, Measure) else None


def observe_site(path: Path, arch: str, toolchain: Toolchain, platform: str = "", simulated: str = "") -> Site:
    """The site's evidence for this process (`platform`, `simulated`: see `Binding`). Without a file nothing is read or hashed."""
    try:
        entries = read_store(path)
        if not entries:
            return NO_SITE
        others = {extension_of(entry) for entry in entries} - {LLMM1.extension}
        return judge(
            entries, observe_binding(arch, toolchain, simulated, platform=platform), {name: file_hash(module_file(name)) for name in others}
        )
    except EvidenceError as error:
        return Site(problem=str(error))
