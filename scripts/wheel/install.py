"""After a device build: audit of the wheel, import check in a child process, and how to install it beside a vendor's torch."""

from __future__ import annotations

import email
import json
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from scripts.common import errors
from scripts.common.child import ask
from scripts.common.childenv import for_python
from scripts.common.files import atomic_write
from scripts.common.paths import shown
from scripts.machine.interpreter import VENDOR, Facts

__all__ = ["CONSTRAINTS", "OVERRIDES", "constraints", "held_back", "import_check", "install_lines", "overrides", "write_constraints"]

CONSTRAINTS = "constraints-gfx936.txt"
OVERRIDES = "overrides-gfx936.txt"

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
        done = ask(argv, env=for_python(env), cwd=folder, seconds=600)
        line = next((row for row in reversed(done.out.splitlines()) if row.startswith("gfx936-import:")), None)
        if line is None:
            raise errors.CheckFailed(
                f"{wheel.name} cannot be imported by {python.name}",
                done.last if done.why or done.err.strip() else f"it ended with {done.code}",
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
    """A constraints file under which no resolver changes anything that is installed.

    Every distribution is held at its very version: a vendor's torch is compiled against the numpy that is there, and so on. One of VENDOR
    that is not installed under that name may not come in from an index: it would shadow the vendor's module of the same name.
    """
    lines = [f"# What {python.name} has, as it was found. Written by `make build TARGET=rocm`."]
    for name, version in sorted(python.distributions.items()):
        if canonicalize_name(name) == "vllm":
            continue
        try:
            lines.append(f"{name}=={Version(version)}" if "+" not in version else f"{name}=={version}")
        except InvalidVersion:
            lines.append(f"# {name} {version}: no version that pip can hold")
    present = {canonicalize_name(name) for name in python.distributions}
    for name in (name for name in VENDOR if name not in present):
        owner = python.owners.get(name)
        why = f"its module is that of {owner}" if owner else "not installed here"
        lines.append(f"{name}<0  # {why}, and not to come from an index")
    return "\n".join(lines) + "\n"


def overrides(python: Facts) -> str:
    """Requirements that a resolver is to leave out, because a distribution of another name brought the module: for uv's --override."""
    return "".join(
        f'{name} ; python_version < "0"  # its module is that of {owner}\n' for name, owner in sorted(python.owners.items()) if owner
    )


def write_constraints(folder: Path, python: Facts) -> Path:
    """Write the constraints, and where they are needed the overrides, into `folder`."""
    path = folder / CONSTRAINTS
    atomic_write(path, constraints(python).encode())
    if text := overrides(python):
        atomic_write(folder / OVERRIDES, text.encode())
    else:
        (folder / OVERRIDES).unlink(missing_ok=True)
    return path


def install_lines(wheel: Path, constraint: Path, python: Facts) -> list[str]:
    """The exact lines to install with: the wheel alone; what would come with it; what it needs, with all that is there held.

    They run pip of the Python in use; where that has none, or where a requirement has to be left out, the uv of the tools.
    """
    mine, held, target = shlex.quote(shown(wheel)), shlex.quote(shown(constraint)), shlex.quote(python.python)
    pip, uv = f"{target} -m pip", f"{shlex.quote(shown(Path(sys.executable)))} -m uv pip"
    left_out = f" --override {shlex.quote(shown(constraint.with_name(OVERRIDES)))}" if overrides(python) else ""
    if python.pip and not left_out:
        first, second, last = f"{pip} install --no-deps {mine}", f"{pip} install -c {held} {mine}", f"{pip} check"
    else:
        first = f"{pip} install --no-deps {mine}" if python.pip else f"{uv} install --python {target} --no-deps {mine}"
        second, last = f"{uv} install --python {target} -c {held}{left_out} {mine}", f"{uv} check --python {target}"
    names = ", ".join(f"{name} (its module is that of {owner})" for name, owner in sorted(python.owners.items()) if owner)
    return [
        first,
        second.replace(" install ", " install --dry-run ", 1) + "   # says what the next line would bring, and changes nothing",
        f"{second}   # only what is missing; everything that is there is held",
        f"{last}{f'   # will miss {names}' if names else ''}",
    ]


def held_back(wheel: Path, python: Facts) -> list[str]:
    """What the wheel asks for in another version than the one that is there and held, a line each: with `--no-deps` it stays as it is."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        asked = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    there = {canonicalize_name(name): version for name, version in python.distributions.items()}
    environment = {
        "python_version": ".".join(map(str, python.version[:2])),
        "python_full_version": ".".join(map(str, python.version)),
        "extra": "",
    }
    lines = []
    for requirement in map(Requirement, asked):
        version = there.get(canonicalize_name(requirement.name))
        if version is None or (requirement.marker and not requirement.marker.evaluate(environment)):
            continue
        try:
            fits = requirement.specifier.contains(version, prereleases=True)
        except InvalidVersion:
            fits = False
        if not fits:
            lines.append(f"{requirement.name} {version} is held, vLLM asks for {requirement.specifier}")
    return lines
