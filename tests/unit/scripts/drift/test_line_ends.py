"""A tree whose line ends somebody changed is said to be that, and not a release in which every text changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.common.errors import UserError
from scripts.drift.contracts.model import tree_from_directory


@pytest.mark.parametrize("name", ["CMakeLists.txt", "csrc/rocm/skinny_gemms.cu", "vllm/platforms/rocm.py"])
def test_windows_line_ends_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"one\r\ntwo\r\n")
    with pytest.raises(UserError, match=rf"Windows line ends \(CRLF\), first seen in {name}"):
        tree_from_directory(tmp_path, "0.18.1")
    (tmp_path / name).write_bytes(b"one\ntwo\n")
    assert tree_from_directory(tmp_path, "0.18.1").text(name) == "one\ntwo\n"
