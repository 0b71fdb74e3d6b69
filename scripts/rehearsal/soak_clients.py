"""The clients of a soak, who watches beside them, and what they saw."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.dcu.verify.server import Server, ServerError, processes_of

from scripts.common import errors
from scripts.rehearsal.drive import healthy, metric, until

__all__ = ["LINE", "Clients", "Soaked", "page_problem"]

_CLIENTS = 3
LINE = re.compile(
    r'(#.*|[a-zA-Z_:][\w:]*(\{(?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*\})? (?:[-+]?[\d.]+(?:e[-+]?\d+)?|NaN|[+-]Inf)( \d+)?)?', re.I
)
"""A line of the exposition format."""
_OURS = re.compile(r"^(vllm_dcu_\w+_total(?:\{.*\})?) (\S+)$", re.M)
_MALFORMED: tuple[tuple[bytes, str], ...] = (
    (b"{", "no JSON"),
    (b'{"model": "nobody", "prompt": "a", "max_tokens": 1}', "an unknown model"),
    (b'{"model": "made-here", "prompt": "a", "max_tokens": -1}', "a negative length"),
    (b'{"model": "made-here", "prompt": [[]], "max_tokens": 1}', "no prompt"),
    (b'{"model": "made-here", "prompt": "' + b"a" * 4000 + b'", "max_tokens": 1}', "too long a prompt"),
)
_FAILURES = (OSError, http.client.HTTPException, ValueError, KeyError, ServerError)


@dataclass
class Soaked:
    """What was seen. `answers`: by kind of request and how it ended; `lost`: requests that were neither answered nor cancelled, and did not
    fail because their worker was killed. `memory`: part and bytes of all processes."""

    seconds: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    done_to_it: Counter[str] = field(default_factory=Counter)
    scrapes: int = 0
    bad_scrapes: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    hits: int = 0
    kernel_runs: int = 0
    counted: int = 0
    gemms: int = 0
    disk: str = ""
    exit_code: int | None = None


class Clients:
    """Several clients and one who scrapes `/metrics` and measures memory, until `join`."""

    def __init__(self, server: Server, part: int, seen: Soaked) -> None:
        self.server, self.part, self.seen = server, part, seen
        self._ended, self._killed = threading.Event(), False
        # The same requests in every soak.
        chances = [random.Random(i + 10 * part) for i in range(_CLIENTS)]  # noqa: S311
        self._threads = [threading.Thread(target=self._ask, args=(chance,), daemon=True) for chance in chances]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """End, after each one's last answer. One that never comes is lost."""
        self._ended.set()
        for thread in self._threads:
            thread.join(900.0)
            if thread.is_alive():
                self.seen.lost.append("a request was neither answered nor refused in 15 minutes")

    def kill_worker(self) -> bool:
        """SIGKILL of the worker while a long request runs: it, and all that are in flight, must fail where their clients see it. Returns
        whether the server noticed and answers no more as if it were well."""
        long = threading.Thread(target=self._long, daemon=True)
        long.start()
        with contextlib.suppress(errors.CheckFailed):
            until(lambda: metric(self.server, "vllm:num_requests_running") >= 1, "a request to run", 300.0)
        workers = [pid for pid in self.server.children() if b"Worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        self._ended.set()  # the watcher's page is the living server's
        self._threads[-1].join(900.0)
        self._killed = True
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        long.join(900.0)
        if long.is_alive():
            self.seen.lost.append("the request in flight hangs after its worker was killed")
        with contextlib.suppress(errors.CheckFailed):
            until(lambda: not healthy(self.server), "the server to notice", 300.0)
            return len(workers) == 1
        return False

    def _long(self) -> None:
        try:
            self.server.complete("x", 500)
        except _FAILURES as error:
            self._fail("in flight", error)
        else:
            self.seen.lost.append("the request in flight was answered as if its worker had not been killed")

    def _fail(self, kind: str, error: Exception) -> None:
        if self._killed:
            self.seen.answers[f"failed visibly: {type(error).__name__}"] += 1
        else:
            self.seen.lost.append(f"{kind}: {type(error).__name__}: {error}")

    def _ask(self, chance: random.Random) -> None:
        while not (self._ended.is_set() if self.part != 2 else self._killed and not healthy(self.server)):
            kind = chance.choices(("completed", "cancelled", "malformed"), (6, 2, 2))[0]
            tokens, prompt = chance.randint(1, 8), "x" * chance.choice((1, 2, 9, 40))
            try:
                how = {"completed": _complete, "cancelled": _cancel, "malformed": _malform}[kind](self.server, prompt, tokens, chance)
            except _FAILURES as error:
                self._fail(kind, error)
                if self._killed:
                    return
            else:
                self.seen.answers[f"{kind}: {how}"] += 1

    def _watch(self) -> None:
        before: dict[str, float] = {}
        while not self._ended.is_set():
            try:
                status, content = self.server.request("/metrics", seconds=300)
                problem, before = page_problem(status, content.decode(), before)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = str(error)
            if problem:
                self.seen.bad_scrapes.append(problem)
            self.seen.scrapes += 1
            self.seen.memory.append((self.part, sum(_resident(pid) for pid in processes_of(self.server.process.pid))))
            self._ended.wait(1.0)
        if not before:
            self.seen.bad_scrapes.append(f"no counter of ours in part {self.part}")


def page_problem(status: int, page: str, before: dict[str, float]) -> tuple[str, dict[str, float]]:
    """What is wrong with a page of metrics, or "", and the values of our counters on it: none may be gone or smaller than `before`."""
    now = {name: float(value) for name, value in _OURS.findall(page)}
    if status != 200:
        return f"status {status}", before
    if bad := next((line for line in page.splitlines() if not LINE.fullmatch(line)), ""):
        return bad, now
    fell = next((f"{name} was {value:g}, is {now.get(name, 'gone')}" for name, value in before.items() if now.get(name, -1) < value), "")
    return fell, now


def _complete(server: Server, prompt: str, tokens: int, chance: random.Random) -> str:
    found: dict[str, Any] = server.complete(prompt, tokens)
    if found["usage"]["completion_tokens"] != tokens:
        raise ValueError(f"{found['usage']['completion_tokens']} tokens came, {tokens} were due")
    return "whole"


def _cancel(server: Server, prompt: str, tokens: int, chance: random.Random) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    body = {"model": server.model, "prompt": prompt, "max_tokens": 64, "ignore_eos": True, "stream": True}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        first = connection.getresponse().readline()
    finally:
        connection.close()
    if not first.startswith(b'data: {"id"'):
        raise ValueError(f"the first event was {first[:200]!r}")
    return "after the first event"


def _malform(server: Server, prompt: str, tokens: int, chance: random.Random) -> str:
    body, what = chance.choice(_MALFORMED)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        status = connection.getresponse().status
    finally:
        connection.close()
    if not 400 <= status < 500:
        raise ValueError(f"{what} was answered with {status}")
    return what


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
