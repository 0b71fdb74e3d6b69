"""What of the caller's environment reaches a program that the tools start, decided here for every kind of program. Bare Python.

What a person sets for these tools passes: where the index is and how it is reached, compiler flags, the DTK's variables. What would send
a child's result elsewhere (`PIP_USER`, `DESTDIR`, `GIT_DIR`), change the words that are read back (a locale, `NINJA_STATUS`), or belongs
to another Python does not.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from scripts.common import errors

__all__ = ["PATHS", "PIP_SETTINGS", "absolute", "for_build", "for_git", "for_pip", "for_python", "for_uv", "pip_settings"]

PATHS = (
    "PYTHON", "TOOLS_PYTHON", "RUNTIME_PYTHON", "DTK_ENV", "ROCM_PATH", "HIPCXX", "UPSTREAM_SDIST", "UPSTREAM_DIR", "CHECKOUT",
    "CPU_WHEEL", "GFX936_CACHE", "TRITON_KERNELS_SRC_DIR", "TCMALLOC",
)  # fmt: skip
"""Variables that name a file or folder. Children run in other folders, so that they are made absolute on entry."""

PIP_SETTINGS = (
    "index-url", "extra-index-url", "find-links", "no-index", "proxy", "cert", "client-cert", "trusted-host", "timeout", "default-timeout",
    "retries",
)  # fmt: skip
"""What of pip's configuration (files and PIP_*) passes to our pip: where the index is and how it is reached. Nothing else."""

_OTHER_PYTHONS = ("PYTHONHOME", "__PYVENV_LAUNCHER__", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONEXECUTABLE", "PYTHONPLATLIBDIR")
_OF_A_SITE = ("PYTHONPATH", "PYTHONUSERBASE", "VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON", "UV_PROJECT_ENVIRONMENT")
# cmake --install obeys DESTDIR and CMAKE_INSTALL_MODE, clang the override, and the rest changes the lines that are read back.
_NOT_FOR_BUILDS = (
    "DESTDIR", "CMAKE_INSTALL_MODE", "CMAKE_INSTALL_PREFIX", "CMAKE_GENERATOR", "CMAKE_TOOLCHAIN_FILE", "CMAKE_CONFIG_TYPE",
    "CCC_OVERRIDE_OPTIONS", "NINJA_STATUS", "NINJAFLAGS", "CLICOLOR_FORCE", "CMAKE_COLOR_DIAGNOSTICS", "MAKEFLAGS", "MFLAGS", "LANGUAGE",
)  # fmt: skip


def absolute(environ: MutableMapping[str, str]) -> None:
    """Make every variable of PATHS absolute, in place; a bare name of a program is looked up on PATH, links are left as they are."""
    for name in PATHS:
        value = environ.get(name, "")
        if not value or Path(value).is_absolute():
            continue
        found = None if os.sep in value or Path(value).exists() else shutil.which(value, path=environ.get("PATH"))
        if found is None and name in ("PYTHON", "HIPCXX") and os.sep not in value and not Path(value).exists():
            continue  # no such program: whoever asks it says so, by the name that was given
        environ[name] = str(Path(found or value).expanduser().absolute())  # a link stays: a venv's Python is one


def for_python(environ: Mapping[str, str]) -> dict[str, str]:
    """For another interpreter than the tools' own: nothing of theirs leaks into it. Its own PYTHONPATH stays: env.sh may set it."""
    return {key: value for key, value in environ.items() if key not in _OTHER_PYTHONS}


def for_build(environ: Mapping[str, str]) -> dict[str, str]:
    """For CMake, ninja and the compilers: messages in English, results where we look for them."""
    kept = {key: value for key, value in for_python(environ).items() if key not in _NOT_FOR_BUILDS}
    return {**kept, "LC_ALL": "C"}


def for_git(environ: Mapping[str, str]) -> dict[str, str]:
    """For git: no GIT_* of the caller, no identity, messages in English; `common/git.py` puts its own settings on top."""
    kept = {key: value for key, value in environ.items() if not key.startswith("GIT_") and key not in ("EMAIL", "LC_ALL", "LANGUAGE")}
    return {**kept, "LC_ALL": "C"}


def pip_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """pip's configuration as pip itself reads it (environment over `[install]` over `[global]`), of PIP_SETTINGS only.

    A Python without pip has the environment's part alone.

    Raises:
        errors.UserError: a configuration file of pip cannot be read.
    """
    environ = os.environ if environ is None else environ
    argv = [sys.executable, "-m", "pip", "config", "list"]
    # `user = true` anywhere is taken by `pip config` for its own --user, and then it lists that one file only.
    env = {**for_python(environ), "PIP_USER": "0", "PIP_GLOBAL": "0", "PIP_SITE": "0"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, errors="replace", check=False)
    if "No module named pip" in done.stderr:
        named = {name.removeprefix("PIP_").lower().replace("_", "-"): value for name, value in environ.items() if name.startswith("PIP_")}
        return {name: named[name] for name in PIP_SETTINGS if named.get(name)}
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise errors.UserError("pip's configuration cannot be read", said, "correct the file, or set PIP_CONFIG_FILE to another")
    sections: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        if match := re.fullmatch(r"([^.]+)\.([\w-]+)=('.*'|\".*\")", line.strip()):
            sections.setdefault(match[1], {})[match[2]] = str(ast.literal_eval(match[3]))
    merged = {**sections.get("global", {}), **sections.get("install", {}), **sections.get(":env:", {})}
    return {name: " ".join(merged[name].split()) for name in PIP_SETTINGS if merged.get(name, "").strip()}


def for_pip(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """For our pip: the settings of `pip_settings` and no other of its variables or files, and no other site's packages."""
    environ = os.environ if environ is None else environ
    kept = {k: v for k, v in for_python(environ).items() if not k.startswith("PIP_") and k not in _OF_A_SITE}
    named = {"PIP_" + name.upper().replace("-", "_"): value for name, value in pip_settings(environ).items()}
    return {
        **kept,
        **named,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONNOUSERSITE": "1",
    }


def for_uv(environ: Mapping[str, str] | None = None) -> tuple[dict[str, str], list[str]]:
    """For our uv: (environment, options of `uv pip install`) with the same index, proxy, certificate and trusted hosts as pip's."""
    environ = os.environ if environ is None else environ
    settings = pip_settings(environ)
    kept = {
        key: value
        for key, value in for_python(environ).items()
        if (key not in _OF_A_SITE and not key.startswith(("UV_", "PIP_"))) or key in ("UV_CACHE_DIR", "UV_LINK_MODE")
    }
    kept["UV_NO_CONFIG"] = "1"
    if proxy := settings.get("proxy"):
        kept |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), proxy)
    if certificates := settings.get("cert"):
        kept["SSL_CERT_FILE"] = certificates
    if seconds := settings.get("timeout") or settings.get("default-timeout"):
        kept["UV_HTTP_TIMEOUT"] = str(int(float(seconds)))
    options = [word for host in settings.get("trusted-host", "").split() for word in ("--allow-insecure-host", host)]
    options += ["--default-index", settings["index-url"]] if "index-url" in settings else []
    extra = [word for index in settings.get("extra-index-url", "").split() for word in ("--index", index)]
    options += [*extra, "--index-strategy", "unsafe-best-match"] if extra else []  # as pip: the best of all, not the first that has one
    options += [word for place in settings.get("find-links", "").split() for word in ("--find-links", place)]
    return kept, [*options, *(["--no-index"] if settings.get("no-index", "").lower() in ("1", "true", "yes", "on") else [])]
