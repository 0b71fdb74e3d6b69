# SPDX-License-Identifier: Apache-2.0
"""Typed objects of plain data from outside, and back: exactly the fields of a dataclass, each of exactly its type.  Standard library only."""

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from vllm.dcu.records.strict import StrictError, below, parse_json, read_bytes, wrong

__all__ = ["OPTIONAL", "Between", "Most", "Words", "dump", "load", "read_json", "take"]


@dataclass(frozen=True)
class Words:
    """A rule for a text (`Annotated[str, Words(...)]`): what it must match as a whole, and how to say that."""

    pattern: str
    wanted: str

    def broken(self, value: Any) -> str:
        """What is wanted, where `value` is not it."""
        return "" if re.fullmatch(self.pattern, value) else self.wanted


@dataclass(frozen=True)
class Between:
    """A rule for a number: the bounds, both included."""

    low: float
    high: float

    def broken(self, value: Any) -> str:
        """What is wanted, where `value` is not it."""
        return "" if self.low <= value <= self.high else f"between {self.low} and {self.high}"


@dataclass(frozen=True)
class Most:
    """A rule for a text, a list or an object: how many characters or entries it may have."""

    most: int

    def broken(self, value: Any) -> str:
        """What is wanted, where `value` is not it."""
        return "" if len(value) <= self.most else f"at most {self.most} long"


def load(kind: Any, value: Any, field: str = "") -> Any:
    """The `kind` that plain data describes.

    `kind` is a dataclass or one of bool, int, float, str, an enum, a `Literal`, `tuple[X, ...]`, `Mapping[str, X]`, a union of those, each
    with rules in `Annotated`; or `Any`, where any plain data will do. A whole number will do for a float; otherwise types are exact (a bool is no int).

    Raises:
        StrictError: a field is missing, unknown, of another type, breaks a rule, or the dataclass itself refuses it.
    """
    return _loader(kind)(value, field)


OPTIONAL = "may be left out"
"""Metadata of a dataclass field that a file need not have. All others must be there: a default is for code, not for a file."""

Loader = Callable[[Any, str], Any]


@functools.cache
def _loader(kind: Any) -> Loader:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value, field: value
    if dataclasses.is_dataclass(kind):
        return functools.partial(_load_dataclass, kind)
    if origin is typing.Annotated:
        return functools.partial(_load_ruled, _loader(args[0]), args[1:])
    if origin in (types.UnionType, typing.Union):
        return functools.partial(_load_union, args)
    if origin is typing.Literal:
        return functools.partial(_load_one_of, {a: a for a in args})
    if origin is tuple:
        return functools.partial(_load_list, _loader(args[0]))
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_load_mapping, _loader(args[0]), _loader(args[1]))
    if issubclass(kind, Enum):
        return functools.partial(_load_one_of, {member.value: member for member in kind})
    return functools.partial(_load_scalar, kind)


_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


def _load_scalar(kind: type, value: Any, field: str) -> Any:
    if type(value) is kind:
        return value
    if kind is float and type(value) is int and float(value) == value:
        return float(value)
    raise wrong(field, value, _NAMES[kind])


def _load_one_of(known: Mapping[Any, Any], value: Any, field: str) -> Any:
    for one, meant in known.items():
        if type(one) is type(value) and one == value:
            return meant
    raise wrong(field, value, f"one of {', '.join(map(repr, known))}")


def _load_ruled(loader: Loader, rules: tuple[Words | Between | Most, ...], value: Any, field: str) -> Any:
    found = loader(value, field)
    for rule in rules:
        if wanted := rule.broken(found):
            raise wrong(field, value, wanted)
    return found


def _load_union(kinds: tuple[Any, ...], value: Any, field: str) -> Any:
    # By the form of the value, so that the error is about the member that was meant.
    for kind in kinds:
        base = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
        objects = dataclasses.is_dataclass(base) or typing.get_origin(base) is not None
        if isinstance(value, (Mapping, list)) if objects else type(value) is base:
            return _loader(kind)(value, field)
    names = [_NAMES.get(kind, "an object") for kind in kinds]
    raise wrong(field, value, " or ".join(names))


def _load_list(loader: Loader, value: Any, field: str) -> Any:
    if not isinstance(value, list):
        raise wrong(field, value, "a list")
    return tuple([loader(item, f"{field}[{i}]") for i, item in enumerate(value)])


def _load_mapping(key: Loader, loader: Loader, value: Any, field: str) -> Any:
    if not isinstance(value, Mapping):
        raise wrong(field, value, "an object")
    return {key(name, field): loader(item, below(field, name)) for name, item in value.items()}


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Loader, bool]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: (_loader(hints[f.name]), not f.metadata.get(OPTIONAL)) for f in dataclasses.fields(kind)}


def _load_dataclass(kind: Any, value: Any, field: str) -> Any:
    if not isinstance(value, Mapping):
        raise wrong(field, value, "an object")
    fields = _fields(kind)
    for name in value:
        if name not in fields:
            raise StrictError(below(field, name), f"is no field here; there are {', '.join(fields)}")
    found = {name: fields[name][0](item, below(field, name)) for name, item in value.items()}
    for name, (_, required) in fields.items():
        if required and name not in found:
            raise StrictError(below(field, name), "is missing")
    try:
        return kind(**found)
    except StrictError as error:
        raise StrictError(below(field, error.field) if error.field else field, error.why) from None
    except ValueError as error:
        raise StrictError(field, str(error)) from None


def take(kind: Any, data: Any, name: str) -> Any:
    """The field `name` of an object, as a `kind`, taken out of it: what is left may be another dataclass's.

    Raises:
        StrictError: `data` is no object, or the field is missing or wrong.
    """
    if not isinstance(data, dict):
        raise wrong("", data, "an object")
    if name not in data:
        raise StrictError(name, "is missing")
    return load(kind, data.pop(name), name)


def dump(value: Any) -> Any:
    """`value` (dataclasses, enums, tuples, mappings of plain data) as the plain data that `load` reads back."""
    if dataclasses.is_dataclass(value):
        return {f.name: dump(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: dump(item) for name, item in value.items()}
    return [dump(item) for item in value] if isinstance(value, (tuple, list)) else value


def read_json(kind: Any, path: Path, most: int, *, private: bool = False, any_text: bool = False) -> Any:
    """The `kind` in a JSON file: `read_bytes`, `parse_json` and `load`, with the file's name in every error.

    Raises:
        FileNotFoundError: there is nothing.
        StrictError: it must not be used.
    """
    try:
        return load(kind, parse_json(read_bytes(path, most, private=private), any_text=any_text))
    except StrictError as error:
        raise error.within(path) from error.__cause__
