"""Writing so that a killed run leaves the old state or the new one, and hashing."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.common import errors
from scripts.common.paths import shown

__all__ = ["HELD", "TEMPORARY", "atomic_write", "hold", "new_folder", "progress", "remove_tree", "say", "sha256_of"]


# End of the name of a file that is being written. A killed run can leave one; nothing may take it for a file of ours.
TEMPORARY = ".gfx936-tmp"

# Descriptors of the locks this process holds. Children that write into build/ inherit them: where the parent is killed, the
# lock lives until they end too (an orphaned git went on writing into a tree that the next run had begun to change, once).
HELD: set[int] = set()


def say(text: str) -> None:
    """One line of progress for a person, on standard error, so that standard output stays for results."""
    print(text, file=sys.stderr, flush=True)


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def atomic_write(path: Path, data: bytes) -> None:
    """Write beside, then rename. Does nothing when the bytes are there already (keeps mtimes for builds)."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_tree(path: Path) -> None:
    """Remove a folder or file if it is there; read-only git objects included."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A fresh folder beside `final`, renamed onto it when the block ends well.

    Leftovers of killed runs are swept first: callers hold the build lock.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for stale in final.parent.glob(f".{final.name}.new-*"):
        remove_tree(stale)
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}.new-", dir=final.parent))
    work.chmod(0o755)
    try:
        yield work
        remove_tree(final)
        work.replace(final)
    finally:
        remove_tree(work)


@contextmanager
def hold(lock: Path, doing: str, wait_seconds: float = 600.0) -> Iterator[None]:
    """Hold an advisory lock. The kernel drops it with the process, so a killed run never blocks the next.

    Raises:
        errors.TreeBusy: another run still holds it after `wait_seconds`.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as stream:
        deadline, told = time.monotonic() + wait_seconds, False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                stream.seek(0)
                holder = stream.read().strip() or "another run"
                if time.monotonic() >= deadline:
                    raise errors.TreeBusy(
                        f"{shown(lock)} is held by {holder}",
                        "two runs must not change build/ at the same time",
                        "wait for that run to end, or stop it, and run this again",
                    ) from None
                if not told:
                    say(f"waiting: {shown(lock)} is held by {holder}")
                    told = True
                time.sleep(0.05)
        stream.seek(0)
        stream.truncate()
        stream.write(f"process {os.getpid()} ({doing})\n")
        stream.flush()
        HELD.add(stream.fileno())
        try:
            yield
        finally:
            HELD.discard(stream.fileno())
            stream.seek(0)
            stream.truncate()


def progress(label: str, done: int, total: int, last: list[float]) -> None:
    """A progress line on a terminal, at most ten a second; `last` carries the time of the previous one."""
    now = time.monotonic()
    if not sys.stderr.isatty() or (now - last[0] < 0.1 and done < total):
        return
    last[0] = now
    end = "\n" if done >= total else ""
    sys.stderr.write(f"\r{label}: {done / 1e6:.1f} of {total / 1e6:.1f} MB{end}")
    sys.stderr.flush()
