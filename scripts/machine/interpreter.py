"""The Python that a device build is for: asked in one child process, and never changed. Runs on a bare Python."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.common.child import ask
from scripts.common.childenv import absolute, for_python
from scripts.common.overlay import overlay_module

__all__ = ["VENDOR", "Facts", "facts", "python_in_use", "vllm_copies"]

VENDOR = ("torch", "torchvision", "torchaudio", "triton", "amdsmi")
"""Distributions that a DTK image brings as the vendor's own builds; nothing here may replace them."""

_MARK = "gfx936-facts:"
# A torch of another machine's ROCm, or a broken one, raises almost anything while it is imported. A folder such as ~orch-2.9.0.dist-info
# is what an uninstall that broke off leaves; of two whole ones the version that is imported counts.
_PROBE = """
import importlib.util, json, os, re, sys, sysconfig
facts = {"version": list(sys.version_info[:3]), "path": sys.path, "include": sysconfig.get_path("include")}
facts["pip"], facts["ensurepip"] = (importlib.util.find_spec(name) is not None for name in ("pip", "ensurepip"))
vendor = sys.argv[2].split()
found, owners, wanted, points = {}, {}, {}, set()
def plain(name):
    return re.sub("[-_.]+", "-", name).lower()
def modules(d):
    return set((d.read_text("top_level.txt") or "").split()) | {str(file).split("/")[0] for file in d.files or ()}
try:
    import importlib.metadata as meta
    whole = []
    for d in meta.distributions():
        folder, name, version = os.path.basename(str(getattr(d, "_path", ""))), d.metadata["Name"], d.metadata["Version"]
        if name and version and (not folder or folder[0].isalnum()):
            whole.append(d)
            found.setdefault(plain(name), []).append(version)
            points |= {(p.name, p.value, name) for p in d.entry_points if p.group == "vllm.platform_plugins"}
            for row in d.requires or ():
                asked = re.match("[A-Za-z0-9._-]+", row)
                if asked and plain(asked[0]) in vendor and "extra ==" not in row:
                    wanted.setdefault(plain(asked[0]), []).append(name)
    facts["plugins"] = sorted(points)
    for name in vendor:
        if name not in found and importlib.util.find_spec(name) is not None:
            owners[name] = next((plain(d.metadata["Name"]) for d in whole if name in modules(d)), "")
except Exception as error:
    facts["metadata_error"] = f"{type(error).__name__}: {error}"
facts["owners"], facts["wanted"] = owners, wanted
try:
    import torch
    facts["torch"], facts["hip"] = torch.__version__, getattr(torch.version, "hip", None) or ""
    facts["cuda"], facts["torch_file"] = getattr(torch.version, "cuda", None) or "", torch.__file__
    facts["archs"] = (torch._C._cuda_getArchFlags() or "").split() if hasattr(torch, "_C") else []
except Exception as error:
    facts["torch_error"] = f"{type(error).__name__}: {error}"
runs = {"torch": facts.get("torch")}
facts["distributions"] = {name: runs.get(name) if runs.get(name) in seen else seen[0] for name, seen in found.items()}
print("\\n" + sys.argv[1] + json.dumps(facts))
"""


@dataclass(frozen=True)
class Facts:
    """One interpreter.

    Attributes:
        python: the program asked.
        error: why it could not be asked; "" if it could, and only then the rest holds.
        version: its version.
        path: its `sys.path`.
        include: folder where its `Python.h` would be.
        torch: version of its torch, "" without one.
        hip: HIP version that torch was built for, "" for another build.
        cuda: CUDA version that torch was built for, "" for another build.
        torch_file: `torch.__file__`.
        archs: archs that torch says it has device code for; empty where it does not say.
        torch_error: why `import torch` failed, "" if it did not.
        distributions: installed distributions, name -> version.
        plugins: (name, value, distribution) of each vLLM platform plugin.
        owners: module of VENDOR that no distribution of that name brought -> the distribution that did, "" where none says so.
        wanted: name of VENDOR -> installed distributions that require it.
        pip, ensurepip: whether it has them.
    """

    python: str
    error: str = ""
    version: tuple[int, ...] = ()
    path: tuple[str, ...] = ()
    include: str = ""
    torch: str = ""
    hip: str = ""
    cuda: str = ""
    torch_file: str = ""
    archs: tuple[str, ...] = ()
    torch_error: str = ""
    distributions: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[tuple[str, str, str], ...] = ()
    owners: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pip: bool = True
    ensurepip: bool = True

    @property
    def name(self) -> str:
        """The interpreter for people: `python 3.10.12`."""
        return f"{Path(self.python).name} ({'.'.join(map(str, self.version)) or self.error})"

    @property
    def vendor(self) -> dict[str, str]:
        """The installed ones of VENDOR, and whatever else has a local version: a vendor's build of a public package."""
        return {
            name: version
            for name, version in sorted(self.distributions.items())
            if (name.lower().replace("_", "-") in VENDOR or "+" in version) and name.lower() != "vllm"
        }


def python_in_use(environ: Mapping[str, str] | None = None) -> str:
    """The interpreter that a device build is for: $PYTHON, else the one running this. Absolute: it is asked from other folders."""
    named = {name: value for name, value in (os.environ if environ is None else environ).items() if name in ("PYTHON", "PATH")}
    absolute(named)
    return named.get("PYTHON") or sys.executable


def facts(python: str, env: Mapping[str, str] | None = None) -> Facts:
    """What `python` is, asked once a process. `env` is the environment to ask in (the DTK's; a torch for HIP needs its libraries)."""
    return _facts(python, tuple(sorted((os.environ if env is None else env).items())))


@functools.lru_cache(maxsize=8)
def _facts(python: str, env: tuple[tuple[str, str], ...]) -> Facts:
    done = ask([python, "-c", _PROBE, _MARK, " ".join(VENDOR)], env=for_python(dict(env)), cwd="/", seconds=300)
    line = next((line for line in reversed(done.out.splitlines()) if line.startswith(_MARK)), None)
    if line is None:
        return Facts(python, error=done.why or f"ended with {done.code}: {done.last}")
    raw = json.loads(line[len(_MARK) :])
    return Facts(
        python,
        "",
        tuple(raw["version"]),
        tuple(raw["path"]),
        raw["include"],
        raw.get("torch", ""),
        raw.get("hip", ""),
        raw.get("cuda", ""),
        raw.get("torch_file", ""),
        tuple(str(arch).split(":")[0] for arch in raw.get("archs", [])),
        raw.get("torch_error", ""),
        raw.get("distributions", {}),
        tuple((str(a), str(b), str(c)) for a, b, c in raw.get("plugins", [])),
        raw.get("owners", {}),
        raw.get("wanted", {}),
        raw.get("pip", True),
        raw.get("ensurepip", True),
    )


def vllm_copies(found: Facts) -> list[Path]:
    """Every vllm on the interpreter's search path, in import order: the first is the one that runs."""
    copies: list[Path] = overlay_module("manifest").copies([entry for entry in found.path if entry])
    return copies
