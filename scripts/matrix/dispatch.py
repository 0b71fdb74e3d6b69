"""The behaviour check of the carried dispatch, release by release, in the serving interpreter."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.drift.contracts.model import Tree
from scripts.runtime.environment import runtime_python

__all__ = ["check", "interpreter", "tool_id"]

FILES = ("vllm/platforms", "vllm/envs.py", "vllm/dcu", "vllm/model_executor/layers/utils.py", "vllm/_custom_ops.py")


def interpreter() -> Path | None:
    """The serving interpreter (RUNTIME_PYTHON, else the one `make env` made), or None where there is none yet."""
    python = runtime_python()
    return python if python.is_file() else None


def tool_id() -> str:
    """Digest of the check itself: an outcome of another check is not taken over."""
    folder = Path(__file__).parents[1] / "drift" / "contracts"
    return hashlib.sha256((folder / "behave.py").read_bytes() + (folder / "probe.py").read_bytes()).hexdigest()


def check(python: Path, trees: Sequence[Tree]) -> list[str]:
    """For each tree "passed (N questions)", or "failed: which"."""
    with tempfile.TemporaryDirectory() as folder:
        roots = []
        for number, tree in enumerate(trees):
            root = Path(folder) / str(number)
            tree.write(root, *FILES)
            roots.append(str(root))
        script = Path(__file__).parents[1] / "drift" / "contracts" / "behave.py"
        env = {"HOME": folder, "PATH": os.environ.get("PATH", ""), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [str(python), "-I", str(script), *roots], capture_output=True, text=True, errors="replace", env=env, cwd=folder, check=False
        )
        said = {}
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                data = json.loads(line)
                said[data["root"]] = data
    return [_outcome(said.get(root), done.stderr) for root in roots]


def _outcome(said: dict[str, Any] | None, errors: str) -> str:
    if said is None:
        return f"failed: no answer ({(errors.strip().splitlines() or ['no message'])[-1][:120]})"
    if "error" in said:
        return f"failed: {said['error']}"
    wrong = [question for question, right in said["facts"].items() if not right]
    return f"failed: {wrong[0]}" if wrong else f"passed ({len(said['facts'])})"
