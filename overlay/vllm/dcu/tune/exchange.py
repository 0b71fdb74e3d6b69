# SPDX-License-Identifier: Apache-2.0
"""Evidence for another machine of the same binding: written as a store of its own, and taken in only where the binding is equal.  Standard library only."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vllm.dcu.evidence.binding import Binding, differences
from vllm.dcu.evidence.ladder import LadderError
from vllm.dcu.evidence.site import IMPORTED, State, extension_of, status_of
from vllm.dcu.evidence.store import Entry, add, read_store

__all__ = ["bring", "send"]

Running = Callable[[str], Binding]
"""The binding of this process, by the module that holds the kernel."""


def send(store: Path, file: Path, running: Running) -> int:
    """Write every capability that is verified here to `file`. Returns how many.

    Raises:
        LadderError: there is none, or `file` is there already.
        EvidenceError, OSError: the store cannot be used, or the file cannot be written.
    """
    if file.exists():
        raise LadderError(f"{file} is there already: name a file that is not")
    entries = [e for e in read_store(store) if not differences(e.binding, running(extension_of(e))) and _verified(e)]
    if not entries:
        raise LadderError(f"{store} holds nothing that is verified on this device, toolchain and build: tune or verify first")
    for entry in entries:
        add(file, entry)
    file.with_name(file.name + ".lock").unlink(missing_ok=True)
    return len(entries)


def _verified(entry: Entry) -> bool:
    return status_of(entry.subject, (entry,), entry.binding).state is State.VERIFIED


def bring(file: Path, store: Path, running: Running) -> list[str]:
    """Take in what fits this machine; what is known here already stays. Returns what became of each entry, one sentence each.

    Raises:
        LadderError: there is nothing in `file`.
        EvidenceError, OSError: a file cannot be used or written.
    """
    entries = read_store(file)
    if not entries:
        raise LadderError(f"{file} holds no evidence: give what `tune --export` wrote")
    known = read_store(store)
    said = []
    for entry in entries:
        here = running(extension_of(entry))
        if other := differences(entry.binding, here):
            said.append(f"{entry.subject} is not imported: it was seen with another {', '.join(other)}.")
        elif any(e.subject == entry.subject and not differences(e.binding, here) for e in known):
            said.append(f"{entry.subject} is not imported: there is evidence of this machine's own.")
        else:
            marked = {name: replace(r, why=IMPORTED + r.why.removeprefix(IMPORTED)) for name, r in entry.rungs.items()}
            kept = add(store, replace(entry, rungs=marked))
            said.append(f"{entry.subject} is imported: {status_of(entry.subject, (kept,), here).sentence}.")
    return said
