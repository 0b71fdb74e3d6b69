"""The DTK (or ROCm) of this machine: its environment, its compiler, and what that compiler really makes. Bare Python."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.child import ask
from scripts.common.childenv import for_build
from scripts.machine.envsh import source
from scripts.machine.nodes import system

__all__ = [
    "DEFAULT_ENV",
    "Dtk",
    "chosen_compiler",
    "find",
    "hip_compiler",
    "hip_lang_root",
    "made_for",
    "outer_prefix",
    "signs",
    "version_line",
]

DEFAULT_ENV = Path("/opt/dtk/env.sh")
_OTHER_PREFIXES = (Path("/opt/dtk"), Path("/opt/rocm"))


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


def find(environ: Mapping[str, str] | None = None, default_env: Path | None = None) -> Dtk | None:
    """The toolchain: DTK_ENV=file names an env.sh; else ROCM_PATH as it is set; else /opt/dtk/env.sh; else a known prefix.

    An environment that a person has sourced already is never sourced over.

    Raises:
        errors.MissingInput, errors.CannotBuild: see `source`; and ROCM_PATH that is no folder.
    """
    environ = os.environ if environ is None else environ
    default_env = default_env or system(DEFAULT_ENV, environ)
    given, prefix = environ.get("DTK_ENV"), environ.get("ROCM_PATH")
    if prefix and not given:
        _folder(Path(prefix), "as the environment has it")
        if not _sourced(Path(prefix), environ) and (Path(prefix) / "env.sh").is_file():
            given = str(Path(prefix) / "env.sh")  # an image sets ROCM_PATH and leaves the rest to env.sh
        else:
            return Dtk(Path(prefix), dict(environ), "ROCM_PATH of the environment")
    if given or default_env.is_file():
        file = Path(given).absolute() if given else default_env
        env, status = source(file, environ)
        root, own = Path(env.get("ROCM_PATH") or file.resolve().parent), file.resolve().parent
        _folder(root, f"as {file} sets it")
        note = f" (it ended with {status}, which says nothing)" if status else ""
        if root.resolve() != own and hip_lang_root(Dtk(root, env, "")) is None and hip_lang_root(Dtk(own, env, "")) is not None:
            root, note = own, f"{note}; its ROCM_PATH={root} holds no compiler"
        return Dtk(root, {**env, "ROCM_PATH": str(root)}, f"sourced {file}{note}")
    for root in (default_env.parent, *(system(path, environ) for path in _OTHER_PREFIXES)):
        if root.is_dir() and hip_compiler(Dtk(root, environ, "")) is not None:
            return Dtk(root, {**environ, "ROCM_PATH": str(root)}, f"{root}, which has no env.sh")
    return None


def _sourced(prefix: Path, environ: Mapping[str, str]) -> bool:
    """Whether a search path of the environment leads below `prefix`, as after `source PREFIX/env.sh`."""
    entries = [part for name in ("LD_LIBRARY_PATH", "PATH") for part in environ.get(name, "").split(os.pathsep) if part]
    return any(Path(part).is_relative_to(place) for part in entries for place in (prefix, prefix.resolve()))


def signs(environ: Mapping[str, str], default_env: Path | None = None) -> tuple[str, ...]:
    """What says that a DTK is, or is meant to be, on this machine. An AMD ROCm in /opt/rocm is no such sign."""
    default_env = default_env or system(DEFAULT_ENV, environ)
    found = [f"DTK_ENV={environ['DTK_ENV']}"] if environ.get("DTK_ENV") else []
    if prefix := environ.get("ROCM_PATH"):
        root = Path(prefix)
        if not root.is_dir() or "dtk" in str(root.resolve()).lower() or any((root / name).exists() for name in ("env.sh", ".hyhal")):
            found.append(f"ROCM_PATH={prefix}")
    if default_env.parent.is_dir():
        found.append(f"a DTK in {default_env.parent}")
    return tuple(found)


def outer_prefix(dtk: Dtk) -> Path | None:
    """The folder above the prefix that has what the prefix lacks (ROCM_PATH may point into PREFIX/.hyhal), or None."""
    return next((root for root in list(dtk.prefix.parents)[:3] if hip_lang_root(Dtk(root, dtk.env, "")) not in (None, dtk.prefix)), None)


def _folder(root: Path, how: str) -> None:
    if not root.is_dir():
        raise errors.MissingInput(
            f"ROCM_PATH={root} ({how}) is not a folder",
            "the compiler, headers and libraries of the DTK are looked for there, and nowhere else",
            "set ROCM_PATH to the DTK's folder, or unset it and set DTK_ENV to its env.sh",
        )


def hip_compiler(dtk: Dtk) -> Path | None:
    """The DTK's own clang++ (CMake refuses the hipcc wrapper), or None; see `chosen_compiler`."""
    return chosen_compiler(dtk)[0]


def chosen_compiler(dtk: Dtk) -> tuple[Path | None, str]:
    """(clang++, the variable that chose it with its value): HIPCXX where it is set and nothing else, else HIP_CLANG_PATH, else the prefix."""
    if chosen := dtk.env.get("HIPCXX"):
        return (Path(chosen) if _runs(Path(chosen)) else None), f"HIPCXX={chosen}"
    if (folder := dtk.env.get("HIP_CLANG_PATH")) and _runs(Path(folder) / "clang++"):
        return Path(folder) / "clang++", f"HIP_CLANG_PATH={folder}"
    return next((path for path in _own_compilers(dtk.prefix) if _runs(path)), None), ""


def _own_compilers(prefix: Path) -> list[Path]:
    return [prefix / folder / "clang++" for folder in ("lib/llvm/bin", "llvm/bin", "hip/bin")]


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def hip_lang_root(dtk: Dtk) -> Path | None:
    """The prefix that holds CMake's package for the HIP language, which a build cannot do without."""
    named = [dtk.prefix, dtk.prefix / "hip", *([Path(dtk.env["HIP_PATH"])] if dtk.env.get("HIP_PATH") else [])]
    for root in [*named, *sorted(path for path in dtk.prefix.glob("*") if path.is_dir())]:
        if any((root / lib / "cmake" / "hip-lang" / "hip-lang-config.cmake").is_file() for lib in ("lib", "lib64")):
            return root
    return None


def version_line(compiler: Path, env: Mapping[str, str]) -> str:
    """First line of the compiler's `--version`; "" when it cannot be run."""
    done = ask([compiler, "--version"], env=for_build(env), seconds=60)
    return (done.out.splitlines() or [""])[0].strip() if done.code == 0 else ""


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
        done = ask(argv, env=for_build(env), seconds=300)
        if done.why:
            return "", f"{compiler.name}: {done.why}"
        if done.code or not assembly.is_file():
            lines = [line for line in done.err.splitlines() if "error:" in line] or [f"it ended with {done.code}"]
            return "", lines[0].strip()
        match = re.search(r'\.amdgcn_target\s+"[^"]*--([^"]+)"', assembly.read_text(encoding="utf-8", errors="replace"))
    return (match[1].split(":")[0], "") if match else ("", "its assembly names no target")
