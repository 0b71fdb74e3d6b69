"""serve: the first service: `vllm serve` of the installed wheel with a small model made on the spot, used as a client would.

Binds 127.0.0.1 only. Everything that is started is ended, whatever happens in between.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm.dcu.verify.server import Server, ServerError, running

from scripts.common import errors
from scripts.common.files import new_folder, sha256_of
from scripts.common.paths import BUILD, ROOT, shown
from scripts.runtime.environment import in_use, preload
from scripts.serving.ready import ready_python
from scripts.upstream.releases import read_pin
from scripts.wheel.version import wheel_version

__all__ = ["model_folder", "server_environment", "serving"]

_NAME = "made-here"
_START_SECONDS = 420.0  # a cold start with torch.compile on a busy 2-core machine took 150
_STOP_SECONDS = 60.0


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
                errors="replace",
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
        errors.CheckFailed: it ended, was not healthy in time, or did not answer as a server does.
    """
    argv = [
        str(python.parent / "vllm"), "serve", str(model), "--served-model-name", _NAME, "--max-model-len", "512", "--dtype", "bfloat16",
        "--seed", "0", *arguments,
    ]  # fmt: skip
    with in_use(f"the server of {shown(log)}"), tempfile.TemporaryDirectory(prefix="gfx936-serve-") as scratch:
        env = server_environment(python, Path(scratch) / "cache", environment or {})
        try:
            with running(argv, log, env, cwd=Path(scratch), start=_START_SECONDS, stop=_STOP_SECONDS) as server:
                yield server
        except ServerError as error:
            raise errors.CheckFailed(
                str(error), "the server is expected to serve, and to end when it is told to", f"read {shown(log)}"
            ) from error


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
            "start_seconds": server.start_seconds,
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
