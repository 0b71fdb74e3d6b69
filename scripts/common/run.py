"""Running other programs: echoed, without a shell, with one sentence when they fail."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.files import say
from scripts.common.paths import ROOT

__all__ = ["echoed"]


def echoed(argv: Sequence[str | Path], cwd: Path = ROOT, env: Mapping[str, str] | None = None, base: Mapping[str, str] = os.environ) -> int:
    """Run a program, shown as a person would type it, in the environment `base` with `env` on top. Returns its exit code.

    Raises:
        errors.MissingInput: the program is not there.
    """
    words = [str(a) for a in argv]
    say("+ " + shlex.join(words).replace(str(ROOT) + os.sep, ""))
    try:
        return subprocess.run(words, cwd=cwd, env={**base, **(env or {})}, check=False).returncode
    except FileNotFoundError as error:
        raise errors.MissingInput(f"{words[0]} is missing", "the step runs it", "install it, or run through `make`") from error
