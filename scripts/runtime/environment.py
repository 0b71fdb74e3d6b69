"""The environment that serves and tests the wheel: build/env/serve, or the one RUNTIME_PYTHON names."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from scripts.common import errors
from scripts.common.childenv import for_uv
from scripts.common.files import atomic_write, hold, new_folder, remove_tree, say, sha256_of
from scripts.common.paths import BUILD, ROOT, shown

__all__ = ["SERVE", "ensure_serving", "in_use", "install_wheel", "preload", "runtime_python"]

SERVE = BUILD / "env" / "serve"
LOCKED = (ROOT / "requirements" / "serve.txt", ROOT / "requirements" / "runtime-tests.txt")
PYTHONS = ((3, 11), (3, 12), (3, 13))  # what the locked packages have wheels for
_TCMALLOC = "libtcmalloc_minimal.so.4"
_TCMALLOC_PACKAGE = "libtcmalloc-minimal4"


def runtime_python() -> Path:
    """The interpreter that serves: $RUNTIME_PYTHON, else the one of build/env/serve (which may not be made yet)."""
    given = os.environ.get("RUNTIME_PYTHON")
    return Path(given) if given else SERVE / "bin" / "python"


def in_use(doing: str) -> AbstractContextManager[None]:
    """Hold the serving environment: nobody may install into it under a running server, nor under another install."""
    return hold(BUILD / ".env.lock", doing)


def ensure_serving() -> Path:
    """Make build/env/serve hold exactly the locked packages and return its interpreter.

    Idempotent by content: a stamp, written last, holds the hash of all that went in; an environment without the right
    stamp (another lock, another Python, a killed run) is made anew. With RUNTIME_PYTHON set nothing is installed.

    Raises:
        errors.CannotBuild: the locked packages do not exist for this Python.
        errors.MissingInput: installing failed.
    """
    if os.environ.get("RUNTIME_PYTHON"):
        return runtime_python()
    if sys.version_info[:2] not in PYTHONS:
        raise errors.CannotBuild(
            f"Python {platform.python_version()} cannot make the serving environment",
            "its packages are locked for " + ", ".join(f"{a}.{b}" for a, b in PYTHONS),
            "run with one of these, or set RUNTIME_PYTHON to a Python that has torch 2.10.0 and vLLM's requirements",
        )
    key = hashlib.sha256(sys.version.encode())
    for path in LOCKED:
        key.update(path.read_bytes())
    stamp = SERVE / "made-of"
    if _text(stamp) == key.hexdigest():
        return runtime_python()
    with in_use("env"):
        if _text(stamp) == key.hexdigest():  # another run made it meanwhile
            return runtime_python()
        say(f"making {shown(SERVE)} (torch with its libraries is about 7 GB)")
        stamp.unlink(missing_ok=True)  # first: a half removed environment has no stamp
        remove_tree(SERVE)
        _uv("venv", "--quiet", "--no-python-downloads", "--python", sys.executable, str(SERVE))
        for path in LOCKED:
            _uv(
                "pip", "install", "--quiet", "--python", str(SERVE / "bin" / "python"), "--no-deps", "--require-hashes",
                "--only-binary", ":all:", "--compile-bytecode", "--requirement", str(path), from_index=True,
            )  # fmt: skip
        _imports(SERVE / "bin" / "python")
        atomic_write(stamp, key.hexdigest().encode())
    return runtime_python()


def _imports(python: Path) -> None:
    """What was installed is there, and nowhere else: asked of the environment itself before it is stamped as whole."""
    code = "import sys, torch, transformers; sys.exit(0 if torch.__file__.startswith(sys.prefix) else torch.__file__)"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise errors.MissingInput(
            "the serving environment was made and cannot be imported from", said, "run it again; if it stays, report it"
        )


def install_wheel(wheel: Path) -> Path:
    """Put `wheel` (only it) into build/env/serve, unless these very bytes are there; return the Python."""
    python = ensure_serving()
    if os.environ.get("RUNTIME_PYTHON"):
        return python
    digest = sha256_of(wheel)
    stamp = SERVE / "product"
    if _text(stamp) == digest:
        return python
    with in_use("install"):
        if _text(stamp) != digest:
            stamp.unlink(missing_ok=True)
            _uv(
                "pip", "install", "--quiet", "--python", str(python), "--no-deps", "--reinstall", "--no-cache",
                "--compile-bytecode", str(wheel),
            )  # fmt: skip
            atomic_write(stamp, digest.encode())
    return python


def preload(python: Path) -> str:
    """The LD_PRELOAD that vLLM's CPU worker insists on: tcmalloc, and on x86 Intel's OpenMP of the environment.

    Raises:
        errors.MissingInput: one of them is nowhere to be found.
    """
    libraries = [_tcmalloc()]
    if platform.machine() == "x86_64":
        openmp = python.parent.parent / "lib" / "libiomp5.so"
        if not openmp.is_file():
            raise errors.MissingInput(
                f"{shown(openmp)} is missing",
                "vLLM's CPU worker refuses to start without it",
                "install intel-openmp there",
            )
        libraries.append(openmp)
    return ":".join(map(str, libraries))


def _tcmalloc() -> Path:
    if given := os.environ.get("TCMALLOC"):
        if Path(given).is_file() and "libtcmalloc" in Path(given).name:
            return Path(given).resolve()
        raise errors.UserError(
            f"TCMALLOC={given} is not a libtcmalloc file",
            "vLLM's CPU worker looks for that name",
            "give its path, or unset it",
        )
    private = BUILD / "env" / "tcmalloc"
    for path in _candidates(private):
        return path
    # Without root: the package is only unpacked. apt verifies it against the archive's signature.
    say(f"unpacking {_TCMALLOC_PACKAGE} into {shown(private)}")
    with new_folder(private) as work:
        for argv in (["apt-get", "download", "-qq", _TCMALLOC_PACKAGE], ["dpkg-deb", "-x"]):
            packages = [str(path) for path in work.glob("*.deb")]
            tail = [*packages, str(work)] if argv[0] == "dpkg-deb" else []
            _run([*argv, *tail], work)
    for path in _candidates(private):
        return path
    raise _no_tcmalloc("the package has another content than expected")


def _candidates(private: Path) -> Iterator[Path]:
    for root in (Path("/usr/lib"), Path("/usr/lib64"), private / "usr" / "lib"):
        yield from sorted(root.glob(_TCMALLOC))
        yield from sorted(root.glob(f"*-linux-gnu/{_TCMALLOC}"))


def _no_tcmalloc(why: str) -> errors.Fatal:
    return errors.MissingInput(
        f"{_TCMALLOC} is missing ({why})",
        "vLLM's CPU worker refuses to start unless it is preloaded",
        f"install {_TCMALLOC_PACKAGE} (Debian's name) after `apt-get update`, or set TCMALLOC to the library's path",
    )


def _run(argv: Sequence[str], folder: Path) -> None:
    if shutil.which(argv[0]) is None:
        raise _no_tcmalloc(f"{argv[0]} is not here")
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise _no_tcmalloc(f"{argv[0]} ended with {done.returncode}")


def _uv(*argv: str, from_index: bool = False) -> None:
    environment, options = for_uv()
    words = [sys.executable, "-m", "uv", *argv, *(options if from_index else [])]
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise errors.MissingInput(
            f"uv {argv[0]} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1] if done.stderr else ''}",
            "the serving environment holds exactly the locked packages, or it is not made",
            "read the line above; without a network, set RUNTIME_PYTHON to an interpreter that has them",
        )


def _text(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None
