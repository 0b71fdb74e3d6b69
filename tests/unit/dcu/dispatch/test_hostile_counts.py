"""What lies among the counter files and is none: never waited for, never believed, named and left out."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.dcu.dispatch import cells
from vllm.dcu.dispatch.cells import CELLS
from vllm.dcu.dispatch.counts import Header, Key
from vllm.dcu.records.typed import dump

Change = Callable[[dict[str, Any]], object]
KEY = dump(Key("hit", "bfloat16", 34816, 5120, "a", None, "1"))


def file(path: Path, head: Change = lambda head: None, cell: Change = lambda cell: None, value: int = 5, times: int = 1) -> None:
    """A counter file of a process that ended, with its header or its one cell changed."""
    header, row = {"format": 1, **dump(Header("gfx936", "", ("a",), 7, 1.0, "r"))}, {"cell": 0, **KEY}
    head(header)
    cell(row)
    lines = [header, *[row] * times]
    path.write_bytes(struct.pack(f"<{CELLS}q", value, *[0] * (CELLS - 1)) + b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a FIFO": (os.mkfifo, "it is not a regular file"),
    "a socket": (listening, "it cannot be opened"),
    "a folder": (Path.mkdir, "it is not a regular file"),
    "a device": (lambda p: p.symlink_to("/dev/zero"), "it is not a regular file"),
    "a link to itself": (lambda p: p.symlink_to(p), "it cannot be opened"),
    "a link to nothing": (lambda p: p.symlink_to("/nowhere/x"), "it is a link to nothing"),
    "empty": (Path.touch, "not a whole counter file"),
    "huge": (lambda p: os.truncate(p, 1 << 40) if p.touch() is None else None, "are more than the"),
    "a pid of text": (lambda p: file(p, lambda h: h.update(pid="7")), "field 'pid': '7' is not a whole number"),
    "a start of NaN": (lambda p: file(p, lambda h: h.update(started=float("nan"))), "NaN is not a finite number"),
    "open as text": (lambda p: file(p, lambda h: h.update(open="a")), "field 'open': 'a' is not a list"),
    "no arch": (lambda p: file(p, lambda h: h.pop("arch")), "field 'arch': is missing"),
    "colours": (lambda p: file(p, lambda h: h.update(arch="\x1b[2J")), "printable characters"),
    "a header of null": (lambda p: p.write_bytes(bytes(CELLS * 8) + b"null\n"), "None is not an object"),
    "a cell that is not": (lambda p: file(p, cell=lambda c: c.update(cell=CELLS)), "field 'cell'"),
    "a cell before the first": (lambda p: file(p, cell=lambda c: c.update(cell=-1)), "field 'cell'"),
    "a cell twice": (lambda p: file(p, times=2), "cell"),
    "less than nothing": (lambda p: file(p, value=-5), "cell"),
    "another kind": (lambda p: file(p, cell=lambda c: c.update(kind="gain")), "'gain' is not hit, miss or launch"),
    "an unknown field": (lambda p: file(p, cell=lambda c: c.update(more=1)), "'more': is no field here"),
}


@pytest.mark.parametrize("name", ODD)
def test_it_is_named_and_left_out_and_the_others_count(name: str, tmp_path: Path) -> None:
    make, words = ODD[name]
    file(tmp_path / "dispatch-1-1.counts")
    make(tmp_path / "odd.counts")
    done = subprocess.run(
        [sys.executable, "-m", "vllm.dcu", "counters", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "5  a" in done.stdout
    (said,) = [line for line in done.stdout.splitlines() if "odd.counts" in line]
    assert words in said
    assert "Traceback" not in done.stderr
    assert len(said) < 800


def test_a_file_that_names_a_shorter_segment_is_read_by_itself(tmp_path: Path) -> None:
    """Behind the number in a header may lie anybody's memory: read as ours, it would end the reader by a signal."""
    libc = cells._libc()
    segment = int(libc.shmget(0, 4096, 0o1000 | 0o644))
    if segment < 0:
        from tests.support import not_run

        not_run("this machine gives no shared memory")
    name = "dispatch-1-1.counts"
    try:
        address = cells._attach(segment, 0)
        assert address is not None
        ctypes.memmove(address, name.encode(), len(name))
        file(tmp_path / name, lambda head: head.update(segment=segment))
        code = "import sys; from pathlib import Path; from vllm.dcu.dispatch.countfiles import read_process as r\n"
        code += "print(r(Path(sys.argv[1])).counts[0].value)"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
        libc.shmdt(address)
    finally:
        cells.remove_segment(segment)
