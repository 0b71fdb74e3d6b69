"""Upstream's code that does not come to an end under the probes: stopped, named, counted as not evaluated, and nothing else is lost."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import pytest

from scripts.common.child import ask
from scripts.drift.contracts import alone, arch_flow, arch_truth, way
from scripts.drift.contracts.model import BLOCK, OPEN, Facts
from scripts.upstream.releases import read_pin
from tests.integration.upstream import edited, tree

FOREVER = "    while True:\n        try:\n            import time\n            time.sleep(60)\n        except {}:\n            pass\n"
HANGING = {
    "loop": "def slow(_GCN_ARCH=''):\n    while True:\n        pass\n",
    "swallowing": f"def slow():\n    _GCN_ARCH = 1\n{FOREVER.format('Exception')}",
    "deaf": f"def slow():\n    _GCN_ARCH = 1\n{FOREVER.format('BaseException')}",
    "gone": "import os\n\n\ndef slow():\n    _GCN_ARCH = 1\n    os._exit(0)\n",
}


@pytest.mark.parametrize("kind", HANGING)
def test_a_reader_that_does_not_end_is_open_by_name_and_the_others_are_run(tmp_path: Path, kind: str) -> None:
    pinned = tree(read_pin().version)
    pinned.write(tmp_path, "vllm/platforms", "vllm/envs.py", "vllm/_aiter_ops.py")
    (tmp_path / "vllm/planted.py").write_text(f"{HANGING[kind]}\n\ndef quick():\n    return 1\n")
    (tmp_path / "vllm/after.py").write_text("def last():\n    return 2\n")
    plan = {"vllm.planted": ["slow", "quick"], "vllm.after": ["last"]}
    said = alone.say_of("flow.py", str(tmp_path), seconds=60, given=json.dumps({"gfx936": plan}))["gfx936"]
    assert (said["vllm.planted:quick"], said["vllm.after:last"]) == (["1"], ["2"])
    assert said["vllm.planted:slow"][0].startswith("open: it does not come to an end")


def test_a_module_that_does_not_end_is_a_row_of_its_own() -> None:
    pinned = tree(read_pin().version)
    planted = edited(pinned, {}, {"vllm/planted.py": "def by():\n    return _GCN_ARCH\n\n\nwhile True:\n    pass\n"})
    rows = arch_flow.judge(Facts("base"), Facts("planted", tuple(arch_flow.collect(planted))))
    assert [f.level for f in rows if "it does not come to an end" in f.sentence and f.path == "vllm/planted.py"] == [OPEN]


@pytest.mark.parametrize("contract", [arch_truth, way, arch_flow], ids=lambda c: c.ID)
def test_a_probe_that_does_not_end_is_stopped_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, contract: object) -> None:
    """The platform file itself hangs: nothing can be asked, which is a BLOCK, or open, and never an empty list."""
    pinned = tree(read_pin().version)
    planted = edited(pinned, {"vllm/platforms/rocm.py": ("logger = init_logger(__name__)", "while True:\n    pass")})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(contract, "SECONDS", 1.0)
    monkeypatch.setattr(arch_truth, "SECONDS", 1.0)
    rows = contract.judge(Facts("base"), Facts("planted", tuple(contract.collect(planted))))  # type: ignore[attr-defined]
    assert {f.level for f in rows if "did not end within 1 s and was stopped" in f.sentence} == {OPEN if contract is arch_flow else BLOCK}
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _bytes(p)]
    assert left == [], "what a stopped probe had started is stopped with it"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_child_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    """A grandchild that holds the pipe is no reason to wait."""
    started = time.monotonic()
    done = ask(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid; wait"], seconds=1, env=os.environ)
    assert (done.code, done.last) == (None, "it did not end within 1 s and was stopped")
    assert time.monotonic() - started < 10
    pid = (tmp_path / "pid").read_text().strip()
    status = Path(f"/proc/{pid}/status")
    assert not status.exists() or "Z (zombie)" in status.read_text()


def test_a_child_says_how_it_ended() -> None:
    assert ask(["/nowhere/at/all"], seconds=1, env={}).last == "cannot be run: FileNotFoundError"
    done = ask(["sh", "-c", "cat; echo why >&2; exit 3"], seconds=10, env=os.environ, given="word")
    assert (done.code, done.out, done.last) == (3, "word", "why")
