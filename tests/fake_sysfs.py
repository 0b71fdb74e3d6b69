"""Folders that look like the kernel's KFD topology."""

from __future__ import annotations

from pathlib import Path

__all__ = ["AMD", "HYGON", "topology"]

HYGON, AMD = 0x1D94, 0x1002


def topology(root: Path, *gpus: tuple[int, int], links: dict[tuple[int, int], int] | None = None) -> Path:
    """A topology folder: one CPU node, then a node for each (vendor, gfx_target_version), with UUID 0xa0 + its number; `links` by numbers."""
    rows = [(0, 0, 0), *((i, *gpu) for i, gpu in enumerate(gpus, 1))]
    for number, vendor, version in rows:
        node = root / "nodes" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(
            f"cpu_cores_count {0 if version else 64}\nsimd_count {320 if version else 0}\nvendor_id {vendor}\n"
            f"device_id 25376\ngfx_target_version {version}\nunique_id {0xA0 + number}\n"
        )
        for index, ((source, target), kind) in enumerate((links or {}).items()):
            if source == number:
                link = node / "io_links" / str(index)
                link.mkdir(parents=True)
                (link / "properties").write_text(f"type {kind}\nnode_from {source}\nnode_to {target}\nweight 15\n")
    return root
