# SPDX-License-Identifier: Apache-2.0
"""Which out-of-tree platform plugins vLLM would take, and whose a platform class is.  Standard library only."""

import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, packages_distributions
from pathlib import Path

from vllm.dcu.env import package_name

__all__ = ["Owner", "home", "in_use", "owner", "platform_plugins"]

_GROUP = "vllm.platform_plugins"


@dataclass(frozen=True)
class Owner:
    """The package that a platform class comes from: its normalised name and version (empty where no package claims it), and the class."""

    name: str
    version: str
    platform: str

    def __str__(self) -> str:
        return f"{self.platform} of {f'{self.name} {self.version}' if self.name else 'no installed package'}"


def _found() -> Iterator[EntryPoint]:
    yield from sorted(entry_points(group=_GROUP), key=lambda e: (e.name, e.value))


def platform_plugins() -> tuple[str, ...]:
    """Installed platform plugins, as `name = module:function (distribution)`."""
    return tuple(f"{e.name} = {e.value} ({e.dist.name if e.dist else 'unknown package'})" for e in _found())


def in_use() -> tuple[EntryPoint, ...]:
    """The installed ones that VLLM_PLUGINS does not leave out."""
    chosen = os.environ.get("VLLM_PLUGINS")
    return tuple(e for e in _found() if chosen is None or e.name in chosen.split(","))


def home(platform: type) -> Path | None:
    """The folder of the package that a platform class lies in; the file, where that is a lone module."""
    module = sys.modules.get(platform.__module__.split(".")[0])
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve().parent if hasattr(module, "__path__") else Path(file).resolve()


def owner(platform: type) -> Owner | None:
    """Whose a platform class is, or None where it is this package's own or upstream's (or nobody's: no plugin could have brought it)."""
    return _owner(platform.__module__, platform.__qualname__)


@functools.cache
def _owner(module: str, qualname: str) -> Owner | None:
    plugins = () if module.startswith("vllm.") else in_use()
    if not plugins:
        return None
    top = module.split(".")[0]
    dists = {e.dist.name: e.dist for e in plugins if e.dist is not None}
    named = [e.dist.name for e in plugins if e.dist is not None and re.split(r"[.:]", e.value)[0] == top]
    # The class may lie in another package than the entry point; vLLM never takes more than one plugin.
    name = next(iter([*named, *(n for n in packages_distributions().get(top, ()) if n in dists), *(dists if len(dists) == 1 else ())]), "")
    return Owner(package_name(name), dists[name].version if name else "", f"{module}.{qualname}")
