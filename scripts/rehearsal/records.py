"""What a rehearsal writes down: plain data, so that every check can be run again over it, and over a planted one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm.dcu.dispatch import countfiles
from vllm.dcu.records.catalog import MISSION

__all__ = ["CAPABILITY", "Answer", "Counts", "Phase", "Run", "answer_of", "read_counts"]

CAPABILITY = MISSION.id


@dataclass(frozen=True)
class Answer:
    """One completion.

    Attributes:
        tokens: token ids.
        logprobs: of those tokens.
        gaps: log probability of the best token less that of the second best, at each place.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True)
class Counts:
    """Three independent counts since the folders were made.

    Attributes:
        hits: the gate's own, from the counter files of every process.
        calls: runs of the kernel, counted by the kernel.
        rows: N of every unquantized GEMM of the mission shape, seen in front of the gate, process by process.
        host_calls: those runs that the host build of the real kernel source computed.
    """

    hits: int = 0
    calls: int = 0
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    host_calls: int = 0

    def since(self, before: Counts) -> Counts:
        """What was added after `before`. Files are only appended to, so the older part is a prefix."""
        rows = {process: row[len(before.rows.get(process, ())) :] for process, row in self.rows.items()}
        return Counts(self.hits - before.hits, self.calls - before.calls, rows, self.host_calls - before.host_calls)

    @property
    def single_rows(self) -> int:
        """GEMMs of the mission shape that had one activation row."""
        return sum(row.count(1) for row in self.rows.values())

    @property
    def all_rows(self) -> tuple[int, ...]:
        """N of every such GEMM, the processes one after the other."""
        return tuple(n for row in self.rows.values() for n in row)


@dataclass(frozen=True)
class Phase:
    """One thing asked of the server.

    Attributes:
        name: what it is, as the report says it.
        counts: what it added.
        answers: what came back.
        steps: decode steps with N=1 that it must take (None: the scheduler decides, and only the counts are compared).
        facts: what else was seen.
    """

    name: str
    counts: Counts
    answers: tuple[Answer, ...] = ()
    steps: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One server from start to end.

    Attributes:
        name: unique in a report.
        variant: `on`, `off`, `stock`, `gfx928`, or the fault that was planted.
        model, layers, mode: what it served; mode is `eager` or `compiled`.
        version: what /version answered.
        start_seconds: until it was healthy.
        phases: in order.
        ending: how it ended, and what its counter files said then.
        said: what its log says of the build and the platform, line by line.
        processes: how many there were with layers in them, and so a decision to say.
    """

    name: str
    variant: str
    model: str
    layers: int
    mode: str
    version: str
    start_seconds: float
    phases: tuple[Phase, ...]
    ending: Mapping[str, Any] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    processes: int = 0

    def phase(self, name: str) -> Phase:
        """The phase of that name."""
        return next(phase for phase in self.phases if phase.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def answer_of(choice: Mapping[str, Any]) -> Answer:
    """Read one choice of a completion that was asked for with `logprobs=2` and `return_tokens_as_token_ids`."""
    found = choice["logprobs"]
    tokens = tuple(int(token.removeprefix("token_id:")) for token in found["tokens"])
    gaps = []
    for top in found["top_logprobs"]:
        first, second, *_ = sorted(top.values(), reverse=True)
        gaps.append(first - second)
    return Answer(tokens, tuple(found["token_logprobs"]), tuple(gaps))


def read_counts(stats: Path, log: Path) -> Counts:
    """Read all three counts as they stand now, also while the server runs."""
    processes, problems = countfiles.read_folder(stats)
    if problems:
        raise ValueError("; ".join(problems))
    hits = sum(group["hits"].get(CAPABILITY, 0) for group in countfiles.merge(processes))
    size = {kind: sum(path.stat().st_size for path in log.glob(f"{kind}-*")) for kind in ("calls", "host")}
    rows = {path.name: tuple(path.read_bytes()) for path in log.glob("rows-*")}
    return Counts(hits, size["calls"], rows, size["host"])
