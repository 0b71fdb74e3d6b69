"""One entry for every verb: finds its module, runs it, turns a fatal error into a sentence and an exit code."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts import errors, tools_env

__all__ = ["VERBS", "run", "summary"]

# verb -> (module, needs the tools environment). A verb with False runs on a bare Python.
VERBS: dict[str, tuple[str, bool]] = {
    "help": ("help", False),
    "doctor": ("doctor", False),
    "fetch": ("fetch", True),
    "apply": ("apply", True),
    "build": ("build", True),
    "ext": ("ext", True),
    "bundle": ("bundle", True),
    "env": ("envs", True),
    "serve": ("serve", True),
    "rehearse": ("rehearse", True),
    "refresh": ("refresh", True),
    "lint": ("lint", True),
    "check": ("check", True),
    "platform-table": ("platform_table", True),
    "test": ("test", True),
    "clean": ("clean", False),
    "pins": ("pins", True),
    "drift": ("drift", True),
    "matrix": ("matrix", True),
    "rebase": ("rebase", True),
    "rebase-continue": ("rebase_continue", True),
    "rebase-abort": ("rebase_abort", True),
    "toolchain": ("toolchain", True),
    "audit": ("audit", True),
    "census": ("census", True),
    "verify": ("verify", True),
    "bench": ("bench", True),
}


def summary(module: str) -> str:
    """First docstring line of a verb's module, without importing it."""
    source = Path(__file__).with_name(module + ".py").read_text(encoding="utf-8")
    line = (ast.get_docstring(ast.parse(source)) or "").split("\n", 1)[0]
    return line.split(": ", 1)[-1].rstrip(".")


def run(argv: Sequence[str]) -> int:
    """Run a verb. Exit codes are those of scripts/errors.py; 130 after an interrupt."""
    try:
        verb = argv[0] if argv and not argv[0].startswith("-") else "help"
        if verb not in VERBS:
            raise errors.UserError(
                f"there is no verb {verb!r}",
                f"the verbs are: {', '.join(sorted(VERBS))}",
                "see `python -m scripts help`",
            )
        module, needs_tools = VERBS[verb]
        if needs_tools:
            tools_env.enter(["-m", "scripts", *argv])
        main = importlib.import_module(f"scripts.{module}").main
        result = main(list(argv[1:]))
        assert isinstance(result, int)
        return result
    except errors.Fatal as error:
        color = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        label = "\033[31merror\033[0m" if color else "error"
        print(f"{label}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: run the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
