"""After a device build: audit of the wheel, import check in a child process, and how to install it beside a vendor's torch."""

from __future__ import annotations

import json
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write
from scripts.common.paths import shown
from scripts.machine.interpreter import VENDOR, Facts

__all__ = ["CONSTRAINTS", "constraints", "import_check", "install_lines", "write_constraints"]

CONSTRAINTS = "constraints-gfx936.txt"

# Runs in the Python in use, with the unpacked wheel first on its path. Libraries load without a device.
_IMPORT = """
import importlib, json, sys
folder, modules = sys.argv[1], sys.argv[2:]
sys.path.insert(0, folder)
result = {"loaded": [], "failed": {}}
from pathlib import Path
from vllm.dcu import manifest
package = Path(manifest.__file__).resolve().parent.parent
result["package"] = str(package)
result["altered"] = manifest.altered(manifest.read(package), package)
for name in modules:
    try:
        importlib.import_module(name)
        result["loaded"].append(name)
    except Exception as error:
        result["failed"][name] = f"{type(error).__name__}: {error}"
if "vllm._rocm_C" in result["loaded"]:
    import torch
    result["llmm1"] = str(torch.ops._rocm_C.LLMM1.default._schema)
print("\\ngfx936-import:" + json.dumps(result))
"""


def import_check(wheel: Path, python: Facts, env: Mapping[str, str]) -> dict[str, str]:
    """Import the wheel's extensions in a child of the Python in use; module -> "loaded", and the schema of LLMM1.

    The wheel is unpacked into a temporary folder: nothing is installed.

    Raises:
        errors.CheckFailed: it cannot be imported, or what is imported is not what was built.
    """
    with tempfile.TemporaryDirectory(prefix="gfx936-import-") as folder:
        with zipfile.ZipFile(wheel) as archive:  # our own file, written a moment ago
            names = [name for name in archive.namelist() if name.startswith("vllm/")]
            archive.extractall(folder, names)
        modules = [name[: name.index(".")].replace("/", ".") for name in names if name.endswith(".so")]
        argv = [python.python, "-c", _IMPORT, folder, *sorted(modules)]
        done = subprocess.run(
            argv, env=dict(env), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=600
        )
        line = next((row for row in reversed(done.stdout.splitlines()) if row.startswith("gfx936-import:")), None)
        if line is None:
            raise errors.CheckFailed(
                f"{wheel.name} cannot be imported by {python.name}",
                (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1],
                "read the line above; `make doctor TARGET=rocm` checks the Python in use",
            )
        result = json.loads(line.partition(":")[2])
        if not Path(result["package"]).is_relative_to(Path(folder).resolve()):
            raise errors.CheckFailed(f"another vllm was imported: {result['package']}", "it hides the one that was built", "uninstall it")
    if result["altered"]:
        raise errors.CheckFailed("the wheel is not what its manifest says", result["altered"][0], "build it again")
    for module, why in result["failed"].items():
        raise errors.CheckFailed(
            f"import {module} fails in {python.name}: {why}",
            "the library needs symbols or libraries that this Python's torch or the DTK does not have",
            "build with the very torch that will serve, in the environment of the same DTK",
        )
    if "llmm1" in result and "LLMM1" not in result["llmm1"]:
        raise errors.CheckFailed("_rocm_C does not bind LLMM1", result["llmm1"], "build it again")
    return {**dict.fromkeys(result["loaded"], "loaded"), "LLMM1": result.get("llmm1", "not bound")}


def constraints(python: Facts) -> str:
    """A pip constraints file under which no resolver can replace what the vendor brought.

    A vendor's distribution is held at its very version. One of VENDOR that is not installed under that name may not come
    in from an index either: it would shadow the vendor's module of the same name.
    """
    lines = [f"# The vendor's packages of {python.name}, as they were found. Written by `make build TARGET=rocm`."]
    held = python.vendor
    lines += [f"{name}=={version}" for name, version in held.items()]
    present = {name.lower().replace("_", "-") for name in held}
    lines += [f"{name}<0  # not installed here, and not to come from an index" for name in VENDOR if name not in present]
    return "\n".join(lines) + "\n"


def write_constraints(folder: Path, python: Facts) -> Path:
    """Write the constraints file into `folder`."""
    path = folder / CONSTRAINTS
    atomic_write(path, constraints(python).encode())
    return path


def install_lines(wheel: Path, constraint: Path, python: Facts) -> list[str]:
    """The exact lines to install with: the wheel alone, then what it needs, with the vendor's packages held."""
    pip = f"{python.python} -m pip"
    return [
        f"{pip} install --no-deps {shown(wheel)}",
        f"{pip} install -c {shown(constraint)} {shown(wheel)}   # only what is missing; the vendor's packages are held",
        f"{pip} check",
    ]
