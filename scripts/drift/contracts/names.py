"""Names that we add: a release that has one of them already, as a file, an op, a variable or a function, is a collision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scripts.common.paths import OVERLAY_ROOTS, ROOT
from scripts.drift.contracts.model import BLOCK, Fact, Facts, Finding, Tree

ID = "names"
#: Places we reserve even where no file of ours stands yet.
PLACES = ("vllm/dcu/", "vllm/dcu.py", "cmake/dcu", "csrc/rocm/dcu_")
TOKENS = (b"VLLM_DCU_", b"on_gfx936", b"vllm.dcu", b"_ON_GFX936", b'Library("dcu"', b"dcu.cmake")


def our_paths(root: Path = ROOT) -> list[str]:
    """Where our overlay and native files land in the tree."""
    found = []
    for folder, target in OVERLAY_ROOTS.items():
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
                found.append("/".join(filter(None, [target, path.relative_to(root / folder).as_posix()])))
    return found


def collect(tree: Tree) -> list[Fact]:
    """Collisions found in a pristine tree; a tree with our series in it holds our names by right."""
    return [] if tree.patched else list(_collisions(tree))


def judge(base: Facts, new: Facts) -> list[Finding]:
    """Every collision blocks, known or not: our file would replace upstream's, or the other way round."""
    return [
        Finding(
            BLOCK, ID, key, fact.path, fact.line, f"upstream has {fact.value}, a name of ours: choose which one moves.", "+" + fact.region
        )
        for key, fact in sorted(new.of(ID).items())
    ]


def _collisions(tree: Tree) -> Iterator[Fact]:
    ours = set(our_paths())
    for path in sorted(tree.files):
        if path in ours or path.startswith(PLACES):
            yield Fact(ID, f"path:{path}", f"the file {path}", path, 1, path)
    for path, data in sorted(tree.files.items()):
        for token in TOKENS:
            at = data.find(token)
            if at >= 0:
                line = data.count(b"\n", 0, at) + 1
                word = token.decode()
                yield Fact(ID, f"word:{path}:{word}", f"{word} in {path}", path, line, word)
