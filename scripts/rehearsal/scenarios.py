"""Scenarios for the serving interpreter: each in a fresh process that shares nothing with the tools.

Standard library only: the table's verb uses it from the tools environment, the runtime tests from the serving one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.paths import ROOT

__all__ = ["FAKES", "PROBES", "VENDOR", "Answer", "Zygote", "link_tree", "own_copy", "zygote"]

PROBES = ROOT / "scripts" / "rehearsal" / "probes"
FAKES = PROBES / "fakes"
VENDOR = ROOT / "scripts" / "rehearsal" / "vendor"
"""For sys.path: the stand-in of the vendor's plugin."""


@dataclass(frozen=True)
class Answer:
    """What a scenario left in `result` (None where it failed), its failure in one line, and what it printed."""

    value: Any
    error: str | None
    traceback: str
    log: str


@dataclass(frozen=True)
class Zygote:
    """The process that forks once a scenario (see scripts/rehearsal/probes/zygote.py)."""

    process: subprocess.Popen[str]

    def run(
        self,
        code: str,
        path: Sequence[Path],
        env: Mapping[str, str] | None = None,
        hip: str | None = "6.3.26093",
        device: str | None = None,
    ) -> Answer:
        """Run `code` with `path` in front of sys.path; `hip` is torch.version.hip, `device` the arch torch would name."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"code": code, "path": [str(p) for p in path], "env": dict(env or {}), "hip": hip, "arch": device}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the zygote died; run `PYTHON scripts/rehearsal/probes/zygote.py` by hand to see why")
        data = json.loads(line)
        return Answer(data.get("value"), data.get("error"), data.get("traceback", ""), data["log"])


@contextmanager
def zygote(python: Path | str) -> Iterator[Zygote]:
    """A zygote in the interpreter `python`, which has torch; ended when the block is left."""
    argv = [str(python), str(PROBES / "zygote.py")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        try:
            yield Zygote(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def link_tree(package: Path, folder: Path, version: str = "0.18.1+gfx936.1") -> Path:
    """`folder` for sys.path: the vllm `package` without compiled libraries, as a build for a GPU.

    The CPU wheel's libraries must not be loaded by the ROCm platform, and a distribution whose version says `cpu` makes
    vLLM choose the CPU platform; the Python is the package's own, file by file.
    """
    (folder / "vllm").mkdir(parents=True)
    for entry in package.iterdir():
        if entry.suffix != ".so" and entry.name != "__pycache__":
            (folder / "vllm" / entry.name).symlink_to(entry)
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
    return folder


def own_copy(tree: Path, name: str) -> Path:
    """Make `name` of a linked tree a file of the tree's own; every folder above it becomes one too."""
    place = tree
    for part in ("vllm", *Path(name).parts):
        place = place / part
        if place.is_symlink():
            target = place.resolve()
            place.unlink()
            if target.is_dir():
                place.mkdir()
                for entry in target.iterdir():
                    if entry.name != "__pycache__":
                        (place / entry.name).symlink_to(entry)
            else:
                shutil.copy2(target, place)
    return place
