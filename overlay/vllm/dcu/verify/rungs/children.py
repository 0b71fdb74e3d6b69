# SPDX-License-Identifier: Apache-2.0
"""Child processes of the upper rungs: a model run in one process, and a server.  Imports no torch.

Each child sees only this climb's own evidence: what the store says about earlier climbs decides nothing in it.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.dcu.dispatch.countfiles import merge, read_folder
from vllm.dcu.env import CAPABILITIES, EVIDENCE, SIGNATURES, STATS_DIR
from vllm.dcu.verify.rungs.stage import ModelPlan, Stage

__all__ = ["CANDIDATE", "ChildError", "ModelRun", "Server", "environment", "hits_in", "model_run", "serving"]

CANDIDATE = "candidate.json"
"""The evidence file of the climb itself, in its folder: what its children read instead of the site's."""

_START_SECONDS = 1800.0
_STOP_SECONDS = 120.0


class ChildError(RuntimeError):
    """A child process did not do its part. The message ends with the last line of its log."""


def environment(stage: Stage, folder: Path, on: bool, stats: Path) -> dict[str, str]:
    """The variables of a child in which the capability is on (forced, as its evidence is not finished) or off."""
    plan = stage.plan.environment if stage.plan else {}
    return {
        **os.environ,
        **plan,
        CAPABILITIES: f"{stage.subject.id}={'force' if on else 'off'}",
        EVIDENCE: str(folder / CANDIDATE),
        STATS_DIR: str(stats),
    }


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
    """

    tokens: tuple[int, ...]
    hits: int
    kernels: int
    device_events: int
    seconds: float


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
            "mode": mode,
            "capability": stage.subject.id,
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
            raise ChildError(f"the {mode} run of the model ended with {done.returncode}: {_last_line(home / 'log.txt')}")
    data = json.loads(result.read_text(encoding="utf-8"))
    return ModelRun(tuple(data["tokens"]), data["hits"], data["kernels"], data["device_events"], data["seconds"]), home


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return f"{(errors or lines or ['it wrote nothing'])[-1]} (see {log})"


@dataclass(frozen=True)
class Server:
    """A healthy server: its port on 127.0.0.1, its process (the leader of its group), and how long its cold start took."""

    port: int
    process: "subprocess.Popen[bytes]"
    start_seconds: float
    log: Path

    def request(self, path: str, body: Mapping[str, Any] | None = None, seconds: float = 600.0) -> tuple[int, bytes]:
        """One HTTP exchange: GET, or POST where there is a body. Returns status and content."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def complete(self, model: str, tokens: int) -> Mapping[str, Any]:
        """A greedy completion of exactly `tokens` tokens.

        Raises:
            ChildError: the server answers with another status than 200.
        """
        body = {"model": model, "prompt": "The first service of this device", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        status, content = self.request("/v1/completions", body)
        if status != 200:
            raise ChildError(f"a short request was answered with {status}: {content[:200].decode(errors='replace')} (see {self.log})")
        answer: dict[str, Any] = json.loads(content)
        return answer

    def stop(self) -> int:
        """End it as an operator does and return its exit code.

        Raises:
            ChildError: it does not end.
        """
        self.process.terminate()
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise ChildError(f"the server did not end within {_STOP_SECONDS:.0f} s of SIGTERM (see {self.log})") from None


@contextlib.contextmanager
def serving(stage: Stage, plan: ModelPlan, folder: Path, log: Path, on: bool, stats: Path) -> Iterator[Server]:
    """A healthy `vllm serve` with the user's model and arguments; nothing of it is left when the block ends.

    Raises:
        ChildError: it ended, or was not healthy in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    argv = [stage.python, "-m", "vllm.entrypoints.cli.main", "serve", plan.model, *plan.arguments]
    argv += ["--host", "127.0.0.1", "--port", str(port)]
    begun = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            env=environment(stage, folder, on, stats),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_healthy(Server(port, process, 0.0, log), begun)
        yield Server(port, process, round(time.monotonic() - begun, 1), log)
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_healthy(server: Server, begun: float) -> None:
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if server.request("/health", seconds=5.0)[0] == 200:
                return
        if server.process.poll() is not None:
            raise ChildError(f"the server ended with {server.process.returncode}: {_last_line(server.log)}")
        if time.monotonic() - begun > _START_SECONDS:
            raise ChildError(f"the server was not healthy within {_START_SECONDS:.0f} s: {_last_line(server.log)}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(0.3)
