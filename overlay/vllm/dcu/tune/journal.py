# SPDX-License-Identifier: Apache-2.0
"""What was measured, kept beside the evidence: a killed run loses nothing that was finished, and a second one measures only what lapsed.

`tuned.json` is `{"format": 1, "entries": [{"binding", "found"}]}`. It opens nothing: it only saves measuring again on the very same binding.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from vllm.dcu.evidence.binding import Binding, differences
from vllm.dcu.evidence.ladder import LadderError, write_whole
from vllm.dcu.records.strict import StrictError
from vllm.dcu.records.typed import Most, dump, read_json
from vllm.dcu.tune.found import Found
from vllm.dcu.tune.plan import Item

__all__ = ["Journal", "Kept", "read_journal"]

_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Kept:
    """One item as it was measured on `binding`."""

    binding: Binding
    found: Found


@dataclass(frozen=True)
class _File:
    format: Literal[1]
    entries: Annotated[tuple[Kept, ...], Most(4096)]


def _key(item: Item) -> tuple[str, int, int, int]:
    return item.dtype, item.m, item.k, item.n


class Journal:
    """The items that were measured, in the file at `path`."""

    def __init__(self, path: Path, entries: Sequence[Kept]) -> None:
        self._path, self._entries = path, list(entries)

    def known(self, item: Item, binding: Binding) -> Found | None:
        """What was measured of `item` on exactly this binding."""
        kept = next((e for e in self._entries if _key(e.found.item) == _key(item) and not differences(e.binding, binding)), None)
        return replace(kept.found, item=item) if kept else None

    def add(self, found: Found, binding: Binding) -> None:
        """Keep it, in the place of what was measured of the same item on any binding.

        Raises:
            OSError: the file cannot be written.
        """
        self._entries = [e for e in self._entries if _key(e.found.item) != _key(found.item)] + [Kept(binding, found)]
        write_whole(self._path, json.dumps({"format": 1, "entries": [dump(e) for e in self._entries]}, indent=1) + "\n")


def read_journal(path: Path) -> Journal:
    """The journal in a file; an empty one where there is none.

    Raises:
        LadderError: the file is damaged.
    """
    try:
        return Journal(path, read_json(_File, path, _MOST_BYTES).entries)
    except FileNotFoundError:
        return Journal(path, ())
    except StrictError as error:
        raise LadderError(f"{error}: remove the file, and what it holds is measured again") from None
