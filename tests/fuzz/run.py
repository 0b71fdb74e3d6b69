"""Mutated files of every kind, read as a tool or the gate reads them: refused in one short line, or read as exactly what they say.

python -m tests.fuzz.run CASES [SEED]        by hand (docs/hostile-input.md has the figures); a test runs a fixed number each time

By hand it goes in parts, each with a seed of its own, and notes each one that ended in build/fuzz: the same command goes on where it was stopped, as
long as neither the reader nor the fuzz has changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from vllm.dcu.evidence import store

from scripts.common.errors import Fatal
from scripts.common.paths import BUILD, ROOT
from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.mutate import Pairs, mutated, read_pairs

__all__ = ["Seen", "fuzz", "in_parts"]

_SLOWEST = 5.0
_PART = 10_000
_MEMORY = "/dev/shm"
"""Where there is one: on a disk, making the file took two thirds of the time."""


@dataclass
class Seen:
    """How many files of each kind were read and refused, and a sentence for each that should have gone otherwise."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def fuzz(cases: int, seed: int = 1, kinds: tuple[str, ...] = tuple(KINDS), most_faults: int = 20) -> Seen:
    """Try `cases` mutated files, the kinds in turn. Ends early after `most_faults`."""
    rng, seen = Random(seed), Seen()
    with tempfile.TemporaryDirectory(prefix="gfx936-fuzz-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as folder:
        path = Path(folder) / "file.counts"
        path.touch(0o600)
        for number in range(cases):
            name = kinds[number % len(kinds)]
            kind = KINDS[name]
            data = _one(rng, kind)
            path.write_bytes(data)
            if why := _judge(kind, path, data, seen, name):
                seen.faults.append(f"{name}, case {number} of seed {seed}: {why}: {data[kind.tail :][:300]!r}")
                if len(seen.faults) >= most_faults:
                    break
    return seen


def _one(rng: Random, kind: Kind) -> bytes:
    if kind.tail:
        lines = kind.sample[kind.tail :].splitlines()
        at = rng.randrange(len(lines))
        lines[at] = mutated(rng, lines[at])
        return kind.sample[: kind.tail] + b"\n".join([*lines, b""])
    data = mutated(rng, kind.sample)
    if kind.signed and rng.random() < 0.7:
        data = _signed_anew(data)
    return data


def _signed_anew(data: bytes) -> bytes:
    """As a forger would: every entry with a digest that fits what `json` makes of it."""
    try:
        whole = json.loads(data)
        for entry in whole["entries"]:
            old, content = entry["digest"], {name: value for name, value in entry.items() if name != "digest"}
            data = data.replace(old.encode(), store._digest(content).encode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return data


def _judge(kind: Kind, path: Path, data: bytes, seen: Seen, name: str) -> str:
    begun = time.monotonic()
    try:
        found = kind.read(path)
    except kind.errors as error:
        seen.refused[name] += 1
        lines = [error.what, error.why, error.do] if isinstance(error, Fatal) else [str(error)]
        return "" if all(line.isprintable() and 0 < len(line) < 1500 for line in lines) else f"it is refused with {str(error)[:200]!r}"
    except Exception as error:
        return f"{type(error).__name__} ({str(error)[:100]})"
    finally:
        slow = time.monotonic() - begun
        if slow > _SLOWEST:
            seen.faults.append(f"{name} took {slow:.0f} s: {data[:300]!r}")
    seen.read[name] += 1
    texts = data[kind.tail :].split(b"\n")[:-1] if kind.tail else [data]
    for text in texts:
        try:
            raw = read_pairs(text)
        except (ValueError, RecursionError) as error:
            return f"it was read, and is no JSON ({error})"
        if why := _form(raw, kind.any_text) or (_same(raw, kind.left(found)) if kind.left else ""):
            return why
    return ""


def _form(raw: Any, any_text: bool) -> str:
    """What no file that is believed may hold."""
    if isinstance(raw, Pairs):
        names = [name for name, _ in raw]
        if len(set(names)) != len(names):
            return f"a key of {names} stands twice"
        return next((why for name, item in raw if (why := _form(name, any_text) or _form(item, any_text))), "")
    if isinstance(raw, list):
        return next((why for item in raw if (why := _form(item, any_text))), "")
    if isinstance(raw, float) and not math.isfinite(raw):
        return f"{raw} was read"
    if isinstance(raw, int) and not -(2**63) <= raw < 2**63:
        return "a number beyond 64 bits was read"
    if isinstance(raw, str) and not any_text and not (raw.isprintable() and len(raw) <= 4096):
        return f"the text {raw[:50]!r} was read"
    return ""


def _same(raw: Any, left: Any) -> str:
    """Whether what was read is all that the file says, and nothing else: types are not changed, and nothing is left aside."""
    if isinstance(raw, Pairs) and isinstance(left, dict):
        said = dict(raw)
        if more := set(said) - set(left):
            return f"{sorted(more)} was left aside"
        if less := set(left) - set(said):
            return f"{sorted(less)} was made up"
        return next((why for name, item in said.items() if name != "digest" and (why := _same(item, left[name]))), "")
    if isinstance(raw, list) and not isinstance(raw, Pairs) and isinstance(left, list):
        if len(raw) != len(left):
            return f"{len(raw)} entries became {len(left)}"
        return next((why for a, b in zip(raw, left, strict=True) if (why := _same(a, b))), "")
    if type(raw) is int and type(left) is float and raw == left:
        return ""
    return "" if type(raw) is type(left) and raw == left else f"{str(raw)[:60]!r} became {str(left)[:60]!r}"


def _notes(seed: int, cases: int) -> Path:
    """Where the parts of a run are noted: a file for each state of what is tried and of what tries."""
    sources = [*(ROOT / "overlay/vllm/dcu").rglob("*.py"), *(ROOT / "scripts").rglob("*.py"), *(ROOT / "tests/fuzz").glob("*.py")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources)))
    return BUILD / "fuzz" / f"{seed}-{cases}-{digest.hexdigest()[:12]}.jsonl"


def in_parts(cases: int, seed: int, notes: Path) -> Seen:
    """`fuzz` of `cases`, part by part; what `notes` has already is not done again."""
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.touch()
    whole = notes.read_text(encoding="utf-8").rpartition("\n")[0]  # less a line that was being written
    notes.write_text(whole and whole + "\n", encoding="utf-8")
    done = {part["part"]: part for part in map(json.loads, whole.splitlines())}
    total = Seen()
    for part in range(-(-cases // _PART)):
        if part not in done:
            seen = fuzz(min(_PART, cases - part * _PART), seed * 1_000_000 + part)
            done[part] = {"part": part, **vars(seen)}
            with notes.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[part]) + "\n")
        total.read.update(done[part]["read"])
        total.refused.update(done[part]["refused"])
        total.faults += done[part]["faults"]
    return total


def main(argv: list[str]) -> int:
    cases, seed = int(argv[0]), int(argv[1]) if len(argv) > 1 else 1
    begun = time.monotonic()
    seen = in_parts(cases, seed, _notes(seed, cases))
    for name in KINDS:
        print(f"{name:10} {seen.read[name]:8} read as what they say, {seen.refused[name]:8} refused")
    print(f"{cases} cases of seed {seed} in {time.monotonic() - begun:.0f} s of this run: {len(seen.faults)} faults")
    for fault in seen.faults:
        print("  " + fault)
    return 1 if seen.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
