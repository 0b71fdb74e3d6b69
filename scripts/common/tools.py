"""The tools' own environment (build/env/tools): what the tools need never enters the Python that serves.

Nothing here needs a package: this runs on a bare Python 3.10+.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, hold, remove_tree, say
from scripts.common.paths import BUILD, OFFLINE, ROOT, shown

__all__ = ["REQUIREMENTS", "enter", "tools_python"]

REQUIREMENTS = ROOT / "requirements" / "tools.txt"
FOLDER = BUILD / "env" / "tools"
_INSIDE = "GFX936_TOOLS"


def _stamp() -> str:
    about = f"{sys.version_info[:3]} {sys.base_prefix} {FOLDER}"
    return hashlib.sha256(about.encode() + REQUIREMENTS.read_bytes()).hexdigest()


def tools_python() -> Path:
    """The interpreter of the tools environment; made from requirements/tools.txt when it is not there or out of date.

    TOOLS_PYTHON=path uses an existing interpreter that has the packages (machines without a network).

    Raises:
        errors.CannotBuild: the environment cannot be made.
    """
    if given := os.environ.get("TOOLS_PYTHON"):
        return Path(given)
    python, stamp = FOLDER / "bin" / "python", _stamp()
    with hold(BUILD / "env" / ".tools.lock", "making the tools environment"):
        if (FOLDER / "stamp").is_file() and (FOLDER / "stamp").read_text() == stamp:
            return python
        say(f"making the tools environment {shown(FOLDER)}")
        remove_tree(FOLDER)  # made in place (scripts carry its path); the stamp, written last, says it is whole
        for argv in (
            [sys.executable, "-m", "venv", str(FOLDER)],
            [
                str(python),
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                "--no-deps",
                "--require-hashes",
                "--only-binary",
                ":all:",
                *(["--no-index", "--find-links", str(OFFLINE / "wheels")] if (OFFLINE / "wheels").is_dir() else []),
                "-r",
                str(REQUIREMENTS),
            ],
        ):
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                raise errors.CannotBuild(
                    f"the tools environment could not be made (`{' '.join(argv[1:4])} ...` ended with {done.returncode})",
                    _first_error(done.stderr.strip() or done.stdout.strip() or "no message"),
                    "check the network or pip's index; offline, set TOOLS_PYTHON to a Python that has requirements/tools.txt",
                )
        atomic_write(FOLDER / "stamp", stamp.encode())
    return python


def _first_error(said: str) -> str:
    lines = said.splitlines()
    return next((line for line in lines if line.startswith("ERROR")), lines[-1])


def enter(argv: Sequence[str]) -> None:
    """Go on in the tools environment; returns at once where we are in it already."""
    if os.environ.get(_INSIDE) == str(os.getpid()):
        return
    python = tools_python()
    if Path(sys.prefix) == python.parent.parent or (os.environ.get("TOOLS_PYTHON") and Path(sys.executable) == python):
        return
    os.environ.setdefault("PYTHON", sys.executable)  # the Python in use: a device build is for it, not for the tools'
    os.environ[_INSIDE] = str(os.getpid())
    os.execv(python, [str(python), *argv])  # noqa: S606  (an argument list; the process id stays)
