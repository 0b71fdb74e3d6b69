"""Files from outside for tools, JSON and TOML, through the overlay's one strict reader (`overlay/vllm/dcu/records`). Bare Python."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from scripts.common import errors
from scripts.common.overlay import overlay_module
from scripts.common.paths import shown

__all__ = [
    "MOST_BYTES",
    "OPTIONAL",
    "Between",
    "Most",
    "StrictError",
    "Words",
    "load",
    "parse_json",
    "parse_toml",
    "plain_json",
    "read_bytes",
    "read_json",
    "read_toml",
    "take",
]

T = TypeVar("T")

_strict, _typed = overlay_module("records.strict"), overlay_module("records.typed")
StrictError: type[ValueError] = _strict.StrictError
OPTIONAL: str = _typed.OPTIONAL
Between, Most, Words = _typed.Between, _typed.Most, _typed.Words
load, read_json, take = _typed.load, _typed.read_json, _typed.take
parse_json, read_bytes = _strict.parse_json, _strict.read_bytes

MOST_BYTES = 4 << 20


def plain_json(path: Path, *, any_text: bool = False) -> Any:
    """The plain data of a JSON file.

    Raises:
        FileNotFoundError: there is none.
        StrictError: it must not be used.
    """
    return read_json(Any, path, MOST_BYTES, any_text=any_text)


_READERS = ("tomllib", "tomli", "pip._vendor.tomli", "setuptools._vendor.tomli")  # the last two: Python 3.10 without packages


def parse_toml(data: bytes, *, any_text: bool = False) -> dict[str, Any]:
    """The plain data of TOML bytes, with whatever reader this Python has. Dates and numbers that are not finite are refused.

    Raises:
        errors.MissingInput: this Python has no reader.
        StrictError: it is not TOML, or holds what plain data does not.
    """
    for name in _READERS:
        try:
            reader = importlib.import_module(name)
        except ImportError:
            continue
        try:
            found: dict[str, Any] = _strict.checked(reader.loads(data.decode("utf-8")), any_text=any_text)
            return found
        except StrictError:
            raise
        except (ValueError, RecursionError) as error:
            raise StrictError("", f"it is not TOML ({error})") from None
    raise errors.MissingInput(
        "this Python cannot read TOML",
        "Python 3.10 has no reader of its own, and neither pip nor setuptools brings one here",
        "run with Python 3.11 or newer, or one that has pip: make doctor PYTHON=python3.11",
    )


def read_toml(make: Callable[[dict[str, Any]], T], path: Path, do: str) -> T:
    """What `make` makes of a TOML file of this repository; `do` says how a person gets a right one.

    Raises:
        errors.UserError: it is missing, not TOML, or a field is missing, unknown or wrong.
        errors.MissingInput: this Python has no reader.
    """
    try:
        return make(parse_toml(_strict.read_bytes(path, MOST_BYTES)))
    except FileNotFoundError:
        raise errors.UserError(f"{shown(path)} is missing", "the tools work by it", do) from None
    except StrictError as error:
        raise errors.UserError(f"{shown(path)} cannot be used", str(error), do) from error
