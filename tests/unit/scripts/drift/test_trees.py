"""A folder, an sdist and a commit of the same tree are read as the same text, links followed as Python follows them."""

from __future__ import annotations

import tarfile
from pathlib import Path

from scripts.drift.contracts.model import tree_from_directory, tree_from_sdist, tree_from_tar


def test_three_readers_one_answer(tmp_path: Path) -> None:
    root = tmp_path / "vllm-1.0.0"
    for path, text in {"vllm/a.py": "A\n", "vllm/sub/b.py": "B\n", "docs/x.py": "no\n", "setup.py": "S\n", "outside.py": "O\n"}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, target in {
        "vllm/c.py": "a.py",
        "vllm/d.py": "c.py",
        "vllm/far": "sub",
        "vllm/dead.py": "none.py",
        "vllm/out.py": "/etc/hosts",
    }.items():
        (root / path).symlink_to(target)
    for name, mode, inside in (("vllm-1.0.0.tar.gz", "w:gz", "vllm-1.0.0"), ("plain.tar", "w:", "")):
        with tarfile.open(tmp_path / name, mode) as tar:  # type: ignore[call-overload]
            tar.add(root, arcname=inside)
    want = {"setup.py": b"S\n", **{f"vllm/{n}": b"A\n" for n in ("a.py", "c.py", "d.py")}, "vllm/sub/b.py": b"B\n", "vllm/far/b.py": b"B\n"}
    assert tree_from_directory(root, "1.0.0").files == want
    assert tree_from_sdist(tmp_path / "vllm-1.0.0.tar.gz", "1.0.0").files == want
    assert tree_from_tar((tmp_path / "plain.tar").read_bytes(), "1.0.0", False).files == want
