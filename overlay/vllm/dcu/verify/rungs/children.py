# SPDX-License-Identifier: Apache-2.0
"""Child processes of the upper rungs: a model run in one process, and a server.  Imports no torch.

Each child sees only this climb's own evidence: what the store says about earlier climbs decides nothing in it.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm.dcu.dispatch.countfiles import merge, read_folder
from vllm.dcu.env import CAPABILITIES, EVIDENCE, SIGNATURES, STATS_DIR
from vllm.dcu.records.catalog import CATALOG
from vllm.dcu.records.record import Verdict
from vllm.dcu.records.strict import StrictError
from vllm.dcu.records.typed import read_json
from vllm.dcu.verify.rungs.stage import ModelPlan, Stage
from vllm.dcu.verify.server import Server, last_line, running

__all__ = ["CANDIDATE", "ChildError", "ModelRun", "environment", "hits_in", "model_run", "read_result", "serving"]

CANDIDATE = "candidate.json"
"""The evidence file of the climb itself, in its folder: what its children read instead of the site's."""

_MOST_BYTES = 64 << 20


class ChildError(RuntimeError):
    """A child process did not do its part. The message ends with the last line of its log."""


def environment(stage: Stage, folder: Path, on: bool, stats: Path) -> dict[str, str]:
    """The variables of a child in which every capability is on (forced, as its evidence is not finished) or off."""
    plan = stage.plan.environment if stage.plan else {}
    return {
        **os.environ,
        **plan,
        CAPABILITIES: ",".join([*(f"{subject.id}={'force' if on else 'off'}" for subject in stage.every), *_rivals(stage)]),
        EVIDENCE: str(folder / CANDIDATE),
        STATS_DIR: str(stats),
    }


def _rivals(stage: Stage) -> list[str]:
    """What the build itself may open for the same weight and N: off, so that what is verified is what runs."""
    claims = {(*subject.shape, subject.n) for subject in stage.every}
    ours = {subject.id for subject in stage.every}
    return [f"{r.id}=off" for r in CATALOG if r.verdict is Verdict.OPEN and r.id not in ours and r.key and (*r.key, r.contract.n) in claims]


def hits_in(stats: Path, ident: str) -> int:
    """Dispatches of one capability, summed over every process of a run."""
    if not stats.is_dir():
        return 0
    return sum(int(group["hits"].get(ident, 0)) for group in merge(read_folder(stats)[0]))


@dataclass(frozen=True)
class ModelRun:
    """What a model run in one process showed.

    Attributes:
        tokens: ids of the generated tokens.
        hits: dispatches of the capability while they were generated.
        kernels: how often a kernel with one of the stage's marks ran in that time, by the profiler.
        device_events: how many device kernels of any name the profiler saw; 0 means that it cannot see any.
        seconds: to load and start.
        by: those hits of every capability that was on.
    """

    tokens: tuple[int, ...]
    hits: int
    kernels: int
    device_events: int
    seconds: float
    by: Mapping[str, int] = field(default_factory=dict)

    @property
    def all_hits(self) -> int:
        """Dispatches of all of them."""
        return sum(self.by.values()) or self.hits


def model_run(stage: Stage, folder: Path, mode: str) -> tuple[ModelRun, Path]:
    """Run the user's model once in `mode` (`eager`, `compiled`, `captured`), or take over what an earlier rung of this climb ran.

    Returns what was seen and the folder with its log, signatures and trace.

    Raises:
        ChildError: the process failed.
    """
    assert stage.plan is not None
    home = folder / "runs" / mode
    result = home / "result.json"
    if not result.is_file():
        home.mkdir(parents=True, exist_ok=True)
        spec = {
            "model": stage.plan.model,
            "arguments": list(stage.plan.arguments),
            "tokens": stage.plan.tokens,
            "rows": sorted({subject.n for subject in stage.every}),
            "mode": mode,
            "capabilities": [subject.id for subject in stage.every],
            "marks": list(stage.marks),
        }
        (home / "spec.json").write_text(json.dumps(spec, indent=1), encoding="utf-8")
        env = environment(stage, folder, True, home / "stats")
        # One process, so that the profiler and the capture of signatures see the engine itself.
        env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        if mode == "eager":
            env |= {SIGNATURES: str(home / "signatures")}
        argv = [stage.python, "-m", "vllm.dcu.verify.rungs.modelrun", str(home / "spec.json"), str(result)]
        with (home / "log.txt").open("wb") as log:
            done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False)
        if done.returncode or not result.is_file():
            raise ChildError(f"the {mode} run of the model ended with {done.returncode}: {last_line(home / 'log.txt')}")
    run: ModelRun = read_result(ModelRun, result)
    return replace(run, hits=run.by.get(stage.subject.id, run.hits)), home


def read_result(kind: Any, path: Path) -> Any:
    """The `kind` that a child wrote to a JSON file.

    Raises:
        ChildError: it is not one.
    """
    try:
        return read_json(kind, path, _MOST_BYTES, any_text=True)
    except (FileNotFoundError, StrictError) as error:
        raise ChildError(f"what a child process wrote cannot be used: {error}") from error


def serving(stage: Stage, plan: ModelPlan, folder: Path, log: Path, on: bool, stats: Path) -> AbstractContextManager[Server]:
    """A healthy `vllm serve` with the user's model and arguments; nothing of it is left when the block ends.

    Raises:
        ServerError: it ended, or was not healthy in time.
    """
    argv = [stage.python, "-m", "vllm.entrypoints.cli.main", "serve", plan.model, *plan.arguments]
    return running(argv, log, environment(stage, folder, on, stats))
