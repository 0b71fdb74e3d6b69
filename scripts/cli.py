"""One entry for every verb: finds its module, runs it, turns a fatal error into a sentence and an exit code."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.common import childenv, errors, tools
from scripts.common.paths import ADOPTION
from scripts.rebase import settle

__all__ = ["VERBS", "run", "summary"]

# verb -> (module, needs the tools environment). A verb with False runs on a bare Python.
VERBS: dict[str, tuple[str, bool]] = {
    "help": ("help", False),
    "doctor": ("machine.doctor", False),
    "first-hour": ("checks.first_hour", True),
    "fetch": ("upstream.fetch", True),
    "apply": ("rebase.layout", True),
    "build": ("wheel.build", True),
    "ext": ("wheel.ext", True),
    "bundle": ("wheel.bundle", True),
    "env": ("serving.ready", True),
    "serve": ("serving.server", True),
    "rehearse": ("rehearsal.verb", True),
    "refresh": ("series.refresh", True),
    "lint": ("checks.lint", True),
    "check": ("checks.check", True),
    "platform-table": ("rehearsal.platform_table", True),
    "generate": ("checks.generate", True),
    "test": ("checks.test", True),
    "mutants": ("checks.mutants", True),
    "clean": ("series.clean", False),
    "pins": ("upstream.update", True),
    "drift": ("drift.scan", True),
    "matrix": ("matrix.verb", True),
    "rebase": ("rebase.start", True),
    "rebase-continue": ("rebase.proceed", True),
    "rebase-abort": ("rebase.abort", True),
    "toolchain": ("audit.toolchain", True),
    "audit": ("audit.verb", True),
    "census": ("audit.census", True),
    "verify": ("checks.verify", True),
    "bench": ("checks.bench", True),
}


# What may run while an adoption is half done: whatever reads no release, and what ends it.
_DURING_ADOPTION = ("help", "doctor", "rebase", "rebase-abort")


def summary(module: str) -> str:
    """First docstring line of a verb's module, without importing it."""
    source = (Path(__file__).parent / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    line = (ast.get_docstring(ast.parse(source)) or "").split("\n", 1)[0]
    return line.split(": ", 1)[-1].rstrip(".")


def run(argv: Sequence[str]) -> int:
    """Run a verb. Exit codes are those of scripts/common/errors.py; 130 after an interrupt."""
    verb = argv[0] if argv and not argv[0].startswith("-") else "help"
    try:
        childenv.absolute(os.environ)
        if isinstance(sys.stdout, io.TextIOWrapper):  # a folder's name may hold bytes of another encoding than the locale's
            sys.stdout.reconfigure(errors="surrogateescape")
        if verb not in VERBS:
            raise errors.UserError(
                f"there is no verb {verb!r}",
                f"the verbs are: {', '.join(sorted(VERBS))}",
                "see `python -m scripts help`",
            )
        if ADOPTION.exists() and verb not in _DURING_ADOPTION:
            raise settle.stopped_midway()
        module, needs_tools = VERBS[verb]
        if needs_tools:
            tools.enter(["-m", "scripts", *argv])
        main = importlib.import_module(f"scripts.{module}").main
        result = main(list(argv[1:]))
        assert isinstance(result, int)
        sys.stdout.flush()  # a full disk is found here, where it gets its sentence
        return result
    except errors.Fatal as error:
        return _tell(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _tell(errors.refused(error, verb))
    except RuntimeError as error:
        if not isinstance(error.__context__, OSError):
            raise
        return _tell(errors.refused(error.__context__, verb))  # so pathlib says, up to Python 3.12, that a link leads to itself
    except KeyboardInterrupt:
        print("interrupted: run the same command again to go on", file=sys.stderr)
        return 130


def _tell(error: errors.Fatal) -> int:
    color = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    label = "\033[31merror\033[0m" if color else "error"
    with contextlib.suppress(OSError):
        print(f"{label}: {error}", file=sys.stderr, flush=True)
    return error.exit_code
