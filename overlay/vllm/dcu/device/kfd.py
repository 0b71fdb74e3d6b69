# SPDX-License-Identifier: Apache-2.0
"""DCU devices as the kernel's KFD topology in sysfs shows them.  Standard library only.

Reading these text files opens no device and initialises no runtime, so that a process can learn its
arch before `CUDA_VISIBLE_DEVICES` is settled. Layout (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c):
`nodes/<n>/properties` holds `<name> <decimal>` lines; a CPU node has `gfx_target_version 0`;
`nodes/<n>/io_links/<m>/properties` holds one link to another node.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HYGON_VENDOR_ID", "ROOTS", "TEST_ROOT_ENV", "Link", "Node", "dcu_arch", "gpu_nodes", "links", "several_kinds", "visible"]

HYGON_VENDOR_ID = 0x1D94
"""PCI vendor of Hygon. AMD's 0x1002 is not asked for anywhere: a DCU does not have it."""

ROOTS = (Path("/sys/class/kfd/kfd/topology"), Path("/sys/devices/virtual/kfd/kfd/topology"))

TEST_ROOT_ENV = "VLLM_DCU_TEST_KFD_ROOT"
"""For tests only: a folder that stands for the topology folder of the kernel."""

_XGMI = 11
"""`CRAT_IOLINK_TYPE_XGMI`: device-to-device link that is not PCIe."""

_ARCH_OF_VERSION = {90306: "gfx936"}
"""`gfx_target_version` is major * 10000 + minor * 100 + stepping."""


@dataclass(frozen=True)
class Node:
    """One GPU node: its topology number, PCI vendor and device, `gfx_target_version`, and the number that its UUID is made of."""

    number: int
    vendor_id: int
    device_id: int
    gfx_target_version: int
    unique_id: int = 0

    @property
    def dcu_arch(self) -> str | None:
        """The DCU arch of this node, None for every other device."""
        if self.vendor_id != HYGON_VENDOR_ID:
            return None
        return _ARCH_OF_VERSION.get(self.gfx_target_version)

    @property
    def arch(self) -> str:
        """The arch of this node, whatever it is, as the compiler names it."""
        version = self.gfx_target_version
        return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"

    @property
    def uuid(self) -> str:
        """What the runtime's lists of visible devices may call it; empty where the device has none."""
        return f"gpu-{self.unique_id:016x}" if 0 < self.unique_id < 2**64 - 1 else ""


@dataclass(frozen=True)
class Link:
    """One direct link between two nodes."""

    source: int
    target: int
    kind: int

    @property
    def is_xgmi(self) -> bool:
        return self.kind == _XGMI


def _root(root: Path | None, environ: Mapping[str, str]) -> Path | None:
    if root is not None:
        return root
    if environ.get(TEST_ROOT_ENV):
        return Path(environ[TEST_ROOT_ENV])
    return next((path for path in ROOTS if path.is_dir()), None)


def _properties(path: Path) -> dict[str, int]:
    """The numbers of one `properties` file; empty where this process may not read it.

    The kernel answers EPERM for devices that the container's cgroup withholds.
    """
    try:
        text = path.read_text(encoding="ascii", errors="replace") if path.is_file() else ""
    except OSError:
        return {}
    fields = (line.split() for line in text.splitlines())
    return {f[0]: int(f[1]) for f in fields if len(f) == 2 and _is_number(f[1])}


def _is_number(text: str) -> bool:
    return len(text) <= 20 and text.isascii() and text.isdigit()


def _numbered(folder: Path) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if path.name.isascii() and path.name.isdigit()]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name))


def gpu_nodes(root: Path | None = None, environ: Mapping[str, str] = os.environ) -> tuple[Node, ...]:
    """Every GPU node that this process may read, in topology order (that of the HIP runtime)."""
    top = _root(root, environ)
    if top is None:
        return ()
    nodes = []
    for folder in _numbered(top / "nodes"):
        fields = _properties(folder / "properties")
        if fields.get("gfx_target_version"):
            vendor, device = fields.get("vendor_id", 0), fields.get("device_id", 0)
            nodes.append(Node(int(folder.name), vendor, device, fields["gfx_target_version"], fields.get("unique_id", 0)))
    return tuple(nodes)


def dcu_arch(root: Path | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The arch of the DCU that this process sees first; None where that is another device, or sysfs cannot tell.

    Where every GPU node has the same arch nothing needs to be known about which of them is visible.
    """
    nodes = gpu_nodes(root, environ)
    archs = {node.dcu_arch for node in nodes}
    if len(archs) <= 1:
        return archs.pop() if archs else None
    left = visible(nodes, environ)
    return left[0].dcu_arch if left else None


def several_kinds(nodes: tuple[Node, ...]) -> bool:
    """Whether there is a DCU beside devices of another arch: then the visible device decides, and not the first one of a list."""
    return len({node.arch for node in nodes}) > 1 and any(node.vendor_id == HYGON_VENDOR_ID for node in nodes)


def links(number: int, root: Path | None = None, environ: Mapping[str, str] = os.environ) -> tuple[Link, ...]:
    """Direct links of node `number`, those that the kernel lists as peer-to-peer included."""
    top = _root(root, environ)
    if top is None:
        return ()
    found = []
    for kind in ("io_links", "p2p_links"):
        for folder in _numbered(top / "nodes" / str(number) / kind):
            fields = _properties(folder / "properties")
            if {"node_from", "node_to", "type"} <= fields.keys():
                found.append(Link(fields["node_from"], fields["node_to"], fields["type"]))
    return tuple(found)


def visible(nodes: tuple[Node, ...], environ: Mapping[str, str] = os.environ) -> tuple[Node, ...] | None:
    """The nodes that this process sees, in its order, or None where sysfs cannot tell (the runtime has to be asked then).

    ROCR_VISIBLE_DEVICES filters first; HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES where that is not set, then counts in what is left.
    A device is named by its index or by (the beginning of) its UUID. An empty value means unset. As in the runtime, a list
    ends at the first index that is not there.
    """
    if environ.get("GPU_DEVICE_ORDINAL"):
        return None  # whether the runtime obeys it depends on its release
    left: tuple[Node, ...] | None = nodes
    for wanted in (environ.get("ROCR_VISIBLE_DEVICES"), environ.get("HIP_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES")):
        if wanted and left is not None:
            left = _chosen(left, wanted)
    return left


def _chosen(nodes: tuple[Node, ...], wanted: str) -> tuple[Node, ...] | None:
    kept: list[Node] = []
    for token in (word.strip() for word in wanted.split(",")):
        if token.lower().startswith("gpu-"):
            named = [node for node in nodes if node.uuid.startswith(token.lower())]
            if len(named) != 1:
                return None
            kept += named
            continue
        index = token.removeprefix("-")
        if not _is_number(index):
            return None
        if token.startswith("-") or int(index) >= len(nodes):
            break
        kept.append(nodes[int(index)])
    return tuple(kept)
