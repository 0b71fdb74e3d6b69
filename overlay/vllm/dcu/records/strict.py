# SPDX-License-Identifier: Apache-2.0
"""The one reader for whatever comes from outside: the bytes of a file, and plain data of them.  Standard library only.

Nothing is believed that was not asked for: only a regular file of a bounded size is read; a key stands once; a number is finite and
bounded; a text is one printable line. What is refused is refused by name: the file, the field, the value, and what is wanted there.
`typed.py` makes typed objects of it, and is what most callers want.
"""

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["MOST_TEXT", "StrictError", "below", "checked", "parse_json", "plain", "read_bytes", "read_head", "wrong"]

MOST_TEXT = 4096
"""Characters of one text; what a tool or a log shows of it is shorter still (`plain`)."""
_MOST_DEPTH = 32
_LARGEST = 2**63
_BEYOND_INT = 19
"""Digits of 2**63 - 1: a longer literal is refused before it costs time."""


class StrictError(ValueError):
    """What was read must not be used. `str()` is one line: the source, the field where there is one, and what is wrong there."""

    def __init__(self, field: str, why: str, source: object = "") -> None:
        where = [f"{plain(str(source))}:"] if str(source) else []
        where += [f"field {plain(field)!r}:"] if field else []
        super().__init__(" ".join([*where, plain(why, 600)]))
        self.field, self.why = field, why

    def within(self, source: object) -> "StrictError":
        """The same, about `source` (a file, as a rule)."""
        return StrictError(self.field, self.why, source)


def plain(text: str, most: int = 200) -> str:
    """`text` as one line of printable characters, at most `most` of them: what may reach a log or a terminal."""
    if len(text) <= most and text.isprintable():
        return text
    head = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text[: most + 1])
    return head if len(head) <= most else head[: most - 3] + "..."


def wrong(field: str, value: object, wanted: str) -> StrictError:
    """The error that says what `value` is and what was wanted."""
    name = type(value).__name__
    said = f"a {name} of {len(value)} entries" if isinstance(value, (Mapping, list)) else plain(repr(value), 80)
    return StrictError(field, f"{said} is not {wanted}")


def below(field: str, name: object) -> str:
    """The name of the field `name` (or of the entry of that number) of `field`."""
    if isinstance(name, int):
        return f"{field}[{name}]"
    return f"{field}.{name}" if field else str(name)


def read_bytes(path: Path, most: int, *, private: bool = False) -> bytes:
    """The content of a regular file of at most `most` bytes; it never waits, whatever stands there.

    Args:
        private: the file decides something: it must belong to this user or root, and nobody else may write it.

    Raises:
        FileNotFoundError: there is nothing.
        StrictError: it is no regular file, too large, could have been written by someone else, or (then with an OSError as its cause)
            the system does not let it be read.
    """
    data = _read(path, most, most, private)
    if len(data) > most:
        raise StrictError("", f"it holds more than {most} bytes", path)
    return data


def read_head(path: Path, size: int) -> bytes:
    """The first bytes, `size` of them and one more, of a regular file of whatever length.

    Raises:
        FileNotFoundError, StrictError: as `read_bytes`.
    """
    return _read(path, size, None, False)


def _read(path: Path, size: int, most: int | None, private: bool) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise StrictError("", f"it cannot be opened ({getattr(error, 'strerror', error)})", path) from error
    try:
        if why := _unfit(os.fstat(descriptor), most, private):
            raise StrictError("", why, path)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(size + 1)
    except OSError as error:
        raise StrictError("", f"it cannot be read ({error.strerror})", path) from error
    finally:
        os.close(descriptor)


def _unfit(found: os.stat_result, most: int | None, private: bool) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if private and found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}, not to this one or root"
    if private and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write it (chmod go-w)"
    if most is not None and found.st_size > most:
        return f"{found.st_size} bytes are more than the {most} that belong there"
    return ""


def parse_json(data: bytes, *, any_text: bool = False) -> Any:
    """The plain data of JSON bytes.

    Args:
        any_text: texts may be long and hold line ends. Nothing of them may then be shown but through `plain`.

    Raises:
        StrictError: not UTF-8 or not JSON, a key twice in an object, a number that is not finite or beyond 64 bits, a text that is not one
            printable line, or nested too deep.
    """
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_int)
    except StrictError:
        raise
    except UnicodeDecodeError as error:
        raise StrictError("", f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise StrictError("", f"it is nested deeper than {_MOST_DEPTH}") from None
    except ValueError as error:
        raise StrictError("", f"it is not JSON ({error})") from None
    return checked(value, any_text=any_text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise StrictError(twice, "stands twice in one object")
    return found


def _constant(word: str) -> float:
    raise StrictError("", f"{word} is not a finite number")


def _int(literal: str) -> int:
    if len(literal.lstrip("-")) > _BEYOND_INT:
        raise StrictError("", f"{literal[:40]} is a number beyond 64 bits")
    return int(literal)


def checked(value: Any, field: str = "", *, any_text: bool = False, depth: int = 0) -> Any:
    """`value` itself, if it is plain data as `parse_json` describes it; for data of another format (TOML).

    Raises:
        StrictError: it is not.
    """
    if isinstance(value, str):
        if not any_text and not (len(value) <= MOST_TEXT and value.isprintable()):
            raise wrong(field, value, f"one line of at most {MOST_TEXT} printable characters")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise wrong(field, value, "a finite number")
    elif isinstance(value, int):
        if not -_LARGEST <= value < _LARGEST:
            raise wrong(field, value, "a number of 64 bits")
    elif isinstance(value, (dict, list)):
        if depth >= _MOST_DEPTH:
            raise StrictError(field, f"it is nested deeper than {_MOST_DEPTH}")
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(name, str):
                checked(name, f"{field}.{plain(name, 40)}" if field else plain(name, 40), any_text=any_text)
            checked(item, below(field, name), any_text=any_text, depth=depth + 1)
    elif value is not None:
        raise wrong(field, value, "a text, a number, a truth value, a list or an object")
    return value
