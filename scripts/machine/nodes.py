"""What a process needs to use a DCU, beside seeing it in sysfs: device nodes it may open, and the host's hyhal. Bare Python."""

from __future__ import annotations

import grp
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CONTAINER", "TEST_ROOT_ENV", "Trouble", "present", "system", "troubles"]

TEST_ROOT_ENV = "GFX936_TEST_ROOT"
"""For tests only: a folder that stands for / where /opt/dtk, /opt/hyhal and /dev are looked for."""

CONTAINER = "--device=/dev/kfd --device=/dev/mkfd --device=/dev/dri -v /opt/hyhal:/opt/hyhal:ro --group-add video"
"""What a container for a DCU is started with."""

_HYGON = 0x1D94
_CARDS = (0x0B40, 0x1200, 0x0380, 0x0302)  # processing accelerators and displays of several kinds
_NODES = ("/dev/kfd", "/dev/mkfd", "/dev/dri")
_FLAG = {**{node: f"--device={node}" for node in _NODES}, "/opt/hyhal": "-v /opt/hyhal:/opt/hyhal:ro"}


@dataclass(frozen=True)
class Trouble:
    """One thing that is not usable: what is wrong with it, and the step that makes it usable."""

    what: str
    do: str


def system(path: Path | str, environ: Mapping[str, str]) -> Path:
    """An absolute path of this machine; below TEST_ROOT_ENV in a test."""
    root = environ.get(TEST_ROOT_ENV)
    return Path(root) / str(path).lstrip("/") if root else Path(path)


def present(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What of a DCU is here besides KFD: its driver's own node (an AMD GPU has /dev/kfd too, and no /dev/mkfd), and the card on the PCI
    bus, which is to be seen in a container without devices and before a driver is loaded."""
    cards = [folder for folder in system("/sys/bus/pci/devices", environ).glob("*") if _is_card(folder)]
    node = ["/dev/mkfd"] if system("/dev/mkfd", environ).exists() else []
    return (*node, *([f"{len(cards)} DCU(s) on the PCI bus"] if cards else []))


def _is_card(folder: Path) -> bool:
    """Hygon's vendor number stands on the bridges of its processors too: the class tells the cards."""
    try:
        vendor, kind = (int((folder / name).read_text(encoding="ascii"), 16) for name in ("vendor", "class"))
    except (OSError, ValueError):
        return False
    return vendor == _HYGON and kind >> 8 in _CARDS


def troubles(environ: Mapping[str, str], prefix: Path | None = None) -> tuple[Trouble, ...]:
    """What keeps this process from using a DCU that sysfs shows, in the order in which a start would meet it.

    Args:
        environ: the environment; TEST_ROOT_ENV is looked up there.
        prefix: the DTK, which may bring a hyhal of its own.
    """
    found = []
    for name in _NODES:
        node = system(name, environ)
        if name == "/dev/dri":
            render = sorted(node.glob("renderD*"))
            if not render:
                found.append(Trouble(f"no {name}/renderD*", _mount(name)))
            else:
                found += [_closed(f"{name}/{path.name}", path) for path in render if not _opens(path)][:1]
        elif not node.exists():
            found.append(Trouble(f"no {name}", _mount(name)))
        elif not _opens(node):
            found.append(_closed(name, node))
    own = prefix / ".hyhal" if prefix else None
    if not system("/opt/hyhal", environ).is_dir() and not (own is not None and own.is_dir()):
        found.append(Trouble("no /opt/hyhal (the host's HSA runtime and management tools)", _mount("/opt/hyhal")))
    return tuple(found)


def _mount(name: str) -> str:
    return f"in a container: docker run {_FLAG[name]} ...; on the host: load the DCU's driver"


def _opens(node: Path) -> bool:
    return os.access(node, os.R_OK | os.W_OK)


def _closed(name: str, node: Path) -> Trouble:
    status = node.stat()
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    if status.st_mode & 0o060 == 0o060 and status.st_gid not in (os.getegid(), *os.getgroups()):
        return Trouble(
            f"{name} may not be opened: it is for group {group}",
            f'sudo usermod -aG {group} "$USER" and log in again; in a container: docker run --group-add {status.st_gid} {_FLAG.get(name, "")} ...',
        )
    return Trouble(f"{name} may not be opened (mode {status.st_mode & 0o777:o}, group {group})",
                   f"in a container: docker run {_FLAG.get(name, '--device=/dev/dri')} --group-add {status.st_gid} ...; on the host: sudo chmod g+rw {name}")  # fmt: skip
