"""Mutations of JSON files: of bytes, and of what they say, also in ways that `json.dumps` cannot write (a key twice, NaN, numbers without end)."""

from __future__ import annotations

import json
from random import Random
from typing import Any

__all__ = ["Pairs", "mutated", "read_pairs", "write_pairs"]

LITERALS = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e400", "1e-400", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
    "9" * 5000, "0", "-1", "1", "1.0", "0.5", "1e3", "-0", "true", "false", "null", '""', '"x"', '" "', "[]", "{}", "[[]]", '[{"a": 1}]',
    '"' + "x" * 5000 + '"', '"two\\nlines"', '"\\u001b[31mred"', '"\\u202eback"', '"\\ud800"', '"\\u0000"', '"passed"', '"not run"', '"failed"',
    "[" * 200 + "]" * 200, '"9999-12-31T23:59:59Z"', '"1970-01-01T00:00:00Z"', '"../../etc/passwd"', '"gfx936"', '"open"', '"' + "a" * 64 + '"',
)  # fmt: skip
NAMES = ("format", "entries", "record", "measure", "why", "extra", "", "\u00e9", "a" * 5000, "__class__", "kind", "cell")


class Pairs(list[tuple[str, Any]]):
    """A JSON object as its pairs, each of them, in order."""


class Literal(str):
    """A value as its text."""

    __slots__ = ()


def read_pairs(data: bytes) -> Any:
    """JSON with every pair of every object."""
    return json.loads(data, object_pairs_hook=Pairs)


def write_pairs(value: Any) -> str:
    """The JSON text of `value`."""
    if isinstance(value, Literal):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{json.dumps(name)}: {write_pairs(item)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write_pairs, value)) + "]"
    return json.dumps(value)


def _places(value: Any, found: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
    for at, item in enumerate(value):
        found.append((value, at))
        inner = item[1] if isinstance(value, Pairs) else item
        if isinstance(inner, list):
            _places(inner, found)
    return found


def _set(holder: Any, at: int, item: Any) -> None:
    holder[at] = (holder[at][0], item) if isinstance(holder, Pairs) else item


def _change(rng: Random, places: list[tuple[Any, int]]) -> None:
    holder, at = rng.choice(places)
    if at >= len(holder):
        return
    what = rng.randrange(8)
    if what <= 2:
        _set(holder, at, Literal(rng.choice(LITERALS)))
    elif what == 3:
        del holder[at]
    elif what == 4:
        # The same key once more: with its own value, another's, or a literal.
        entry = holder[at]
        other = rng.choice([entry, *([(entry[0], Literal(rng.choice(LITERALS)))] if isinstance(holder, Pairs) else [])])
        holder.insert(rng.randrange(len(holder) + 1), other)
    elif what == 5 and isinstance(holder, Pairs):
        holder.insert(rng.randrange(len(holder) + 1), (rng.choice(NAMES), Literal(rng.choice(LITERALS))))
    elif what == 6 and isinstance(holder, Pairs):
        holder[at] = (rng.choice((*NAMES, rng.choice(holder)[0])), holder[at][1])
    else:
        holder2, at2 = rng.choice(places)
        if at2 < len(holder2):
            there = holder2[at2][1] if isinstance(holder2, Pairs) else holder2[at2]
            _set(holder, at, Literal(write_pairs(there)))


def _bytes(rng: Random, data: bytes) -> bytes:
    whole = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(whole) + 1)
        what = rng.randrange(5)
        if what == 0 and at < len(whole):
            whole[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del whole[at : at + rng.choice((1, 1, 2, 8, 100))]
        elif what == 2:
            whole[at:at] = rng.choice((b"0", b'"', b",", b"\n", b"\0", b"\xff", b"{", b"}", b"NaN", b"\xef\xbb\xbf", b"//"))
        elif what == 3:
            size = rng.choice((1, 10, 100))
            whole[at:at] = whole[at : at + size]
        else:
            del whole[at:]
    return bytes(whole)


def mutated(rng: Random, data: bytes) -> bytes:
    """`data` after one to three changes of its bytes or of what it says."""
    if rng.random() < 0.25:
        return _bytes(rng, data)
    tree = read_pairs(data)
    places = _places(tree, [])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _change(rng, places)
    return write_pairs(tree).encode("utf-8", "surrogatepass")
