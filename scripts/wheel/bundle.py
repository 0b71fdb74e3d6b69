"""bundle: one tar with all that a machine without a network needs: this repository, the sdist, the tools' wheels, checksums.

Unpacked there, its `offline/` folder is found by the tools: nothing is fetched. What is not in it: the DTK, a vendor's
torch, model weights, and what vLLM itself requires (the vendor's image has it; more can be added with --add).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.markers import Marker

from scripts.common import errors
from scripts.common.childenv import for_pip
from scripts.common.files import say, sha256_of
from scripts.common.git import clean_environment
from scripts.common.paths import DIST, ROOT, shown
from scripts.common.tools import REQUIREMENTS
from scripts.series.worktree import read_lock
from scripts.upstream.fetch import fetch_pinned
from scripts.upstream.releases import Pin, read_pin
from scripts.wheel.pack import DEFAULT_EPOCH
from scripts.wheel.version import wheel_version

__all__ = ["PYTHONS", "main", "make_bundle", "requirement_lines"]

PYTHONS = ("3.10", "3.11", "3.12")
SUMS = "SHA256SUMS"
# From the newest C library that a DTK image is known with, downwards; pip takes none of these for granted.
_PLATFORMS = (
    "manylinux_2_28",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux_2_12",
    "manylinux2010",
    "manylinux_2_5",
    "manylinux1",
    "linux",
)


def requirement_lines(text: str, python: str) -> list[str]:
    """The requirements that hold for a full Python version (`3.10.12`), with their hashes and without markers.

    pip evaluates markers for the Python it runs in, also when it downloads for another.
    """
    environment = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    kept = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        head, *hashes = re.split(r"\s+(?=--hash=)", line.strip())
        name, _, marker = head.partition(";")
        if not marker.strip() or Marker(marker.strip()).evaluate(environment):
            kept.append(" ".join([name.strip(), *hashes]))
    return kept


def _download_tools(folder: Path, python: str, machine: str) -> None:
    """Wheels for every patch release of a Python: the locked list tells early and late ones apart."""
    say(f"the tools' wheels for Python {python}")
    text = REQUIREMENTS.read_text(encoding="utf-8")
    asked: list[list[str]] = []
    for full in (f"{python}.0", f"{python}.99"):
        lines = requirement_lines(text, full)
        if lines not in asked:
            asked.append(lines)
            _pip_download(folder, lines, full, machine)


def _pip_download(folder: Path, lines: Sequence[str], python: str, machine: str) -> None:
    with tempfile.TemporaryDirectory(prefix="gfx936-bundle-") as work:
        wanted = Path(work) / "tools.txt"
        wanted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        argv = [
            sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--require-hashes",
            "--only-binary", ":all:", "--python-version", python, "--implementation", "cp",
            *(word for platform in _PLATFORMS for word in ("--platform", f"{platform}_{machine}")),
            "--dest", str(folder), "-r", str(wanted),
        ]  # fmt: skip
        done = subprocess.run(argv, env=for_pip(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise errors.NoNetwork(
            f"the tools' wheels for Python {python} could not be had (pip ended with {done.returncode})",
            (done.stderr.strip().splitlines() or ["no message"])[-1],
            "check the network or pip's index; the bundle is made where there is one",
        )


def _repository() -> dict[str, Path]:
    """Tracked files, as they are in the work tree."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, env=clean_environment(), capture_output=True, check=False)
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    if done.returncode or not names:
        raise errors.MissingInput(f"{shown(ROOT)} is no git repository", "the bundle holds what is tracked", "make it in a clone")
    return {name: ROOT / name for name in names if (ROOT / name).is_file()}


def _offline(work: Path, pythons: Sequence[str], machine: str, extra: Sequence[Path]) -> dict[str, Path]:
    """What goes into offline/: sdist, wheels, finished wheels of dist/, and what was added by hand."""
    sdist = fetch_pinned()
    wheels = work / "wheels"
    wheels.mkdir()
    for python in pythons:
        _download_tools(wheels, python, machine)
    files = {f"offline/{sdist.name}": sdist, **{f"offline/wheels/{file.name}": file for file in sorted(wheels.iterdir())}}
    done = [*sorted(DIST.glob("*.whl")), *sorted(DIST.glob("constraints-*.txt"))] if DIST.is_dir() else []
    files |= {f"offline/dist/{file.name}": file for file in done}
    if given := os.environ.get("TRITON_KERNELS_SRC_DIR"):
        folder = Path(given)
        files |= {f"offline/triton_kernels/{f.relative_to(folder).as_posix()}": f for f in sorted(folder.rglob("*.py"))}
    for path in extra:
        if not path.exists():
            raise errors.MissingInput(f"{path} is not there", "--add puts it into the bundle", "give a file or a folder")
        inside = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
        files |= {f"offline/extra/{f.relative_to(path.parent).as_posix()}": f for f in inside}
    return files


def _about(pin: Pin, pythons: Sequence[str], files: Mapping[str, Path]) -> bytes:
    said = {
        "upstream": pin.version,
        "version": wheel_version(pin.version, pin.revision, "rocm"),
        "tree": read_lock()["tree"],
        "pythons": list(pythons),
        "files": len(files),
        "finished_wheels": sorted(Path(name).name for name in files if name.startswith("offline/dist/")),
        "triton_kernels": any(name.startswith("offline/triton_kernels/") for name in files),
        "not_in_it": "the DTK, a torch for HIP, model weights, and vLLM's own requirements (but what --add brought)",
    }
    return (json.dumps(said, indent=1, sort_keys=True) + "\n").encode()


def make_bundle(target: Path, pythons: Sequence[str] = PYTHONS, machine: str = "x86_64", extra: Sequence[Path] = ()) -> Path:
    """Write the bundle to `target`, all of it or nothing. The same content gives the same bytes.

    Raises:
        errors.NoNetwork, errors.DamagedDownload, errors.MissingInput
    """
    pin = read_pin()
    top = "vllm-for-gfx936"
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with tempfile.TemporaryDirectory(prefix="gfx936-bundle-") as folder:
        files = {**_repository(), **_offline(Path(folder), pythons, machine, extra)}
        about = Path(folder) / "bundle.json"
        about.write_bytes(_about(pin, pythons, files))
        files["offline/bundle.json"] = about
        sums = "".join(f"{sha256_of(file)}  {name}\n" for name, file in sorted(files.items()))
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, f"{top}/{SUMS}", io.BytesIO(sums.encode()), len(sums.encode()), False)
            for name, file in sorted(files.items()):
                with file.open("rb") as stream:
                    _add(
                        archive, f"{top}/{name}", stream, file.stat().st_size, os.access(file, os.X_OK) and not name.startswith("offline/")
                    )
    part.replace(target)
    return target


def _add(archive: tarfile.TarFile, name: str, stream: io.BufferedIOBase, size: int, executable: bool) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o755 if executable else 0o644
    info.mtime = DEFAULT_EPOCH
    archive.addfile(info, stream)


def main(argv: Sequence[str]) -> int:
    """Command line of `bundle`."""
    parser = argparse.ArgumentParser(prog="bundle", description=__doc__)
    parser.add_argument("--pythons", default=os.environ.get("PYTHONS") or " ".join(PYTHONS), help="Python versions of the tools' wheels")
    parser.add_argument("--machine", default="x86_64")
    parser.add_argument("--add", type=Path, action="append", default=[], help="a file or folder to put into offline/extra")
    args = parser.parse_args(argv)
    pythons = args.pythons.replace(",", " ").split()
    if not pythons or not all(re.fullmatch(r"3\.\d+", python) for python in pythons):
        raise errors.UserError(
            f"PYTHONS={args.pythons!r} is not a list of versions", "the tools' wheels depend on it", "PYTHONS='3.10 3.11'"
        )
    pin = read_pin()
    target = make_bundle(
        DIST / f"vllm-for-gfx936-{wheel_version(pin.version, pin.revision, 'rocm')}-bundle.tar", pythons, args.machine, args.add
    )
    print(f"{shown(target)} ({target.stat().st_size / 1e6:.0f} MB, sha256 {sha256_of(target)})")
    print("there: " + shlex.join(["tar", "-xf", target.name]) + " && cd vllm-for-gfx936 && sha256sum --quiet -c SHA256SUMS && make doctor")
    return 0
