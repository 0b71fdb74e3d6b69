# SPDX-License-Identifier: Apache-2.0
"""A running `vllm serve`: started, asked as a client would, and gone afterwards whatever happens.  Standard library only."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["Server", "ServerError", "last_line", "processes_of", "running"]


class ServerError(RuntimeError):
    """A server did not do its part. The message says where its log is."""


@dataclass(frozen=True)
class Server:
    """A healthy server.

    Attributes:
        port: on 127.0.0.1.
        process: the API server; engine processes are its children, in its process group.
        log: file with everything they wrote.
        stop_seconds: how long it may take to end.
        start_seconds: from the command to the first healthy answer.
        model: the name under which it serves.
    """

    port: int
    process: "subprocess.Popen[bytes]"
    log: Path
    stop_seconds: float
    start_seconds: float = 0.0
    model: str = ""

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

    def content(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """What a request is answered with.

        Raises:
            ServerError: another status than 200.
        """
        status, content = self.request(path, body)
        if status != 200:
            raise ServerError(f"{path} was answered with {status}: {content[:300].decode(errors='replace')} (see {self.log})")
        return content.decode()

    def json(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that a request is answered with.

        Raises:
            ServerError: another status than 200.
        """
        found: dict[str, Any] = json.loads(self.content(path, body))
        return found

    def complete(self, prompt: str | list[str], tokens: int, **more: Any) -> dict[str, Any]:
        """A greedy completion of exactly `tokens` tokens a prompt.

        Raises:
            ServerError: another status than 200.
        """
        return self.json("/v1/completions", self._asked(prompt, tokens, more))

    def stream(self, prompt: str, tokens: int, **more: Any) -> list[dict[str, Any]]:
        """The events of a streamed completion, in order.

        Raises:
            ServerError: another status than 200, or the stream does not end with [DONE].
        """
        content = self.content("/v1/completions", {**self._asked(prompt, tokens, more), "stream": True})
        lines = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
        if lines[-1:] != ["[DONE]"]:
            raise ServerError(f"the stream ended with {lines[-1:]}, not with [DONE] (see {self.log})")
        return [json.loads(line) for line in lines[:-1]]

    def _asked(self, prompt: str | list[str], tokens: int, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}

    def children(self) -> list[int]:
        """Process ids of the server's living descendants, the engine core among them."""
        return [pid for pid in processes_of(self.process.pid) if pid != self.process.pid]

    def stop(self) -> int:
        """SIGTERM, as an operator does; returns the exit code. The whole group is gone afterwards.

        Raises:
            ServerError: it did not end by itself.
        """
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            raise ServerError(f"the server did not end within {self.stop_seconds:.0f} s of SIGTERM (see {self.log})") from None
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


def processes_of(group: int) -> list[int]:
    """Ids of the living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in brackets, may hold anything; the group is the third field after it.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z" and int(fields[2]) == group:
                    found.append(int(entry.name))
    return found


@contextlib.contextmanager
def running(
    argv: Sequence[str], log: Path, env: Mapping[str, str], *, cwd: Path | None = None, start: float = 1800.0, stop: float = 120.0
) -> Iterator[Server]:
    """The healthy server that `argv` (with `--host` and `--port` added) starts; nothing of it is left when the block ends.

    `start` and `stop` are how many seconds it may take to be healthy and to end.

    Raises:
        ServerError: it ended, or was not healthy in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    begun = time.monotonic()
    with log.open("wb") as out:
        # A session of its own: the engine processes share the group, and one signal ends them all.
        process = subprocess.Popen(
            [*argv, "--host", "127.0.0.1", "--port", str(port)],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(port, process, log, stop)
    try:
        _wait_healthy(server, begun + start)
        seconds = round(time.monotonic() - begun, 1)
        yield replace(server, start_seconds=seconds, model=str(server.json("/v1/models")["data"][0]["id"]))
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(stop)
        server.kill()


def _wait_healthy(server: Server, deadline: float) -> None:
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if server.request("/health", seconds=5.0)[0] == 200:
                return
        if server.process.poll() is not None:
            raise ServerError(f"the server ended with {server.process.returncode}: {last_line(server.log)}")
        if time.monotonic() > deadline:
            raise ServerError(f"the server was not healthy in time: {last_line(server.log)}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(0.3)


def last_line(log: Path) -> str:
    """The last line of a log that names an error, or else its last, and where the log is."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return f"{(errors or lines or ['it wrote nothing'])[-1]} (see {log})"
