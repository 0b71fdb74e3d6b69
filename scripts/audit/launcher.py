"""A compiler launcher that keeps what a compile came to, under the hash of all that went in (stand-alone, standard library only).

`python -IS launcher.py FOLDER COMPILER ARGUMENTS...` preprocesses the unit, which takes a twentieth of a compile. FOLDER keeps the object,
the messages and the exit code under the hash of that text, the arguments and the compiler. Paths that `-ffile-prefix-map` maps do not
count: two checkouts share what is the same. What is no compile (`-c`) runs as it stands.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["launched"]

_UNUSED_DAYS = 30
# A failure that says nothing about the source is not kept.
_MACHINE = re.compile(r"No space left|[Cc]annot allocate|out of memory|[Kk]illed|signal|Input/output error")
_NAMES_A_FILE = ("-o", "-MF", "-MT")


def launched(folder: Path) -> list[str]:
    """The words to put before a compiler's, so that `folder` keeps what it makes."""
    return [sys.executable, "-IS", str(Path(__file__).resolve()), str(folder)]


def _value(words: Sequence[str], option: str) -> str:
    return words[words.index(option) + 1] if option in words else ""


def _mapped(text: bytes, words: Sequence[str], back: bool = False) -> bytes:
    """`text` with a mark in the place of each path that a prefix map names, or the paths put back."""
    paths = [word.split("=")[1].encode() for word in words if word.startswith("-ffile-prefix-map=")]
    for path, mark in ((path, b"\1%d\1" % i) for i, path in enumerate(paths)):
        text = text.replace(mark, path) if back else text.replace(path, mark)
    return text


def _key(words: Sequence[str], text: bytes) -> str:
    compiler = Path(shutil.which(words[0]) or words[0]).resolve()
    about = compiler.stat()
    kept = [word for before, word in zip(["", *words], words, strict=False) if word not in _NAMES_A_FILE and before not in _NAMES_A_FILE]
    digest = hashlib.sha256(f"{compiler} {about.st_size} {about.st_mtime_ns}".encode())
    digest.update(_mapped("\0".join(kept[1:]).encode(), words) + b"\0" + _mapped(text, words))
    return digest.hexdigest()


def _preprocessed(words: Sequence[str]) -> bytes | None:
    """The unit's text (and its dependency file, where the words ask for one), or None where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "text"
        argv = ["-E" if word == "-c" else word for word in words]
        argv = [str(target) if before == "-o" else word for before, word in zip(["", *argv], argv, strict=False)]
        done = subprocess.run(argv, capture_output=True, check=False)
        return target.read_bytes() if done.returncode == 0 and target.is_file() else None


def _keep(home: Path, words: Sequence[str], done: subprocess.CompletedProcess[bytes]) -> None:
    made = Path(_value(words, "-o"))
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".new-") as work:
        new = Path(work) / "entry"
        new.mkdir()
        (new / "said").write_bytes(b"%d\n" % done.returncode + _mapped(done.stderr, words))
        if made.is_file():
            shutil.copyfile(made, new / "object")
        shutil.rmtree(home, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process was first: the same content
            new.rename(home)


def main(argv: Sequence[str]) -> int:
    """Compile, or take what an earlier compile of the very same made. Returns the compiler's exit code."""
    folder, words = Path(argv[0]), list(argv[1:])
    text = _preprocessed(words) if "-c" in words and "-o" in words else None
    if text is None:
        return subprocess.run(words, check=False).returncode
    home, target = folder / _key(words, text), Path(_value(words, "-o"))
    with contextlib.suppress(OSError):
        code, _, said = (home / "said").read_bytes().partition(b"\n")
        if code == b"0" and "-fsyntax-only" not in words:
            shutil.copyfile(home / "object", target)
        os.utime(home)
        sys.stderr.buffer.write(_mapped(said, words, back=True))
        return int(code)
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(words, stderr=subprocess.PIPE, check=False)
    sys.stderr.buffer.write(done.stderr)
    if done.returncode == 0 or (done.returncode == 1 and not _MACHINE.search(done.stderr.decode(errors="replace"))):
        _keep(home, words, done)
        for old in folder.iterdir():
            if old.stat().st_mtime < time.time() - _UNUSED_DAYS * 86400:
                shutil.rmtree(old, ignore_errors=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
