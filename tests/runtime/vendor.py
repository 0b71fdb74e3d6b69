"""What the tests about the vendor's plugin share: its stand-in, and an installed vLLM that may be rewritten."""

from __future__ import annotations

from pathlib import Path

from scripts.rehearsal.scenarios import VENDOR

__all__ = ["LINEAR", "ROCM", "UTILS", "VENDOR", "edit", "said"]

ROCM, UTILS, LINEAR = "platforms/rocm.py", "model_executor/layers/utils.py", "model_executor/layers/linear.py"


def edit(tree: Path, name: str, old: str, new: str, mark: str = "") -> None:
    path = tree / "vllm" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new) + (f"\n# {mark}\n" if mark else ""))


def said(log: str, phrase: str = "every capability is shut") -> list[str]:
    return [line for line in log.splitlines() if phrase in line]
