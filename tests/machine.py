"""A machine made of files, for tests of doctor and of the device build: a Python that claims what it is told, a toolchain of scripts."""

from __future__ import annotations

import json
import shlex
import stat
import sys
from pathlib import Path
from typing import Any

__all__ = ["GOOD", "env_sh", "fake_python", "fake_toolchain", "kfd", "program"]

# What the interpreter probe prints where all is as it should be.
GOOD: dict[str, Any] = {
    "version": [3, 10, 12],
    "path": [],
    "include": "",
    "torch": "2.10.0+das.dtk2604",
    "hip": "6.3.26093",
    "cuda": "",
    "torch_file": "torch/__init__.py",
    "archs": ["gfx936"],
    "distributions": {"torch": "2.10.0+das.dtk2604", "triton": "3.1.0+das", "numpy": "1.26.4"},
    "plugins": [],
}


def program(path: Path, text: str) -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def fake_python(folder: Path, **facts: Any) -> Path:
    """A program that answers the probe of scripts/machine/interpreter.py with GOOD, changed by `facts`."""
    include = folder / "include"
    include.mkdir(parents=True, exist_ok=True)
    (include / "Python.h").touch()
    said = {**GOOD, "include": str(include), **facts}
    return program(folder / "python3.10", f"#!{sys.executable} -IS\nprint('gfx936-facts:' + {json.dumps(said)!r})\n")


_COMPILER = """#!/bin/sh
[ "$1" = --version ] && {{ echo "{line}"; exit 0; }}
case "$*" in *--offload-arch=gfx936*) ;; *) echo "error: asked for another arch" >&2; exit 1;; esac
made={made}
[ -n "$made" ] || {{ echo "clang++: error: invalid target ID 'gfx936'" >&2; exit 1; }}
while [ "$1" != -o ]; do shift; done
echo ".amdgcn_target \\"amdgcn-amd-amdhsa--$made\\"" > "$2"
"""


def fake_toolchain(prefix: Path, made: str = "gfx936", line: str = "HIP clang version 17.0.0 (DTK)") -> Path:
    """A prefix with a clang++ that says what it makes, and CMake's HIP package."""
    program(prefix / "lib" / "llvm" / "bin" / "clang++", _COMPILER.format(made=made, line=line))
    package = prefix / "lib" / "cmake" / "hip-lang" / "hip-lang-config.cmake"
    package.parent.mkdir(parents=True)
    package.touch()
    return prefix


def env_sh(prefix: Path, more: str = "") -> Path:
    """An env.sh as the vendor's: prints, reads unset variables, ends non-zero."""
    file = prefix / "env.sh"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f'echo "DTK environment"\nexport ROCM_PATH={shlex.quote(str(prefix))}\n'
        'export LD_LIBRARY_PATH="$ROCM_PATH/lib:$LD_LIBRARY_PATH_NEVER_SET"\n'
        f'{more}\n[ -n "$DTK_NEVER_SET" ] && export DTK_OPTION=1\n',
        encoding="utf-8",
    )
    return file


def kfd(root: Path, *versions: int) -> Path:
    """A KFD topology with one CPU node and a DCU node of each `gfx_target_version`."""
    for number, version in enumerate((0, *versions)):
        node = root / "nodes" / str(number)
        node.mkdir(parents=True)
        vendor = 0x1D94 if version else 0
        (node / "properties").write_text(f"cpu_cores_count 8\nvendor_id {vendor}\ndevice_id 1\ngfx_target_version {version}\n")
    return root
