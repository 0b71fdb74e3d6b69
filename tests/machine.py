"""A machine made of files, for tests of doctor and of the device build: a Python that claims what it is told, a toolchain of scripts."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["GOOD", "Box", "box", "distribution", "env_sh", "fake_python", "fake_toolchain", "kfd", "program", "site_of", "usable"]

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
    package.parent.mkdir(parents=True, exist_ok=True)
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


def usable(root: Path, only: str = "") -> Path:
    """Device nodes and hyhal below a folder that stands for /; `only` one of them."""
    for name in ("dev/kfd", "dev/mkfd", "dev/dri/renderD128"):
        if f"/{name}".startswith(only):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
    if not only:  # a card, and a bridge of the same vendor's processor
        for number, (vendor, kind) in enumerate([(0x1D94, 0x0B4000), (0x1D94, 0x060400), (0x1002, 0x030000)]):
            folder = root / "sys" / "bus" / "pci" / "devices" / f"0000:0{number}:00.0"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "vendor").write_text(f"{vendor:#06x}\n")
            (folder / "class").write_text(f"{kind:#08x}\n")
    if "/opt/hyhal".startswith(only):
        (root / "opt" / "hyhal").mkdir(parents=True, exist_ok=True)
    return root


def distribution(site: Path, name: str, version: str, files: Mapping[str, str] | None = None, folder: str = "", more: str = "") -> None:
    """An installed distribution: metadata (with `more` lines), and its files."""
    info = site / (folder or f"{name}-{version}.dist-info")
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")
    for path, text in (files or {}).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    names = [*(files or {}), f"{info.name}/METADATA", f"{info.name}/RECORD"]
    info.joinpath("RECORD").write_text("".join(f"{path},,\n" for path in names))


# A vendor's torch: its HIP runtime is on the paths that env.sh sets, and nowhere else.
_TORCH = """import os, types
if {library!r} not in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
    raise ImportError("libgalaxyhip.so.5: cannot open shared object file: No such file or directory")
__version__ = {version!r}
__path__ = []
version = types.SimpleNamespace(hip="6.3.26093", cuda=None)
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "gfx936")
"""


def site_of(python: Path) -> Path:
    """site-packages of a virtual environment's interpreter."""
    (site,) = (python.parent.parent / "lib").glob("python3*/site-packages")
    return site


@dataclass
class Box:
    """A DTK machine made of files, as it is right after installation: env.sh not sourced, no amdsmi, no network.

    Attributes:
        root: stands for /: DTK in opt/dtk, device nodes in dev, hyhal in opt/hyhal.
        python: a virtual environment whose torch can be imported only under env.sh.
        environ: what the person's shell has.
    """

    root: Path
    python: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> Path:
        return self.root / "opt" / "dtk"

    @property
    def site(self) -> Path:
        return site_of(self.python)

    def follow(self, line: str) -> None:
        """Do what a fixing line says: `export A=b`, `unset A`, `NAME=value` for make, and what docker or a driver would bring."""
        for word in re.findall(r"unset ([A-Z_]+)", line):
            self.environ.pop(word)
        for name, value in re.findall(r"(?:^|\s)([A-Z][A-Z0-9_]+)=('[^']*'|\S+)", line):
            value = value.strip("'")
            self.environ[name] = str(self.root) + value if value.startswith("/opt/dtk") else value
        for path in re.findall(r"--device=(/dev/\w+)|(/opt/hyhal):", line):
            usable(self.root, "".join(path))


def box(folder: Path, torch: str = _TORCH, version: str = GOOD["torch"]) -> Box:
    """A whole and fit machine below `folder`, with a torch of this version; tests take something away from it."""
    root = usable(folder / "root")
    env_sh(fake_toolchain(root / "opt" / "dtk"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    distribution(site_of(python), "torch", version, {"torch/__init__.py": torch.format(library=f"{root}/opt/dtk/lib", version=version)})
    distribution(site_of(python), "numpy", "1.26.4", {"numpy.py": ""})
    distribution(site_of(python), "pip", "23.0", {"pip/__init__.py": ""})
    tools = folder / "tools"
    program(tools / "cmake", "#!/bin/sh\necho cmake version 3.31.10\n")
    program(tools / "ninja", "#!/bin/sh\necho 1.13.0.git\n")
    program(tools / "python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    environ = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "PYTHON": str(python), "TOOLS_PYTHON": str(tools / "python"), "MAX_JOBS": "1",
        "GFX936_TEST_ROOT": str(root), "VLLM_DCU_TEST_KFD_ROOT": str(kfd(folder / "kfd", 90306)), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    return Box(root, python, environ)
