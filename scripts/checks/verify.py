"""verify: the evidence ladder on this machine; writes evidence.

`make verify ARGS="--model /models/Qwen3.5-27B -- --max-model-len 32768"`. The ladder itself is in the wheel: `python -m vllm.dcu verify --help`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.childenv import for_python
from scripts.common.run import echoed
from scripts.machine import doctor_device, facts
from scripts.machine.interpreter import vllm_copies
from scripts.serving.ready import ready_python

__all__ = ["interpreter", "main", "outcome"]


def interpreter() -> tuple[Path, Mapping[str, str]]:
    """The Python whose vLLM is verified, and the environment to run it in: on a machine for a DCU the one in use, under the DTK's
    environment; on a machine with nothing special the serving environment's.

    Raises:
        errors.CannotBuild: this is a machine for a DCU, and the Python in use has no torch for it.
        errors.MissingInput: that Python has no vllm.
    """
    machine = facts.look()
    if facts.resolve("auto", machine) != "rocm":
        return ready_python(), os.environ
    finding = doctor_device.torch_finding(machine)
    if not machine.python.hip:
        raise errors.CannotBuild(f"torch: {finding.found}", f"this machine is for a DCU ({'; '.join(machine.signs)}): no CPU stands in for it", finding.do)  # fmt: skip
    if not vllm_copies(machine.python):
        raise errors.MissingInput(f"{machine.python.python} has no vllm", "what is verified is the installed wheel", "make build TARGET=rocm, then the lines that it prints")  # fmt: skip
    return Path(machine.python.python), for_python(machine.env)


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
    python, env = interpreter()
    return outcome(echoed([python, "-m", "vllm.dcu", "verify", *argv], base=env))
