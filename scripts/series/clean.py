"""clean: delete build/ and dist/ (refuses while build/vllm holds edits); --all also the downloads."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from scripts.common import errors
from scripts.common.files import remove_tree
from scripts.common.git import open_repo
from scripts.common.paths import BUILD, DIST, TREE, cache_dir, shown
from scripts.series.worktree import edits, read_state

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Command line of `clean`."""
    parser = argparse.ArgumentParser(prog="clean", description=__doc__)
    parser.add_argument("--all", action="store_true", help="the download cache too")
    parser.add_argument("--drop-edits", action="store_true", help="even if build/vllm holds edits")
    args = parser.parse_args(argv)
    try:
        state = read_state()
    except errors.DirtyTree:
        state = None  # the message of read_state sends people here
    if state and not args.drop_edits and edits(open_repo(TREE), state):
        raise errors.DirtyTree(
            f"{shown(TREE)} holds edits",
            "they are nowhere else",
            "`make refresh` keeps them, `make clean DROP_EDITS=1` drops them",
        )
    for path in (BUILD, DIST, *([cache_dir()] if args.all else [])):
        if path.exists():
            remove_tree(path)
            print(f"deleted {shown(path)}")
    return 0
