# SPDX-License-Identifier: Apache-2.0
"""The capability record: what it holds, and what makes one wrong.  Standard library only.

A record has five parts: the target (device and toolchain), the contract (what the tensors must be), the framework
semantics, the evidence, and the fallback. A positive record opens a capability on its target; a negative one says why a
kernel stays closed and when to look again. A wrong record is refused when it is made, with the name of the field.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from vllm.dcu.records.kernels import KERNELS, Kernel, broken_limit
from vllm.dcu.records.strict import StrictError, plain

__all__ = [
    "RUNGS",
    "Contract",
    "Evidence",
    "Record",
    "RecordError",
    "Semantics",
    "Target",
    "Toolchain",
    "Verdict",
]

RUNGS: tuple[str, ...] = ("code-object", "kernel", "tensors", "dispatch", "service", "graph", "end-to-end")
"""The evidence ladder, lowest first. Each rung proves itself only."""

_ID = re.compile(r"[a-z0-9]+(?:[-_.][a-z0-9]+)*")
_ARCH = re.compile(r"gfx[0-9a-f]+")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|unknown")


class RecordError(StrictError):
    """A record that must not be used. `field` names what is wrong with it."""

    def __init__(self, record: str, name: str, why: str) -> None:
        super().__init__(name, why, f"capability record {plain(record)!r}")
        self.record = record


class Verdict(Enum):
    """Whether a record opens its capability or explains why it stays closed."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True)
class Toolchain:
    """Versions. In a record each is a prefix by components (`2.10` fits `2.10.0+das`); in a process they are what runs.

    torch, hip and vllm bind a record; python is for the reader. An empty string means unknown, and fits nothing.
    """

    torch: str
    hip: str
    vllm: str
    python: str = ""

    def mismatches(self, running: "Toolchain") -> tuple[str, ...]:
        """One phrase for each binding version of `running` that this toolchain does not fit."""
        return tuple(
            f"{name} is {have or 'unknown'}, verified with {want}"
            for name in ("torch", "hip", "vllm")
            for want, have in [(getattr(self, name), getattr(running, name))]
            if not _fits(want, have)
        )


def _fits(want: str, have: str) -> bool:
    release = _VERSION.match(have)
    if release is None:
        return False
    wanted = want.split(".")
    return release.group().split(".")[: len(wanted)] == wanted


@dataclass(frozen=True)
class Target:
    """Part 1: the device and the toolchain, and what the extension must hold."""

    arch: str
    wavefront: int
    toolchain: Toolchain
    extension: str


@dataclass(frozen=True)
class Contract:
    """Part 2: what one call must be. `None` for a shape means any, which only a negative record may say.

    `out[N, M] = x[N, K] @ weight[M, K].T`. Both operands are contiguous, start at a multiple of `alignment` bytes and lie on
    one device; there is no bias. `args` are the kernel's own arguments.
    """

    dtype: str | None
    n: int | None
    m: int | None
    k: int | None
    alignment: int = 16
    args: Mapping[str, int] = field(default_factory=dict)
    instructions: str = ""


@dataclass(frozen=True)
class Semantics:
    """Part 3: how the framework sees the call."""

    op: str
    schema: str
    fake: str
    mutates: tuple[str, ...]
    autograd: str
    graph: str


@dataclass(frozen=True)
class Evidence:
    """One entry of part 4: which rung, seen by whom, on what. `on_hardware` is true only for the record's own target."""

    rung: str
    claim: str
    source: str
    device: str
    toolchain: str
    date: str
    on_hardware: bool


@dataclass(frozen=True)
class Record:
    """One capability. Making one validates it. `simulated` names the simulation that it opens in, and nowhere else; empty: hardware.

    Raises:
        RecordError: a field is wrong; the message and `.field` name it.
    """

    id: str
    kernel: str
    verdict: Verdict
    target: Target
    contract: Contract
    semantics: Semantics | None
    evidence: tuple[Evidence, ...]
    fallback: str
    why: str
    revisit: str
    simulated: str = ""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise RecordError(self.id, "id", "is not lower-case words joined by '-', '_' or '.'")
        kernel = KERNELS.get(self.kernel)
        if kernel is None:
            raise RecordError(self.id, "kernel", f"{self.kernel!r} is not one of {', '.join(KERNELS)}")
        _check_target(self)
        _check_evidence(self)
        for name in ("fallback", "why", "revisit"):
            if not getattr(self, name).strip():
                raise RecordError(self.id, name, "is empty")
        if self.verdict is Verdict.OPEN:
            _check_open(self, kernel)

    @property
    def key(self) -> tuple[str, int, int] | None:
        """(dtype, M, K) of the weight this record is about, or None where it is about any shape."""
        c = self.contract
        if c.dtype is None or c.m is None or c.k is None:
            return None
        return c.dtype, c.m, c.k


def _check_target(record: Record) -> None:
    target = record.target
    if not _ARCH.fullmatch(target.arch):
        raise RecordError(record.id, "target.arch", f"{target.arch!r} is not the bare name of an arch")
    if target.wavefront not in (32, 64):
        raise RecordError(record.id, "target.wavefront", f"{target.wavefront} is neither 32 nor 64")
    for name in ("torch", "hip", "vllm"):
        if not _VERSION.fullmatch(getattr(target.toolchain, name)):
            raise RecordError(record.id, f"target.toolchain.{name}", "is not a version, or the beginning of one")


def _check_evidence(record: Record) -> None:
    if not record.evidence:
        raise RecordError(record.id, "evidence", "is empty: even a refusal has a source")
    if record.simulated and any(entry.on_hardware for entry in record.evidence):
        raise RecordError(record.id, "evidence", "of a simulation was not seen on hardware")
    for entry in record.evidence:
        if entry.rung not in RUNGS:
            raise RecordError(record.id, "evidence.rung", f"{entry.rung!r} is not one of {', '.join(RUNGS)}")
        if not _DATE.fullmatch(entry.date):
            raise RecordError(record.id, "evidence.date", f"{entry.date!r} is neither YYYY-MM-DD nor 'unknown'")
        for name in ("claim", "source", "device", "toolchain"):
            if not getattr(entry, name).strip():
                raise RecordError(record.id, f"evidence.{name}", "is empty")


def _check_open(record: Record, kernel: Kernel) -> None:
    c = record.contract
    if c.dtype is None or c.n is None or c.m is None or c.k is None:
        raise RecordError(record.id, "contract", "a positive record names dtype, n, m and k exactly")
    broken = broken_limit(kernel, c.dtype, c.n, c.m, c.k, c.args)
    if broken is not None:
        raise RecordError(record.id, "kernel" if broken[0] == "kernel" else f"contract.{broken[0]}", broken[1])
    if c.alignment != 16:
        raise RecordError(record.id, "contract.alignment", f"{kernel.name} reads 16 bytes at a time")
    if record.target.wavefront != 64:
        raise RecordError(
            record.id, "target.wavefront", f"{kernel.name} is built for 64 lanes (LLMM1 is wrong above K=4096 on a 32-wide device)"
        )
    if record.semantics is None:
        raise RecordError(record.id, "semantics", "a positive record states the framework semantics")
    if record.semantics.schema != kernel.schema or record.semantics.op != kernel.op:
        raise RecordError(record.id, "semantics.schema", f"is not {kernel.name}'s own: {kernel.schema}")
    if record.semantics.mutates:
        raise RecordError(record.id, "semantics.mutates", f"{kernel.name} changes no argument")
    if record.fallback != "F.linear":
        raise RecordError(record.id, "fallback", "is not F.linear, the only fallback that covers every call")
    if not record.simulated and not any(entry.on_hardware for entry in record.evidence):
        raise RecordError(record.id, "evidence", "no entry was seen on the target's hardware: a rehearsal opens nothing")
