# SPDX-License-Identifier: Apache-2.0
"""Records as plain data (JSON), for records that do not come from this source tree.  Standard library only.

Reading is strict: a missing field, an unknown field or a value of another type is refused with the field's name.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from vllm.dcu.records.record import Record, RecordError

__all__ = ["dump_record", "load_record"]


def dump_record(record: Record) -> dict[str, Any]:
    """`record` as nested dicts and lists that `json` can write and `load_record` can read."""
    return typing.cast("dict[str, Any]", _dump(record))


def load_record(data: Mapping[str, Any]) -> Record:
    """The record that `data` describes.

    Raises:
        RecordError: a field is missing, unknown, of the wrong type, or wrong in meaning.
    """
    ident = data.get("id") if isinstance(data, Mapping) else None
    return typing.cast(Record, _load(Record, data, str(ident), ""))


def _dump(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _dump(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_dump(item) for item in value]
    return value


def _load(kind: Any, value: Any, record: str, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _load_dataclass(kind, value, record, path)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _load(next(a for a in args if a is not type(None)), value, record, path)
    if origin is tuple and isinstance(value, list):
        return tuple(_load(args[0], item, record, path) for item in value)
    if origin is Mapping and isinstance(value, Mapping):
        return {_load(args[0], k, record, path): _load(args[1], v, record, path) for k, v in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise RecordError(record, path, f"{value!r} is not one of {', '.join(m.value for m in kind)}") from None
    # bool is an int to isinstance, and 1.0 is not 1 here.
    if type(value) is kind:
        return value
    raise RecordError(record, path or "record", f"is a {type(value).__name__}, which is not what belongs here")


def _load_dataclass(kind: Any, value: Any, record: str, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise RecordError(record, path or "record", f"is a {type(value).__name__}, not an object")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    dot = f"{path}." if path else ""
    for name in value:
        if name not in fields:
            raise RecordError(record, f"{dot}{name}", "is not a field of a record")
    for name, f in fields.items():
        if name not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise RecordError(record, f"{dot}{name}", "is missing")
    return kind(**{name: _load(hints[name], item, record, dot + name) for name, item in value.items()})
