"""Fixtures for tests of the tools: a checkout of this repository in a folder of its own, with real or tiny upstream sources."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TINY = {
    "vllm/__init__.py": b"VALUE = 1\n",
    "vllm/one.py": b"".join(b"line %d\n" % i for i in range(1, 41)),
    "vllm/two.py": b"a = 1\r\nb = 2\r\n",  # carriage returns must survive every step
    ".gitignore": b"hidden.py\n",
    "vllm/hidden.py": b"shipped, although ignored\n",
    "PKG-INFO": b"Metadata-Version: 2.4\nName: vllm\nVersion: 0.18.1\n",
}


@dataclass
class Checkout:
    """A copy of the repository's files, driven as a person does: through `python -m scripts VERB`."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def tree(self) -> Path:
        return self.root / "build" / "vllm"

    def popen(self, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "scripts", *argv],
            cwd=self.root,
            env={**self.env, **(env or {})},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *argv: str, env: Mapping[str, str] | None = None, code: int | None = 0) -> str:
        """Run a verb; its exit code must be `code`. Returns standard output and error together."""
        with self.popen(*argv, env=env) as process:
            out, err = process.communicate(timeout=600)
        assert code is None or process.returncode == code, f"exit {process.returncode}, expected {code}\n{out}\n{err}"
        return out + err

    def git(self, *argv: str) -> str:
        """git in build/vllm, as a person calls it, with this checkout's environment."""
        done = subprocess.run(["git", *argv], cwd=self.tree, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commits(self) -> list[str]:
        return self.git("log", "--format=%H").split()

    def write_patch(self, name: str, raw: bytes) -> None:
        (self.root / "patches" / name).write_bytes(raw)

    def series(self, *names: str) -> None:
        (self.root / "patches" / "series").write_text("".join(f"{n}\n" for n in names))


def copy_repository(target: Path) -> None:
    """This repository's files as they are now, without build products."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for name in (os.fsdecode(n) for n in listed if n):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def base_environment(home: Path) -> dict[str, str]:
    """A user's environment with an empty home, no GIT_* variables and no locale surprises."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "GFX936_", "PYTEST")) and k != "UPSTREAM_SDIST"}
    return {**keep, "HOME": str(home), "TOOLS_PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}


def make_sdist(path: Path, files: Mapping[str, bytes], extra: Sequence[tarfile.TarInfo] = (), top: str | None = None) -> Path:
    """A small sdist; `extra` members are added as they are."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{top or path.name.removesuffix('.tar.gz')}/{name}")
            info.size, info.mode, info.uid, info.gid = len(data), 0o644, 4242, 4242
            archive.addfile(info, io.BytesIO(data))
        for info in extra:
            archive.addfile(info)
    return path


def pin_to(root: Path, sdist: Path) -> None:
    """Make upstream.toml of a checkout name this sdist."""
    digest, size = hashlib.sha256(sdist.read_bytes()).hexdigest(), sdist.stat().st_size
    (root / "upstream.toml").write_text(
        f'[pin]\nversion = "0.18.1"\nrevision = 1\n[sdist]\n"0.18.1" = {{ name = "{sdist.name}", size = {size}, sha256 = "{digest}" }}\n'
    )


def make_tiny(tmp_path: Path, name: str = "checkout") -> Checkout:
    """A checkout whose upstream is a six-file sdist and whose series and overlay are empty, applied once."""
    root = tmp_path / name
    root.mkdir()
    copy_repository(root)
    for folder in ("patches", "overlay", "csrc"):
        shutil.rmtree(root / folder)
        (root / folder).mkdir()
    (root / "patches" / "series").write_text("")
    (root / "overlay" / "vllm" / "dcu").mkdir(parents=True)
    shutil.copytree(ROOT / "overlay" / "vllm" / "dcu" / "records", root / "overlay" / "vllm" / "dcu" / "records")  # the tools' reader
    (root / "overlay" / "vllm" / "dcu" / "new.py").write_text("NEW = 1\n")
    sdist = make_sdist(tmp_path / "vllm-0.18.1.tar.gz", TINY)
    pin_to(root, sdist)
    home = tmp_path / "home"
    home.mkdir()
    env = {**base_environment(home), "GFX936_CACHE": str(tmp_path / "cache"), "UPSTREAM_SDIST": str(sdist)}
    checkout = Checkout(root, env)
    checkout.run("refresh")
    return checkout


@pytest.fixture
def tiny(tmp_path: Path) -> Checkout:
    """See `make_tiny`."""
    return make_tiny(tmp_path)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The download cache of whoever runs the tests: the sdist is fetched once, not once a test."""
    from scripts.common.paths import cache_dir

    return cache_dir()


@pytest.fixture
def real(tmp_path: Path, shared_cache: Path) -> Checkout:
    """A checkout of this repository as it is, nothing applied yet."""
    root = tmp_path / "checkout"
    root.mkdir()
    copy_repository(root)
    home = tmp_path / "home"
    home.mkdir()
    return Checkout(root, {**base_environment(home), "GFX936_CACHE": str(shared_cache)})


@pytest.fixture
def add_patch() -> Callable[..., str]:
    """Make a patch in a checkout by editing its tree and refreshing; returns the file name."""

    def make(checkout: Checkout, path: str, old: str, new: str, subject: str) -> str:
        file = checkout.tree / path
        text = file.read_bytes().decode()
        assert text.count(old) == 1, f"{old!r} is not once in {path}"
        file.write_bytes(text.replace(old, new).encode())
        name = subject.replace(" ", "-") + ".patch"
        checkout.run("refresh", "--patch", name)
        return name

    return make
