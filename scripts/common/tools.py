"""The tools' own environment (build/env/tools-PYTHON, one for each): what the tools need never enters the Python that serves.

Nothing here needs a package: this runs on a bare Python 3.10+.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.common import childenv, errors
from scripts.common.files import atomic_write, hold, remove_tree, say
from scripts.common.paths import BUILD, OFFLINE, ROOT, shown

__all__ = ["FOLDER", "REQUIREMENTS", "enter", "made", "no_way", "tools_python", "ways"]

REQUIREMENTS = ROOT / "requirements" / "tools.txt"
_ABOUT = f"{'.'.join(map(str, sys.version_info[:3]))}-{hashlib.sha256(os.fsencode(sys.base_prefix)).hexdigest()[:8]}"
FOLDER = BUILD / "env" / f"tools-{_ABOUT}"
"""One for each Python: who goes back and forth between two makes none anew."""
_INSIDE = "GFX936_TOOLS"
_NEEDED = ("packaging", "pypi_simple", "requests", "yaml", "git")


def _stamp() -> str:
    return hashlib.sha256(os.fsencode(FOLDER) + REQUIREMENTS.read_bytes()).hexdigest()


def made() -> bool:
    """Whether the environment of this Python is there, whole and of the present requirements."""
    stamp = FOLDER / "stamp"
    return stamp.is_file() and stamp.read_text() == _stamp()


def ways() -> list[list[str]] | None:
    """The commands that make an empty environment and fill it, with what this Python and this machine have; None where nothing can.

    `venv` with `ensurepip`, else `uv` from PATH.
    """
    offline = ["--no-index", "--find-links", str(OFFLINE / "wheels")] if (OFFLINE / "wheels").is_dir() else []
    rest = ["--no-deps", "--require-hashes", "--only-binary", ":all:", *offline, "-r", str(REQUIREMENTS)]
    python = str(FOLDER / "bin" / "python")
    if importlib.util.find_spec("venv") is not None and importlib.util.find_spec("ensurepip") is not None:
        return [[sys.executable, "-m", "venv", str(FOLDER)], [python, "-m", "pip", "install", "-q", *rest]]
    if uv := shutil.which("uv"):
        options = [] if offline else childenv.for_uv()[1]
        return [
            [uv, "venv", "-q", "--no-python-downloads", "--python", sys.executable, str(FOLDER)],
            [uv, "pip", "install", "-q", "--python", python, *options, *rest],
        ]
    return None


def no_way() -> errors.Fatal:
    """Why no environment can be made here, and what to install."""
    version = ".".join(map(str, sys.version_info[:2]))
    return errors.CannotBuild(
        f"{sys.executable} has no {'ensurepip' if importlib.util.find_spec('venv') else 'venv'} module, and there is no uv on PATH",
        "the tools live in an environment of their own, which one of them makes",
        f"apt-get install python{version}-venv, or put uv on PATH, or set TOOLS_PYTHON to a Python that has requirements/tools.txt",
    )


def tools_python() -> Path:
    """The interpreter of the tools environment; made from requirements/tools.txt when it is not there or out of date.

    TOOLS_PYTHON=path uses an existing interpreter that has the packages (machines without a network).

    Raises:
        errors.CannotBuild: the environment cannot be made.
        errors.MissingInput: TOOLS_PYTHON is no file.
    """
    if given := os.environ.get("TOOLS_PYTHON"):
        if not Path(given).is_file():
            raise errors.MissingInput(f"TOOLS_PYTHON={given} is not a file", "the tools run in it", "unset it, or point it at a Python")
        return Path(given)
    python = FOLDER / "bin" / "python"
    with hold(BUILD / "env" / ".tools.lock", "making the tools environment"):
        if made():
            return python
        commands = ways()
        if commands is None:
            raise no_way()
        say(f"making the tools environment {shown(FOLDER)}")
        remove_tree(FOLDER)  # made in place (scripts carry its path); the stamp, written last, says it is whole
        environment = childenv.for_uv()[0] if commands[0][1] == "venv" else childenv.for_pip()
        code = "import sys\nfor name in sys.argv[1:]: assert __import__(name).__file__.startswith(sys.prefix), name + ' is from elsewhere'"
        # It is stamped as whole only after it was imported from: a setting of the machine may have sent the packages elsewhere.
        for argv in (*commands, [str(python), "-I", "-c", code, *_NEEDED]):
            done = subprocess.run(argv, env=environment, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode:
                raise errors.CannotBuild(
                    f"the tools environment could not be made (`{' '.join(argv[1:4])} ...` ended with {done.returncode})",
                    _first_error(done.stderr.strip() or done.stdout.strip() or "no message"),
                    "check the network or pip's index; offline, set TOOLS_PYTHON to a Python that has requirements/tools.txt",
                )
        atomic_write(FOLDER / "stamp", _stamp().encode())
        _point_at_it()
    return python


def _point_at_it() -> None:
    """`build/env/tools` is the one made last: a name for people."""
    short = BUILD / "env" / "tools"
    if not short.is_symlink():
        remove_tree(short)  # where the environment was while there was one for all
    beside = short.with_name(f".tools-{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(FOLDER.name)
    beside.replace(short)


def _first_error(said: str) -> str:
    lines = said.splitlines()
    return next((line for line in lines if line.startswith("ERROR")), lines[-1])


def enter(argv: Sequence[str]) -> None:
    """Go on in the tools environment; returns at once where we are in it already."""
    if os.environ.get(_INSIDE) == str(os.getpid()):
        return
    python = tools_python()
    if Path(sys.prefix).resolve() == python.parent.parent.resolve() or (os.environ.get("TOOLS_PYTHON") and Path(sys.executable) == python):
        return
    os.environ.setdefault("PYTHON", sys.executable)  # the Python in use: a device build is for it, not for the tools'
    os.environ[_INSIDE] = str(os.getpid())
    os.execv(python, [str(python), *argv])  # noqa: S606  (an argument list; the process id stays)
