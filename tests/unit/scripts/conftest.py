"""The limits that the invented machines of these tests were made for: another pin has others (`make rebase ... ADOPT=1`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.machine import versions

LIMITS = {"python": ("3.10", "3.14"), "torch": ("2.10", "2.11"), "hip": ("6.2", "7.0"), "cmake": ("3.26.1", "4")}


@pytest.fixture(autouse=True)
def limits(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """versions.toml with the bounds of `LIMITS`."""
    text = versions.FILE.read_text(encoding="utf-8")
    for name, (least, below) in LIMITS.items():
        head, _, rest = text.partition(f"[{name}]\n")
        rest = re.sub(r'(?m)^at_least = ".*"', f'at_least = "{least}"', rest, count=1)
        text = f"{head}[{name}]\n" + re.sub(r'(?m)^below = ".*"', f'below = "{below}"', rest, count=1)
    path: Path = tmp_path_factory.mktemp("limits") / "versions.toml"
    path.write_text(text)
    monkeypatch.setattr(versions.matrix, "__defaults__", (path,))
