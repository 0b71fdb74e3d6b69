"""One three-way merge for refresh and rebase: a file that moved is followed by both."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.common.git import Repo, new_repository
from scripts.common.paths import ROOT
from scripts.rebase import threeway
from scripts.series import refresh

TEXT = "".join(f"line {n}\n" for n in range(40))


def commit(repo: Repo, parent: str | None, **files: str) -> str:
    for path in repo.work_tree.glob("*.py"):
        path.unlink()
    for name, text in files.items():
        (repo.work_tree / f"{name}.py").write_text(text)
    repo.out("add", "-A", "-f", ".")
    return repo.commit_tree(repo.out("write-tree"), parent, "m\n")


@pytest.mark.parametrize("carry", [refresh._carry, lambda *a: threeway.carry(*a).tree], ids=["refresh", "rebase"])
def test_a_moved_file_is_followed(tmp_path: Path, carry) -> None:  # type: ignore[no-untyped-def]
    repo = new_repository(tmp_path)
    base = commit(repo, None, a=TEXT)
    change = commit(repo, base, a=TEXT.replace("line 20\n", "ours\n"))
    moved = commit(repo, None, b=TEXT.replace("line 2\n", "theirs\n"))
    tree = carry(repo, change, base, moved)
    text = repo.out("cat-file", "blob", f"{tree}:b.py") + "\n"
    assert text == TEXT.replace("line 20\n", "ours\n").replace("line 2\n", "theirs\n")


def test_there_is_no_second_one() -> None:
    assert [p.name for p in (ROOT / "scripts").rglob("*.py") if '"--write-tree"' in p.read_text()] == ["merge.py"]
