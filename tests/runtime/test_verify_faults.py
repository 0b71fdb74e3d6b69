"""System calls of `verify` made to fail: a sentence, a documented exit code, evidence that is old or new, and a next run that completes.

`GFX936_VERIFY_FAULTS=1000` makes every call fail once (docs/hostile-input.md); else a few do.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm.dcu.evidence.store import read_store

from scripts.common.paths import ROOT
from tests.support import not_run

KINDS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EMFILE, errno.EDQUOT)
MOST = int(os.environ.get("GFX936_VERIFY_FAULTS", "6"))


class Lab:
    """`verify` of one rung in a process whose system calls below `root` can be made to fail."""

    def __init__(self, folder: Path, server: subprocess.Popen[str]) -> None:
        self.root, self.plan, self.said, self.server = folder / "root", folder / "plan", folder / "said", server
        self.store = self.root / "evidence.json"

    def run(self, at: int = 0, kind: int = 0, *more: str) -> tuple[int, int, str, str]:
        with self.plan.open("r+b") as plan:
            plan.write(struct.pack("qqqq96s", 0, at, kind, 0, b""))
        argv = ["verify", "--rung", "V1", "--folder", str(self.root / "climb"), "--evidence", str(self.store), *more]
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps({"argv": argv, "out": str(self.said)}) + "\n")
        self.server.stdin.flush()
        code = int(self.server.stdout.readline().rsplit(maxsplit=1)[-1])
        count, _, _, _, what = struct.unpack("qqqq96s", self.plan.read_bytes())
        return code, count, what.rstrip(b"\0").decode(), self.said.read_text(errors="replace")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    if shutil.which("cc") is None:
        not_run("there is no C compiler (cc) for the library that makes calls fail")
    library, plan, source = tmp_path / "inject.so", tmp_path / "plan", ROOT / "tests" / "faults"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source / "inject.c"), "-ldl"], check=True)
    plan.write_bytes(bytes(128))
    (tmp_path / "root").mkdir()
    env = {**os.environ, "LD_PRELOAD": str(library), "FAULT_PLAN": str(plan), "FAULT_ROOT": str(tmp_path / "root")}
    argv = [
        sys.executable,
        str(source / "server.py"),
        str(plan),
        "vllm.dcu.__main__",
        "main",
        "vllm.dcu.verify.verb",
        "vllm.platforms",
        "torch",
    ]
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        while (line := server.stdout.readline()) != "ready\n":
            assert line, "the server ended"
        yield Lab(tmp_path, server)
        server.stdin.close()


def test_a_refused_system_call_of_verify_is_a_sentence_and_the_next_run_completes(lab: Lab) -> None:
    calls, faults = lab.run()[1], []
    assert calls > 20
    every = max(1, calls // MOST)
    for number, at in enumerate(range(1 + every // 2, calls + 1, every)):
        shutil.rmtree(lab.root)
        lab.root.mkdir()
        kind = KINDS[number % len(KINDS)]
        code, _, what, said = lab.run(at, kind)
        where = f"call {at} ({what}, {errno.errorcode[kind]}): exit {code}: {said.strip()[-300:]}"
        if code not in (0, 1, 3, 4, 5) or "Traceback" in said or (code == 1 and not ("error: " in said or "NOT KEPT" in said)):
            faults.append(where)
        read_store(lab.store)  # old (not there) or new, never half
        again = lab.run(0, 0, "--resume")
        if again[0] not in (0, 3, 4) or not (lab.root / "climb" / "report.json").is_file():
            faults.append(f"{where}; then exit {again[0]}: {again[3].strip()[-300:]}")
    print(f"{calls} calls, every {every}. tried")
    assert faults == []
