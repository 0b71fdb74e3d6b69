# SPDX-License-Identifier: Apache-2.0
"""The evidence store: what `verify` showed on this site's own devices.  Standard library only.

One JSON file, `{"format": 1, "entries": [...]}` (`docs/verify.md` documents it). An entry is about one capability on one binding: the
rungs that ran, their verdicts, and for a shape that the built-in catalogue does not open the site's own record. Writers take a lock
and replace the file whole, so that a reader never sees half of it and two writers lose nothing.

The file is trusted only as far as it can be checked: its owner is this user or root and nobody else may write it; each entry carries the
hash of its own content; an entry that says what no climb can have shown is refused, and with it the whole file. The hash catches an edit
and a copy gone wrong. It is no signature: whoever may write the file may forge it, which is why its owner is asked for.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from vllm.dcu.arch import is_dcu_arch
from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Climb, Date, Outcome, Result, write_whole
from vllm.dcu.records.catalog import records_by_id
from vllm.dcu.records.record import Record, Verdict
from vllm.dcu.records.strict import StrictError, parse_json, plain, read_bytes
from vllm.dcu.records.typed import Most, Words, dump, load

__all__ = ["RUNG_IDS", "Entry", "EvidenceError", "add", "entry_of", "forget", "read_store"]

FORMAT = 1
RUNG_IDS: dict[str, str] = {
    "V0": "",
    "V1": "code-object",
    "V2": "kernel",
    "V2S": "kernel",
    "V3": "tensors",
    "V4": "dispatch",
    "V5": "service",
    "V6": "graph",
    "V7": "end-to-end",
}
"""Every rung that evidence may name, in order, with the record's rung that it is evidence for."""

_CLOCK_SLACK = timedelta(days=1)
_MOST_BYTES = 16 << 20


class EvidenceError(ValueError):
    """The evidence file must not be used. The message says what is wrong with it and what to do."""


@dataclass(frozen=True)
class Entry:
    """What was seen of one capability on one binding.

    Attributes:
        subject: the capability's id.
        binding: what it was seen on.
        rungs: rung id -> result; rungs that did not run are not here.
        dates: rung id -> when it ran, UTC.
        record: the site's own record, for a shape that the catalogue does not open; None for a record of the catalogue.
    """

    subject: str
    binding: Binding
    rungs: Mapping[str, Result]
    dates: Mapping[str, str]
    record: Record | None = None

    @property
    def last(self) -> str:
        """When its newest rung ran."""
        return max(self.dates.values(), default="")


def entry_of(climb: Climb, record: Record | None) -> Entry:
    """What a climb adds to the store: the rungs that ran."""
    ran = [step for step in climb.steps if step.result.outcome is not Outcome.NOT_RUN]
    return Entry(climb.subject, climb.binding, {s.id: s.result for s in ran}, {s.id: s.date for s in ran}, record)


@dataclass(frozen=True)
class _Rung(Result):
    """A rung as it stands in the file."""

    date: Date = field(kw_only=True)


@dataclass(frozen=True)
class _Stored:
    """An entry as it stands in the file. `digest` is the hash of the rest."""

    subject: Annotated[str, Words(r"[a-z0-9]+(?:[-_.][a-z0-9]+)*", "the id of a capability"), Most(200)]
    binding: Binding
    rungs: Annotated[Mapping[str, _Rung], Most(64)]
    record: Record | None
    digest: Annotated[str, Words(r"[0-9a-f]{64}", "a sha256")]

    def entry(self) -> Entry:
        """What it says."""
        rungs = {name: Result(row.outcome, row.why, row.figures) for name, row in self.rungs.items()}
        return Entry(self.subject, self.binding, rungs, {name: row.date for name, row in self.rungs.items()}, self.record)


@dataclass(frozen=True)
class _Store:
    format: Literal[1]
    entries: Annotated[tuple[_Stored, ...], Most(4096)]


def read_store(path: Path) -> tuple[Entry, ...]:
    """Every entry of the file; () where there is none.

    Raises:
        EvidenceError: the file is damaged, looks forged, or could have been written by someone else.
    """
    try:
        return _parse(read_bytes(path, _MOST_BYTES, private=True))
    except FileNotFoundError:
        return ()
    except StrictError as error:
        why = str(StrictError(error.field, error.why))
        raise EvidenceError(f"the evidence in {plain(str(path))} is not used: {why}. Move the file away and verify again.") from None


def _parse(data: bytes) -> tuple[Entry, ...]:
    whole = parse_json(data)
    entries = []
    for number, stored in enumerate(load(_Store, whole).entries):
        content = {name: value for name, value in whole["entries"][number].items() if name != "digest"}
        if stored.digest != _digest(content):
            raise StrictError(f"entries[{number}]", f"the entry about {stored.subject!r} was changed after it was written")
        entry = stored.entry()
        if why := _implausible(entry):
            raise StrictError(f"entries[{number}]", f"the entry about {entry.subject!r} {why}")
        entries.append(entry)
    keys = [(e.subject, e.binding) for e in entries]
    if len(set(keys)) != len(keys):
        raise StrictError("entries", "two entries are about the same capability on the same device and toolchain")
    return tuple(entries)


def _implausible(entry: Entry) -> str:
    """What no climb can have shown; empty where everything could be."""
    if unknown := sorted(set(entry.rungs) - set(RUNG_IDS)):
        return f"names rungs that do not exist: {', '.join(unknown)}"
    if not entry.rungs:
        return "holds no rung"
    for name, result in entry.rungs.items():
        if result.outcome is Outcome.NOT_RUN:
            return f"keeps {name}, which did not run"
        if result.outcome is Outcome.PASSED and not result.figures:
            return f"says that {name} passed and has no figure of it"
        try:
            date = datetime.strptime(entry.dates[name], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        except ValueError:
            return f"has no date for {name}, but {plain(entry.dates[name])!r}"
        if date > datetime.now(timezone.utc) + _CLOCK_SLACK:
            return f"says that {name} ran in the future"
    if not entry.binding.simulated and not is_dcu_arch(entry.binding.arch):
        return f"claims hardware evidence on {entry.binding.arch!r}, which is not a DCU of this build"
    return _implausible_record(entry)


def _implausible_record(entry: Entry) -> str:
    record = entry.record
    if record is None:
        return "" if entry.subject in records_by_id() else "is about no capability of this build"
    if record.id != entry.subject:
        return f"carries the record of {record.id!r}"
    if record.id in records_by_id():
        return "replaces a record of the build"
    if record.target.arch != entry.binding.arch:
        return f"carries a record for {record.target.arch}"
    running = entry.binding.toolchain
    if record.target.toolchain.mismatches(running):
        return "carries a record for another toolchain than it was seen on"
    if record.simulated not in ("", entry.binding.simulated):
        return "carries the record of another simulation"
    if entry.binding.simulated and not record.simulated and (record.verdict is Verdict.OPEN or any(e.on_hardware for e in record.evidence)):
        return "makes hardware evidence of a simulation"
    return ""


def _dump(entry: Entry) -> dict[str, Any]:
    rungs = {name: {**dump(result), "date": entry.dates[name]} for name, result in entry.rungs.items()}
    content = {"subject": entry.subject, "binding": dump(entry.binding), "rungs": rungs, "record": dump(entry.record)}
    return {**content, "digest": _digest(content)}


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@contextlib.contextmanager
def _locked(path: Path, seconds: float) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EvidenceError(f"another process has held {path}.lock for {seconds:.0f} s: end it and try again") from None
                time.sleep(0.02)
        yield
    finally:
        # The kernel drops the lock with the descriptor, also where this process is killed.
        os.close(descriptor)


def add(path: Path, entry: Entry, seconds: float = 60.0) -> Entry:
    """Add what a climb showed. Rungs of the same capability and binding are taken over where this climb did not run them.

    Returns the entry as it now stands in the file.

    Raises:
        EvidenceError: the file there must not be used, the entry is one that would be refused, or the lock is held.
        OSError: the file cannot be written.
    """
    if why := _implausible(entry):
        raise EvidenceError(f"evidence about {entry.subject!r} is not kept: it {why}")
    with _locked(path, seconds):
        entries = list(read_store(path))
        for old in entries:
            if (old.subject, old.binding) == (entry.subject, entry.binding):
                rungs, dates = {**old.rungs, **entry.rungs}, {**old.dates, **entry.dates}
                entry = replace(entry, rungs=rungs, dates=dates, record=entry.record or old.record)
                entries.remove(old)
                break
        _write(path, [*entries, entry])
    return entry


def forget(path: Path, subject: str, seconds: float = 60.0) -> int:
    """Drop every entry about one capability. Returns how many there were.

    Raises:
        EvidenceError: the file there must not be used, or the lock is held.
        OSError: the file cannot be written.
    """
    with _locked(path, seconds):
        entries = read_store(path)
        kept = [entry for entry in entries if entry.subject != subject]
        if len(kept) != len(entries):
            _write(path, kept)
    return len(entries) - len(kept)


def _write(path: Path, entries: list[Entry]) -> None:
    text = json.dumps({"format": FORMAT, "entries": [_dump(entry) for entry in entries]}, indent=1) + "\n"
    try:
        if len(text) > _MOST_BYTES or _parse(text.encode()) != tuple(entries):
            raise StrictError("", "it would not come back as it was written")
    except StrictError as error:
        raise EvidenceError(f"evidence is not kept, because it would be refused when it is read: {error}") from None
    write_whole(path, text)
