"""toolchain: a public AMDGPU compiler and HIP headers, unpacked privately from Debian packages; no root, no system change.

For machines without a DTK: the audit compiles for public relatives of the DCU with it. Nothing is installed: apt runs on
private lists, `apt-get download` verifies each package against the archive's signature, `dpkg-deb -x` unpacks it into the
cache. LLVM and the device libraries come from stable suites; the HIP headers from moving ones, in a stated range.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, hold, new_folder, say
from scripts.common.outside import MOST_BYTES, StrictError, read_json
from scripts.common.paths import cache_dir

__all__ = ["PACKAGES", "Package", "Toolchain", "choose", "ensure", "main", "open_toolchain"]


@dataclass(frozen=True)
class Package:
    """One Debian package: where it may come from and which versions are known to work together.

    Attributes:
        name: its name in Debian.
        suites: where it is looked for, best first.
        low, high: versions v with low <= v < high (Debian's order).
        root: the folder of the toolchain it is unpacked into.
    """

    name: str
    suites: tuple[str, ...]
    low: str
    high: str
    root: str


def _llvm(*names: str) -> tuple[Package, ...]:
    return tuple(Package(name, ("bookworm",), "1:19.1.7-3~deb12u1", "1:19.1.8", "llvm") for name in names)


def _libs(*names: str) -> tuple[Package, ...]:
    return tuple(Package(name, ("bookworm",), "0", "9999:0", "llvm") for name in names)


_MOVING = ("forky", "sid")
PACKAGES: tuple[Package, ...] = (
    *_llvm("clang-19", "clang-tools-19", "libclang-common-19-dev", "libclang-cpp19", "libclang-rt-19-dev"),
    *_llvm("libllvm19", "lld-19", "llvm-19", "llvm-19-linker-tools"),
    *_libs("libz3-4", "libedit2", "libbsd0", "libmd0", "libxml2", "libicu72", "libffi8", "libpfm4"),
    # 21 is bitcode that clang 19 cannot read.
    Package("rocm-device-libs-17", ("trixie",), "6.0", "6.1", "rocm"),
    # 5.7 (trixie) lacks hip_fp8.h, which skinny_gemms.cu includes; 7 has not been tried.
    *(Package(name, _MOVING, "6.4", "7~", "rocm") for name in ("libamdhip64-dev", "libamdhip64-6")),
    *(Package(name, _MOVING, "6.4", "7~", "rocm") for name in ("librocthrust-dev", "librocprim-dev", "libhipcub-dev")),
)
_TOOLS = ("clang++", "clang", "ld.lld", "lld", "llvm-readelf", "llvm-objdump", "llvm-cxxfilt", "llvm-objcopy", "clang-offload-bundler")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_RECORD = "toolchain.json"
_LAYOUT = 1  # raise it when _make lays the folder out differently: unpacked ones are then made anew


@dataclass(frozen=True)
class Toolchain:
    """An unpacked toolchain. `versions` maps each package to the version used; `compiler` is clang's own first line."""

    root: Path
    versions: Mapping[str, str]
    compiler: str

    def tool(self, name: str) -> Path:
        """Path of an LLVM tool (`clang++`, `llvm-readelf`, ...)."""
        return self.root / "bin" / name

    @property
    def rocm(self) -> Path:
        """What stands for ROCM_PATH."""
        return self.root / "rocm" / "usr"

    @property
    def device_libs(self) -> Path:
        """Folder of the device bitcode."""
        return self.rocm / "lib" / "llvm-17" / "lib" / "clang" / "17" / "amdgcn" / "bitcode"

    @property
    def libraries(self) -> Path:
        """Folder of libamdhip64, for LIBRARY_PATH."""
        return self.rocm / "lib" / "x86_64-linux-gnu"


def choose(offers: Iterable[tuple[str, str]], package: Package) -> str | None:
    """Of (version, suite) offers the one to take: first suite first, then the newest version within the range."""
    for suite in package.suites:
        fit = [v for v, s in offers if s == suite and _holds(v, "ge", package.low) and _holds(v, "lt", package.high)]
        best = None
        for version in fit:
            if best is None or _holds(version, "gt", best):
                best = version
        if best:
            return best
    return None


def _holds(left: str, relation: str, right: str) -> bool:
    return subprocess.run(["dpkg", "--compare-versions", left, relation, right], check=False).returncode == 0


@dataclass(frozen=True)
class _Unpacked:
    versions: Mapping[str, str]
    compiler: str


def open_toolchain(root: Path) -> Toolchain:
    """The toolchain in `root`.

    Raises:
        errors.MissingInput: there is none, or not a whole one.
    """
    try:
        found: _Unpacked = read_json(_Unpacked, root / _RECORD, MOST_BYTES)
        return Toolchain(root, found.versions, found.compiler)
    except (OSError, StrictError):
        raise errors.MissingInput(
            f"{root} is not a toolchain that `make toolchain` unpacked",
            f"{_RECORD} is missing in it or not whole",
            "unset GFX936_TOOLCHAIN, or point it at one",
        ) from None


def ensure() -> Toolchain:
    """The toolchain, unpacked on first use. GFX936_TOOLCHAIN=folder uses one that is there; GFX936_DEBS=folder takes the
    packages from a folder instead of the archive.

    Raises:
        errors.MissingInput: a program or package that this needs cannot be had.
        errors.NoNetwork: the archive cannot be reached.
    """
    if given := os.environ.get("GFX936_TOOLCHAIN"):
        return open_toolchain(Path(given).resolve())
    folder = cache_dir() / "toolchain"
    key = hashlib.sha256(json.dumps([_LAYOUT, _TOOLS, [asdict(p) for p in PACKAGES]]).encode()).hexdigest()[:16]
    final = folder / key
    with hold(folder / ".lock", "unpacking the toolchain"):
        if not (final / _RECORD).is_file():
            _need_programs()
            with new_folder(final) as work:
                _make(work)
    return open_toolchain(final)


def _need_programs() -> None:
    for program, package in (("apt-get", "apt"), ("apt-cache", "apt"), ("dpkg-deb", "dpkg"), ("dpkg", "dpkg"), ("c++", "g++")):
        if shutil.which(program) is None:
            raise errors.MissingInput(
                f"{program} is missing",
                "the private toolchain comes from Debian packages and compiles against the system's C++ library",
                f"run this on Debian or a derivative with {package}, or set GFX936_TOOLCHAIN to an unpacked toolchain",
            )


def _make(work: Path) -> None:
    if given := os.environ.get("GFX936_DEBS"):
        files, versions = _from_folder(Path(given).resolve())
    else:
        files, versions = _download(work / "apt")
    for package in PACKAGES:
        root = work / package.root
        root.mkdir(exist_ok=True)
        _run(["dpkg-deb", "-x", str(files[package.name]), str(root)], f"unpacking {package.name}")
    shutil.rmtree(work / "apt", ignore_errors=True)
    # CMake's HIP support looks for PREFIX/lib/cmake and the packages' own files say /lib: both without "multiarch".
    (work / "rocm" / "usr" / "lib" / "cmake").symlink_to("x86_64-linux-gnu/cmake")
    (work / "rocm" / "lib").symlink_to("usr/lib")
    for tool in _TOOLS:
        _wrapper(work / "bin" / tool, tool)
    compiler = _smoke(Toolchain(work, versions, ""))
    atomic_write(work / _RECORD, json.dumps({"versions": versions, "compiler": compiler}, indent=1, sort_keys=True).encode())


def _wrapper(path: Path, tool: str) -> None:
    """A start script: Debian's LLVM finds its libraries in the system's folder only, which is not ours to fill."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        '#!/bin/sh\nroot=$(dirname "$(dirname "$(readlink -f "$0")")")\n'
        'LD_LIBRARY_PATH="$root/llvm/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\nexport LD_LIBRARY_PATH\n'
        f'exec "$root/llvm/usr/lib/llvm-19/bin/{tool}" "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)


def _smoke(made: Toolchain) -> str:
    """Compile a kernel for gfx906; clang's version line. A toolchain that cannot is not recorded."""
    source = made.root / "smoke.hip"
    source.write_text("#include <hip/hip_fp8.h>\n__global__ void k(float* p) { *p = 1.0f; }\n", encoding="utf-8")
    _run(
        [
            str(made.tool("clang++")), "-x", "hip", "--offload-arch=gfx906", "--cuda-device-only", "--no-gpu-bundle-output",
            f"--rocm-path={made.rocm}", f"--rocm-device-lib-path={made.device_libs}", "-isystem", str(made.rocm / "include"),
            "-c", str(source), "-o", str(made.root / "smoke.co"),
        ],
        "compiling a kernel with the unpacked toolchain",
    )  # fmt: skip
    source.unlink()
    (made.root / "smoke.co").unlink()
    return _run([str(made.tool("clang++")), "--version"], "asking the compiler's version").splitlines()[0]


def _from_folder(folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    found: dict[str, tuple[str, Path]] = {}
    for file in sorted(folder.glob("*.deb")):
        name, version = _run(["dpkg-deb", "-W", "--showformat=${Package} ${Version}", str(file)], f"reading {file.name}").split()
        found[name] = (version, file)
    for package in PACKAGES:
        version = found.get(package.name, ("none", folder))[0]
        if package.name not in found or not choose([(version, package.suites[0])], package):
            raise _no_fit(package, f"GFX936_DEBS has {version}")
    return {n: f for n, (_, f) in found.items()}, {p.name: found[p.name][0] for p in PACKAGES}


def _download(apt: Path) -> tuple[dict[str, Path], dict[str, str]]:
    env = _private_apt(apt)
    say("toolchain: reading the package lists of " + ", ".join(_suites()))
    _apt(["apt-get", "-q", "update"], env, "reading the package lists")
    versions = {}
    for package in PACKAGES:
        shown = _apt(["apt-cache", "madison", package.name], env, f"looking up {package.name}")
        offers = _offers(shown)
        version = choose(offers, package)
        if version is None:
            raise _no_fit(package, "on offer: " + (", ".join(f"{v} ({s})" for v, s in offers) or "none"))
        versions[package.name] = version
    debs = apt / "debs"
    debs.mkdir()
    say(f"toolchain: fetching {len(versions)} packages (about 95 MB)")
    _apt(["apt-get", "-q", "download", *(f"{n}={v}" for n, v in versions.items())], env, "fetching the packages", debs)
    files = {file.name.split("_", 1)[0]: file for file in debs.glob("*.deb")}
    return files, versions


def _offers(madison: str) -> list[tuple[str, str]]:
    """(version, suite) rows of `apt-cache madison`: `name | version | site suite/component arch Packages`."""
    rows = [line.split("|") for line in madison.splitlines() if line.count("|") == 2]
    return [(row[1].strip(), row[2].split()[1].split("/")[0]) for row in rows if len(row[2].split()) > 1]


def _suites() -> list[str]:
    return list(dict.fromkeys(suite for package in PACKAGES for suite in package.suites))


def _private_apt(apt: Path) -> dict[str, str]:
    """apt with its own lists, cache and state, on the site that the system's own sources name."""
    for folder in ("lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d", "etc/trusted.gpg.d", "state"):
        (apt / folder).mkdir(parents=True)
    (apt / "state" / "status").touch()
    if not _KEYRING.is_file():
        raise errors.MissingInput(
            f"{_KEYRING} is missing",
            "packages are taken only where Debian's signature can be verified",
            "install debian-archive-keyring, or set GFX936_DEBS to a folder with the packages",
        )
    site = _site()
    lines = [f"deb [arch=amd64 signed-by={_KEYRING}] {site} {suite} main\n" for suite in _suites()]
    (apt / "etc" / "sources.list").write_text("".join(lines), encoding="utf-8")
    # A frozen mirror serves lists whose validity date has passed; their signature is verified all the same.
    settings = {
        "Dir::Etc": apt / "etc", "Dir::Etc::sourcelist": apt / "etc" / "sources.list", "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": apt / "state", "Dir::State::lists": apt / "lists", "Dir::State::status": apt / "state" / "status",
        "Dir::Cache": apt / "cache", "APT::Architecture": "amd64", "APT::Sandbox::User": "", "Acquire::Languages": "none",
        "Acquire::Check-Valid-Until": "false", "Acquire::Retries": "3",
    }  # fmt: skip
    config = apt / "apt.conf"
    # What the machine's own configuration says about proxies and certificates holds here too.
    own = _run(["apt-config", "dump", "--format", '%F "%v";%n', "Acquire"], "reading apt's configuration")
    config.write_text(own + "".join(f'{key} "{value}";\n' for key, value in settings.items()), encoding="utf-8")
    return {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C"}


def _site() -> str:
    listed = _run(["apt-get", "indextargets", "--format", "$(CREATED_BY)|$(RELEASE)|$(COMPONENT)|$(SITE)"], "reading apt's sources")
    names = {*_suites(), "stable", "testing", "unstable", "oldstable", "bullseye"}
    for line in listed.splitlines():
        kind, release, component, site = [*line.split("|"), "", "", ""][:4]
        if kind == "Packages" and component == "main" and release in names:
            return site
    raise errors.MissingInput(
        "apt's sources name no Debian archive",
        "the packages come from the archive that this system itself uses",
        "add one to /etc/apt/sources.list.d, or set GFX936_DEBS to a folder with the packages",
    )


def _apt(argv: Sequence[str], env: Mapping[str, str], doing: str, cwd: Path | None = None) -> str:
    done = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")] or ["no message"]
        raise errors.NoNetwork(
            f"{doing} failed ({argv[0]} ended with {done.returncode})",
            lines[0],
            "check the network or the proxy; offline, set GFX936_DEBS to a folder with the packages",
        )
    return done.stdout


def _run(argv: Sequence[str], doing: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise errors.MissingInput(
            f"{doing} failed ({Path(argv[0]).name} ended with {done.returncode})",
            (done.stderr.strip().splitlines() or ["no message"])[0],
            "run `make toolchain` again; if it stays, the packages do not fit this system",
        )
    return done.stdout


def _no_fit(package: Package, why: str) -> errors.Fatal:
    return errors.MissingInput(
        f"no {package.name} with {package.low} <= version < {package.high} in {', '.join(package.suites)}",
        why,
        "the range in scripts/audit/toolchain.py is what was shown to work: widen it and run the audit, or set GFX936_DEBS",
    )


def main(argv: Sequence[str]) -> int:
    """Command line of `toolchain`."""
    parser = argparse.ArgumentParser(prog="toolchain", description=__doc__)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    made = ensure()
    if args.json:
        print(json.dumps({"root": str(made.root), "compiler": made.compiler, "versions": dict(made.versions)}, indent=1, sort_keys=True))
    else:
        print(f"{made.compiler}\n{made.root}")
        for name, version in sorted(made.versions.items()):
            print(f"  {name} {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
