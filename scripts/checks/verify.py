"""verify: the evidence ladder on this machine; writes evidence.

`make verify ARGS="--model /models/Qwen3.5-27B -- --max-model-len 32768"`. The ladder itself is in the wheel: `python -m vllm.dcu verify --help`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.run import echoed
from scripts.machine.interpreter import hip_torch, python_in_use
from scripts.serving.ready import ready_python

__all__ = ["interpreter", "main", "outcome"]


def interpreter() -> Path:
    """The Python whose vLLM is verified: the one in use where it has a HIP torch, else the serving environment's."""
    python = python_in_use()
    return Path(python) if hip_torch(python) else ready_python()


def outcome(code: int) -> int:
    """0, or the fatal error of these tools that the ladder's exit code stands for.

    Raises:
        errors.CheckFailed, errors.NotRun, errors.UserError
    """
    if code == 0:
        return 0
    if code == 3:
        raise errors.CheckFailed("a rung failed", "it is named above", "read report.md in the climb's folder")
    if code == 4:
        raise errors.NotRun(
            "a rung could not run here", "it is named above with the reason", "give what it needs, then --resume --folder FOLDER"
        )
    if code == 5:
        raise errors.CheckFailed(
            "this climb is worse than its baseline", "the differences are listed above", "read report.md in the climb's folder"
        )
    raise errors.UserError(f"the ladder ended with {code}", "its own sentence stands above", "see `python -m vllm.dcu verify --help`")


def main(argv: Sequence[str]) -> int:
    """Command line of `verify`: every argument goes to the ladder."""
    return outcome(echoed([interpreter(), "-m", "vllm.dcu", "verify", *argv]))
