"""The DTK (or ROCm) of this machine: its environment, its compiler, and what that compiler really makes. Bare Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors

__all__ = ["DEFAULT_ENV", "Dtk", "find", "hip_compiler", "hip_lang_root", "made_for", "source", "version_line"]

DEFAULT_ENV = Path("/opt/dtk/env.sh")
_OTHER_PREFIXES = (Path("/opt/dtk"), Path("/opt/rocm"))

# The path is an argument, never text of this script. The vendor's file may read unset variables, print, end non-zero or
# call `exit`: the environment comes back in all of these cases, on a channel that its printing does not reach.
_SOURCE = """
gfx936_file=$1 gfx936_env=$2
shift 2
exec 3>&1 1>&2
trap '"$gfx936_env" -0 >&3' EXIT
source "$gfx936_file"
"""
_NOT_TAKEN = {"_", "SHLVL", "PWD", "OLDPWD"}


@dataclass(frozen=True)
class Dtk:
    """A toolchain prefix and the environment to use it in.

    Attributes:
        prefix: ROCM_PATH.
        env: the whole environment for compilers and for the Python that has the HIP torch.
        origin: how it was found, for people.
    """

    prefix: Path
    env: Mapping[str, str]
    origin: str


def source(file: Path, environ: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """The environment after `source FILE` in a bash of its own, and the status that the file ended with.

    Raises:
        errors.MissingInput: no such file, or no bash.
        errors.CannotBuild: the file never came to an end, or destroyed the shell.
    """
    bash, env_program = shutil.which("bash"), shutil.which("env")
    if not file.is_file():
        raise errors.MissingInput(f"{file} is not a file", "the DTK's environment comes from it", "set DTK_ENV to the DTK's env.sh")
    if bash is None or env_program is None:
        raise errors.MissingInput("bash is missing", "the DTK's env.sh is written for it", "install bash, or source env.sh yourself")
    clean = {key: value for key, value in environ.items() if key not in ("BASH_ENV", "ENV")}
    argv = [bash, "--noprofile", "--norc", "-c", _SOURCE, "dtk-env", str(file), env_program]
    try:
        done = subprocess.run(argv, env=clean, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        raise _broken(file, "it did not end within two minutes") from None
    pairs = [row.partition("=") for row in os.fsdecode(done.stdout).split("\0") if "=" in row]
    found = {key: value for key, _, value in pairs if key not in _NOT_TAKEN}
    if "PATH" not in found:
        raise _broken(file, f"no environment came back (bash ended with {done.returncode})")
    return found, done.returncode


def _broken(file: Path, why: str) -> errors.Fatal:
    return errors.CannotBuild(f"{file} cannot be sourced", why, "source it in your shell, see what it says, and run this again there")


def find(environ: Mapping[str, str] | None = None, default_env: Path | None = None) -> Dtk | None:
    """The toolchain: DTK_ENV=file names an env.sh; else ROCM_PATH as it is set; else /opt/dtk/env.sh; else a known prefix.

    An environment that a person has sourced already is never sourced over.

    Raises:
        errors.MissingInput, errors.CannotBuild: see `source`; and ROCM_PATH that is no folder.
    """
    environ = os.environ if environ is None else environ
    default_env = default_env or DEFAULT_ENV
    given, prefix = environ.get("DTK_ENV"), environ.get("ROCM_PATH")
    if given or (not prefix and default_env.is_file()):
        file = Path(given) if given else default_env
        env, status = source(file, environ)
        root = Path(env.get("ROCM_PATH") or file.resolve().parent)
        _folder(root, f"as {file} sets it")
        note = f" (it ended with {status}, which says nothing)" if status else ""
        return Dtk(root, {**env, "ROCM_PATH": str(root)}, f"sourced {file}{note}")
    if prefix:
        _folder(Path(prefix), "as the environment has it")
        return Dtk(Path(prefix), dict(environ), "ROCM_PATH of the environment")
    for root in (default_env.parent, *_OTHER_PREFIXES):
        if root.is_dir() and hip_compiler(Dtk(root, environ, "")) is not None:
            return Dtk(root, {**environ, "ROCM_PATH": str(root)}, f"{root}, which has no env.sh")
    return None


def _folder(root: Path, how: str) -> None:
    if not root.is_dir():
        raise errors.MissingInput(
            f"ROCM_PATH={root} ({how}) is not a folder",
            "the compiler, headers and libraries of the DTK are looked for there, and nowhere else",
            "set ROCM_PATH to the DTK's folder, or unset it and set DTK_ENV to its env.sh",
        )


def hip_compiler(dtk: Dtk) -> Path | None:
    """The DTK's own clang++ (CMake refuses the hipcc wrapper): HIPCXX where set, else below the prefix."""
    chosen = dtk.env.get("HIPCXX")
    folders = [dtk.prefix / "lib" / "llvm" / "bin", dtk.prefix / "llvm" / "bin", dtk.prefix / "hip" / "bin"]
    if clang_path := dtk.env.get("HIP_CLANG_PATH"):
        folders.insert(0, Path(clang_path))
    candidates = [Path(chosen)] if chosen else [folder / "clang++" for folder in folders]
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def hip_lang_root(dtk: Dtk) -> Path | None:
    """The prefix that holds CMake's package for the HIP language, which a build cannot do without."""
    named = [dtk.prefix, dtk.prefix / "hip", *([Path(dtk.env["HIP_PATH"])] if dtk.env.get("HIP_PATH") else [])]
    for root in [*named, *sorted(path for path in dtk.prefix.glob("*") if path.is_dir())]:
        if any((root / lib / "cmake" / "hip-lang" / "hip-lang-config.cmake").is_file() for lib in ("lib", "lib64")):
            return root
    return None


def version_line(compiler: Path, env: Mapping[str, str]) -> str:
    """First line of the compiler's `--version`; "" when it cannot be run."""
    try:
        done = subprocess.run([str(compiler), "--version"], env=dict(env), capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.splitlines() or [""])[0].strip() if done.returncode == 0 else ""


def made_for(compiler: Path, arch: str, env: Mapping[str, str]) -> tuple[str, str]:
    """The arch that the compiler makes code for when asked for `arch`, and its message; ("", why) when it refuses.

    Read from the assembly of an empty kernel: that a compiler *takes* an arch says nothing about what it makes.
    """
    with tempfile.TemporaryDirectory(prefix="gfx936-probe-") as folder:
        kernel, assembly = Path(folder) / "probe.hip", Path(folder) / "probe.s"
        kernel.write_text("__attribute__((global)) void probe() {}\n", encoding="ascii")
        argv = [
            str(compiler), "-x", "hip", f"--offload-arch={arch}", "--cuda-device-only", "--no-gpu-bundle-output",
            "-nogpuinc", "-nogpulib", "-S", str(kernel), "-o", str(assembly),
        ]  # fmt: skip
        try:
            done = subprocess.run(argv, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", f"{compiler.name} cannot be run: {type(error).__name__}"
        if done.returncode or not assembly.is_file():
            lines = [line for line in done.stderr.splitlines() if "error:" in line] or [f"it ended with {done.returncode}"]
            return "", lines[0].strip()
        match = re.search(r'\.amdgcn_target\s+"[^"]*--([^"]+)"', assembly.read_text(encoding="utf-8", errors="replace"))
    return (match[1].split(":")[0], "") if match else ("", "its assembly names no target")
