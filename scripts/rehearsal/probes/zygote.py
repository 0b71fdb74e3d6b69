"""Runs many small scenarios, each in a process of its own, without paying for `import torch` each time.

Usage: PYTHON zygote.py. One JSON object a line on stdin, one a line on stdout. A scenario is
`{"path": [folders for sys.path], "env": {...}, "hip": "6.3" or null, "arch": gcnArchName of torch's device or null,
"code": "...", "argv": any}`; the code leaves its answer in `result`. The answer is `{"value": ...}` or `{"error": ...}`,
with `"log"`: what was written to stderr.

A scenario is a fork taken after torch and before anything of vLLM was imported: every module of vLLM runs from the start in
it. Of torch only what differs between its builds is set: `torch.version.hip`, and the properties of a device that is not here.
"""

import contextlib
import importlib
import json
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.standalone_compile

_OWN = ("vllm", "amdsmi", "aiter")
_tried: set[str] = set()


def _as_on_device(arch: str) -> None:
    props = types.SimpleNamespace(gcnArchName=arch, multi_processor_count=80, total_memory=64 << 30)
    torch.cuda.get_device_properties = lambda *_: props
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0


def _scenario(order: dict[str, Any], write_to: int) -> None:
    for name in [n for n in os.environ if n.startswith(("VLLM_", "FAKE_", "HIP_", "CUDA_VISIBLE", "ROCR_", "GPU_DEVICE", "PYTORCH_ROCM"))]:
        del os.environ[name]
    os.environ.update(order.get("env", {}))
    sys.path[:0] = order["path"]
    torch.version.hip = order.get("hip")
    if order.get("arch"):
        _as_on_device(order["arch"])
    scope = {"argv": order.get("argv")}
    try:
        exec(compile(order["code"], "<scenario>", "exec"), scope)  # noqa: S102  (the caller is the test itself)
        answer = {"value": scope.get("result")}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    answer["modules"] = [name for name in sys.modules if name.split(".")[0] not in _OWN]
    with os.fdopen(write_to, "w") as pipe:
        json.dump(answer, pipe)


def _learn(modules: Iterable[str]) -> None:
    """Import what a scenario needed below vLLM, so that the next one finds it there."""
    with Path(os.devnull).open("w") as hush, contextlib.redirect_stdout(hush), contextlib.redirect_stderr(hush):
        for name in modules:
            if name not in sys.modules and name not in _tried:
                _tried.add(name)
                with contextlib.suppress(Exception):
                    importlib.import_module(name)


def _run(order: dict[str, Any]) -> dict[str, Any]:
    read_from, write_to = os.pipe()
    with tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.close(read_from)
            os.dup2(log.fileno(), 2)
            os.dup2(log.fileno(), 1)
            try:
                _scenario(order, write_to)
            finally:
                sys.stderr.flush()
                sys.stdout.flush()
                os._exit(0)
        os.close(write_to)
        with os.fdopen(read_from) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        log.seek(0)
        said = log.read().decode(errors="replace")
    answer = json.loads(text) if text else {"error": "the scenario's process died"}
    _learn(answer.pop("modules", ()))
    return answer | {"log": said}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
