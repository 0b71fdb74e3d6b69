# SPDX-License-Identifier: Apache-2.0
"""The child processes of `profile`: bounded, in a process group of their own, gone afterwards whatever happens.  Imports no torch."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Measure, write_whole
from vllm.dcu.profile.report import Linear, ProfileError
from vllm.dcu.records.strict import StrictError
from vllm.dcu.records.typed import Between, dump, read_json
from vllm.dcu.verify.server import last_line

__all__ = ["Phase", "Ran", "Spec", "run"]

_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Spec:
    """What a child runs: decode phases of so many rows each and a prefill; `context` tokens stand before the decoded ones."""

    model: str
    arguments: tuple[str, ...]
    mode: Literal["served", "eager"]
    rows: tuple[int, ...]
    steps: int
    context: int
    prefill: int

    @property
    def tokens(self) -> int:
        """That a sequence must be able to decode: warm-up, one profiled, and three times the steps."""
        return 3 * self.steps + 8


@dataclass(frozen=True)
class Phase:
    """One phase: microseconds of each step without the profiler, and the trace (a file name) of as many under it."""

    phase: Literal["decode", "prefill"]
    rows: int
    us: tuple[Annotated[float, Between(0, 1e12)], ...]
    trace: str


@dataclass(frozen=True)
class Ran:
    """What a child saw. `kv`: bytes of a token in the KV cache. `choices`: of the gate's rules, for every Linear of the traces."""

    binding: Binding
    eager: bool
    captured: bool
    kv: float
    read: Measure
    phases: tuple[Phase, ...]
    choices: tuple[Linear, ...]


def run(spec: Spec, folder: Path, seconds: float) -> Ran:
    """Run `spec` in a child; `folder` then holds its log, its result and its traces.

    Raises:
        ProfileError: it failed, or was not done after `seconds`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked, result, log = folder / "spec.json", folder / "result.json", folder / "log.txt"
    write_whole(asked, json.dumps(dump(spec), indent=1) + "\n")
    # One process, so that the profiler sees the engine itself; and vLLM's own names for the parts of a step.
    env = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CUSTOM_SCOPES_FOR_PROFILING": "1"}
    argv = [sys.executable, "-m", "vllm.dcu.profile.child", str(asked), str(result)]
    with log.open("wb") as out:
        child = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ProfileError(f"the {spec.mode} run was not done after {seconds:.0f} s (--timeout): {last_line(log)}") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if code:
        raise ProfileError(f"the {spec.mode} run of the model ended with {code}: {last_line(log)}")
    try:
        found: Ran = read_json(Ran, result, _MOST_BYTES)
    except (FileNotFoundError, StrictError) as error:
        raise ProfileError(f"the {spec.mode} run left no result ({error}): {last_line(log)}") from None
    return found
