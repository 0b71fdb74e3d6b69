"""TEST ONLY. Runs verbs in forked children of a process into which `inject.c` is preloaded: imports are paid once, each child is armed.

`python SERVER PLAN MODULE FUNCTION [MORE ...]`: a line of JSON on standard input, `{"argv", "out"}`, calls the function and gives one line
back, the exit code. MORE are modules that are imported before, where they can be.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import struct
import sys
import traceback
from pathlib import Path


def main(plan: str, module: str, function: str, *more: str) -> None:
    sys.path.insert(0, str(Path.cwd()))
    run = getattr(importlib.import_module(module), function)
    for name in more:
        with contextlib.suppress(ImportError):  # a checkout without the whole overlay
            importlib.import_module(name)
    with Path(plan).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(out, 1)
            os.dup2(out, 2)
            code = 1
            try:
                struct.pack_into("q", memory, 24, 1)
                code = run(order["argv"])
            except BaseException:
                traceback.print_exc()
            finally:
                struct.pack_into("q", memory, 24, 0)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        struct.pack_into("q", memory, 24, 0)
        print(code, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
