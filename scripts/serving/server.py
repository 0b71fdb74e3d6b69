"""serve: the first service: `vllm serve` of the installed wheel with a small model made on the spot, used as a client would.

Binds 127.0.0.1 only. Everything that is started is ended, whatever happens in between.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common import errors
from scripts.common.files import new_folder, sha256_of
from scripts.common.paths import BUILD, ROOT, shown
from scripts.runtime.environment import in_use, preload
from scripts.serving.ready import ready_python
from scripts.upstream.releases import read_pin
from scripts.wheel.version import wheel_version

__all__ = ["Server", "model_folder", "server_environment", "serving"]

_NAME = "made-here"
_START_SECONDS = 420.0  # a cold start with torch.compile on a busy 2-core machine took 150
_STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        port: on 127.0.0.1.
        process: the API server; engine processes are its children, in its process group.
        log: file with everything they wrote.
        start_seconds: from the command to the first healthy answer.
    """

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    start_seconds: float

    def request(self, path: str, body: Mapping[str, Any] | None = None, seconds: float = 300.0) -> tuple[int, bytes]:
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

    def json(self, path: str, body: Mapping[str, Any] | None = None, seconds: float = 300.0) -> dict[str, Any]:
        """The JSON object that a request answers with.

        Raises:
            errors.CheckFailed: another status than 200.
        """
        status, content = self.request(path, body, seconds)
        if status != 200:
            raise errors.CheckFailed(
                f"{path} answered {status}: {content[:300].decode(errors='replace')}",
                "the server is expected to answer this",
                f"read {shown(self.log)}",
            )
        found: dict[str, Any] = json.loads(content)
        return found

    def complete(self, prompt: str | list[str], tokens: int, **more: Any) -> dict[str, Any]:
        """A greedy completion of exactly `tokens` tokens a prompt."""
        body = {"model": _NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
        return self.json("/v1/completions", body)

    def stream(self, prompt: str, tokens: int, **more: Any) -> list[dict[str, Any]]:
        """The events of a streamed completion, in order.

        Raises:
            errors.CheckFailed: another status than 200, or the stream does not end with [DONE].
        """
        body = {"model": _NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
        status, content = self.request("/v1/completions", {**body, "stream": True})
        lines = [line.removeprefix("data: ") for line in content.decode().splitlines() if line.startswith("data: ")]
        if status != 200 or not lines or lines[-1] != "[DONE]":
            raise errors.CheckFailed(
                f"the stream answered {status} and ended with {lines[-1:]}", "a whole stream ends with [DONE]",
                f"read {shown(self.log)}",
            )  # fmt: skip
        return [json.loads(line) for line in lines[:-1]]

    def children(self) -> list[int]:
        """Process ids of the server's living descendants, the engine core among them."""
        return [pid for pid, group in _process_groups() if group == self.process.pid and pid != self.process.pid]

    def stop(self) -> int:
        """SIGTERM, as an operator does; returns the exit code. The whole group is gone afterwards.

        Raises:
            errors.CheckFailed: it did not end by itself.
        """
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise errors.CheckFailed(
                f"the server did not end within {_STOP_SECONDS:.0f} s of SIGTERM", "it has to stop when it is told to",
                f"read {shown(self.log)}",
            ) from None  # fmt: skip
        finally:
            self.kill()

    def kill(self) -> None:
        """End whatever is left of the group, at once, and return when it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + 10.0
        while self.children() and time.monotonic() < deadline:
            time.sleep(0.02)  # grandchildren: nobody here can wait for them


def _process_groups() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in brackets, may hold anything; the group is the third field after it.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    yield int(entry.name), int(fields[2])


def model_folder(kind: str, python: Path) -> Path:
    """The model folder of a kind, made once (and again when the code that makes it changes)."""
    final = BUILD / "models" / f"{kind}-{sha256_of(ROOT / 'scripts' / 'serving' / 'toy_models.py')[:12]}"
    if not final.is_dir():
        with new_folder(final) as work:
            done = subprocess.run(
                [str(python), "-m", "scripts.serving.toy_models", kind, str(work)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise errors.MissingInput(
                    f"the model {kind} could not be made: {done.stderr.strip().splitlines()[-1:]}",
                    "the server needs a model folder",
                    "check that the serving environment is whole (`python -m scripts env`)",
                )
    return final


def server_environment(python: Path, cache: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a CPU server: only what it needs, so that no variable of the caller decides a test."""
    kept = {key: value for key, value in os.environ.items() if key in ("HOME", "TMPDIR", "LANG", "USER", "LOGNAME")}
    path = f"{python.parent}:{os.environ.get('PATH', os.defpath)}"
    return {
        **kept,
        "PATH": path,
        "LD_PRELOAD": preload(python),
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_CONFIG_ROOT": str(cache / "config"),  # no evidence of this machine's decides what a server opens
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        **extra,
    }


@contextlib.contextmanager
def serving(
    python: Path,
    model: Path,
    log: Path,
    *,
    arguments: Sequence[str] = ("--enforce-eager",),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A healthy `vllm serve` of `model`; nothing of it is left when the block ends.

    Raises:
        errors.CheckFailed: it ended, or was not healthy in time; the log's last lines are in the message.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with in_use(f"the server of {shown(log)}"), tempfile.TemporaryDirectory(prefix="gfx936-serve-") as scratch:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        argv = [
            str(python.parent / "vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port),
            "--served-model-name", _NAME, "--max-model-len", "512", "--dtype", "bfloat16", "--seed", "0", *arguments,
        ]  # fmt: skip
        begun = time.monotonic()
        with log.open("wb") as out:
            # A session of its own: the engine processes share the group, and one signal ends them all.
            process = subprocess.Popen(
                argv, cwd=scratch, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                env=server_environment(python, Path(scratch) / "cache", environment or {}),
            )  # fmt: skip
        server = Server(port, process, log, 0.0)
        try:
            _wait_healthy(server, begun)
            yield Server(port, process, log, time.monotonic() - begun)
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_SECONDS)
            server.kill()


def _wait_healthy(server: Server, begun: float) -> None:
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if server.request("/health", seconds=5.0)[0] == 200:
                return
        ended = server.process.poll() is not None
        if ended or time.monotonic() - begun > _START_SECONDS:
            tail = "\n".join(server.log.read_text(errors="replace").splitlines()[-15:])
            raise errors.CheckFailed(
                f"the server ended with {server.process.returncode}" if ended else "the server was not healthy in time",
                f"the last lines of its log are\n{tail}",
                f"read {shown(server.log)}",
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(0.3)


def first_service(python: Path, log: Path) -> dict[str, Any]:
    """Serve the tiny model and use it as a client would. Returns what was seen.

    Raises:
        errors.CheckFailed: naming the first answer that is not right.
    """
    with serving(python, model_folder("tiny", python), log) as server:
        models = server.json("/v1/models")
        version = server.json("/version")
        whole = server.complete("The first service", 8)
        events = server.stream("The first service", 8)
        code = server.stop()
        text = whole["choices"][0]["text"]
        streamed = "".join(choice["text"] for event in events for choice in event["choices"])
        return {
            "start_seconds": round(server.start_seconds, 1),
            "models": [row["id"] for row in models["data"]],
            "version": version["version"],
            "completion_tokens": whole["usage"]["completion_tokens"],
            "prompt_tokens": whole["usage"]["prompt_tokens"],
            "text": text,
            "streamed": streamed,
            "exit_code": code,
        }


def wrong(seen: Mapping[str, Any], version: str) -> list[str]:
    """What is not right in what `first_service` saw, one sentence each."""
    expected = {
        "version": version,
        "models": [_NAME],
        "completion_tokens": 8,
        "prompt_tokens": len("The first service"),
        "streamed": seen["text"],
        "exit_code": 0,
    }
    return [f"{key} is {seen[key]!r}, not {value!r}" for key, value in expected.items() if seen[key] != value]


def main(argv: Sequence[str]) -> int:
    """Command line of `serve`."""
    argparse.ArgumentParser(prog="serve", description=__doc__).parse_args(argv)
    pin = read_pin()
    seen = first_service(ready_python(), BUILD / "logs" / "serve.log")
    json.dump(seen, sys.stdout, indent=1)
    print()
    if found := wrong(seen, wheel_version(pin.version, pin.revision, "cpu")):
        raise errors.CheckFailed("; ".join(found), "the first service has to answer right", "read build/logs/serve.log")
    return 0
