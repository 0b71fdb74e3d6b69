"""Where cmake and ninja come from: the tools environment first, PATH second. Bare Python."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from scripts.common.child import ask
from scripts.common.childenv import for_build
from scripts.common.tools import FOLDER

__all__ = ["cmake_error", "locate", "program_version"]


def locate(name: str, env: Mapping[str, str], tools: Path | None = None) -> Path | None:
    """The program, or None. `tools` is the folder of the tools environment's programs (its own by default)."""
    own = (tools or FOLDER / "bin") / name
    if own.is_file():
        return own
    found = shutil.which(name, path=env.get("PATH"))
    return Path(found) if found else None


def program_version(program: Path, env: Mapping[str, str]) -> str:
    """The first version number that `--version` prints, "" if none."""
    match = re.search(r"\d+(?:\.\d+)+", ask([program, "--version"], env=for_build(env), seconds=60).out)
    return match[0] if match else ""


def cmake_error(stderr: str) -> str:
    """CMake's first error message on one line; the end of what it said where there is none."""
    match = re.search(r"CMake Error[^\n]*\n(?P<text>.*?)(?=\n\S|\nCall Stack|\Z)", stderr, re.DOTALL)
    return " ".join((match["text"] if match else stderr[-500:]).split())
