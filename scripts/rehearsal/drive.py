"""What is asked of a server in a rehearsal, and how it is ended."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.dcu.dispatch.countfiles import read_folder
from vllm.dcu.records.catalog import MISSION
from vllm.dcu.verify.server import Server

from scripts.common import errors
from scripts.rehearsal.records import Answer, Counts, Phase, answer_of, read_counts

__all__ = ["Folders", "end_by_kill", "end_by_sigterm", "features", "healthy", "metric", "probe", "until"]

_ASK = {"logprobs": 2, "return_tokens_as_token_ids": True}
_LONG = "The same long beginning for two requests. " * 4  # 168 tokens: more than one block of 128


@dataclass(frozen=True)
class Folders:
    """Where the processes of a rehearsal count: the gate's files, and the simulation's."""

    stats: Path
    log: Path

    def counts(self) -> Counts:
        """All counts as they stand."""
        return read_counts(self.stats, self.log)

    def workers(self) -> int:
        """How many processes counted anything."""
        return sum(bool(process.counts) for process in read_folder(self.stats)[0])

    def shards(self, workers: int) -> int:
        """Calls with N=1 of the mission's matrix split among `workers`, which no record covers, added up over them all."""
        contract = MISSION.contract
        wanted = (contract.m // workers, contract.k, "no-record", "1") if contract.m else ()
        counts = (count for process in read_folder(self.stats)[0] for count in process.counts)
        return sum(c.value for c in counts if (c.key.m, c.key.k, c.key.reason, c.key.rows) == wanted)


@contextlib.contextmanager
def _phase(folders: Folders, name: str, into: list[Phase], steps: int | None = None) -> Iterator[dict[str, Any]]:
    """Collect one phase: the block puts `answers` and facts into the mapping it is given."""
    before, facts = folders.counts(), dict[str, Any]()
    yield facts
    answers: tuple[Answer, ...] = tuple(facts.pop("answers", ()))
    into.append(Phase(name, folders.counts().since(before), answers, steps, facts))


def probe(server: Server, folders: Folders) -> list[Phase]:
    """The three laws of counting, on requests that run alone."""
    found: list[Phase] = []
    for name, prompt, tokens, steps in (
        ("one token", "Hello there", 1, 0),
        ("six tokens", "Hello there", 6, 5),
        ("one-token prompt", "a", 4, 4),
    ):
        with _phase(folders, name, found, steps) as facts:
            facts["answers"] = [answer_of(server.complete(prompt, tokens, **_ASK)["choices"][0])]
    return found


def features(server: Server, folders: Folders, *, prefix: bool) -> list[Phase]:
    """Batching, streaming, prefix caching and priorities. Needs --max-num-seqs 2 and --scheduling-policy priority."""
    found: list[Phase] = []
    with _phase(folders, "batch of two", found) as facts:
        # The first prefill is long: the second prompt is there before it ends, so both decode together.
        choices = server.complete([_LONG, "Hello there"], 4, **_ASK)["choices"]
        facts["answers"] = [answer_of(choice) for choice in choices]
    with _phase(folders, "streaming", found, 4) as facts:
        events = server.stream("Hello there", 5)
        facts["streamed"] = "".join(choice["text"] for event in events for choice in event["choices"])
        facts["events"], facts["tokens"] = len(events), 5
    whole = server.complete("Hello there", 5)["choices"][0]["text"]
    found[-1] = Phase(**{**vars(found[-1]), "facts": {**found[-1].facts, "whole": whole}})
    if prefix:
        with _phase(folders, "prefix caching", found) as facts:
            before = metric(server, "vllm:prefix_cache_hits_total")
            facts["answers"] = [answer_of(server.complete(_LONG, 3, **_ASK)["choices"][0]) for _ in range(2)]
            facts["cached_tokens"] = metric(server, "vllm:prefix_cache_hits_total") - before
    with _phase(folders, "priority", found) as facts:
        facts["ended"] = _priorities(server)
    return found


def _priorities(server: Server) -> list[str]:
    """Two requests run, a patient and then an urgent one wait: the names in the order in which they ended."""
    ended: list[str] = []

    def ask(name: str, tokens: int, priority: int) -> threading.Thread:
        def work() -> None:
            server.complete(f"{name} ", tokens, priority=priority)
            ended.append(name)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    # Both run before anything waits; the first to end makes room for one, and the other goes on.
    threads = [ask("first", 10, 0), ask("second", 18, 0)]
    until(lambda: metric(server, "vllm:num_requests_running") == 2, "two requests to run")
    threads.append(ask("patient", 2, 9))
    until(lambda: metric(server, "vllm:num_requests_waiting") == 1, "one request to wait")
    threads.append(ask("urgent", 2, -9))
    for thread in threads:
        thread.join(300.0)
    return ended


def metric(server: Server, name: str) -> float:
    """The sum of a metric over its labels."""
    text = server.request("/metrics")[1].decode()
    return sum(float(value) for value in re.findall(rf"(?m)^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text))


def until(holds: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Wait for it.

    Raises:
        errors.CheckFailed: it did not come to hold.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise errors.CheckFailed(f"waited {seconds:.0f} s for {what}", "the phase needs it", "read the server's log")
        time.sleep(0.02)


def end_by_sigterm(server: Server, folders: Folders) -> dict[str, Any]:
    """Stop as an operator does; then what the merged counter file says, beside the processes' own files."""
    code = server.stop()
    merged = folders.stats / "counters.json"
    hits = None
    with contextlib.suppress(OSError, ValueError):
        hits = sum(sum(group["hits"].values()) for group in json.loads(merged.read_bytes())["groups"])
    return {"how": "SIGTERM", "exit_code": code, "hits": folders.counts().hits, "merged_hits": hits}


def end_by_kill(server: Server, folders: Folders) -> dict[str, Any]:
    """SIGKILL the engine core; whether the server noticed, and whether its counts are all there."""
    before = folders.counts().hits
    for pid in server.children():
        if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    noticed = False
    with contextlib.suppress(errors.CheckFailed):
        until(lambda: not healthy(server), "the server to notice", 60.0)
        noticed = True
    server.kill()
    return {"how": "SIGKILL of the engine", "noticed": noticed, "hits_before": before, "hits": folders.counts().hits}


def healthy(server: Server) -> bool:
    """Whether it lives and says that it is well."""
    try:
        return server.process.poll() is None and server.request("/health", seconds=5.0)[0] == 200
    except (OSError, http.client.HTTPException):
        return False
