"""What watches reads only: every verb says the same where nothing at all can be written, and on a folder of another user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.common.paths import ROOT
from tests.support import not_run

READ_ONLY = 'mount -o remount,bind,ro / && for other in /tmp "$0"; do mount -o remount,bind,ro "$other" 2>/dev/null; done; shift; exec "$@"'
COUNTS = """
import sys
from pathlib import Path
from vllm.dcu.dispatch.countfiles import Header, Key, Writer
writer = Writer(Path(sys.argv[1]), Header("gfx936", "unit test", ("a",)))
writer.add_keys(0, [Key("hit", "bfloat16", 8, 8, "a", None, "1")])
writer.cells[0] += 7
"""
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 1, "head_dim": 128,
    "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
VERBS = {
    "counters": ("-m", "vllm.dcu", "counters", "{}/stats"),
    "counters of nothing": ("-m", "vllm.dcu", "counters", "{}/empty"),
    "manifest": ("-m", "vllm.dcu", "manifest"),
    "explain": ("-m", "vllm.dcu", "explain", "--arch", "gfx936", "--m", "34816", "--k", "5120"),
    "survey": ("-m", "vllm.dcu", "survey", "{}/config.json"),
}
ENVIRON = os.environ | {"PYTHONPATH": f"{ROOT / 'overlay'}:{ROOT}"}


def said(argv: list[str]) -> tuple[int, str]:
    done = subprocess.run(argv, env=ENVIRON, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def made(folder: Path) -> Path:
    (folder / "empty").mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    subprocess.run([sys.executable, "-c", COUNTS, str(folder / "stats")], env=ENVIRON, check=True)
    return folder


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in (folder, *folder.rglob("*")))


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_the_same_where_nothing_can_be_written(tmp_path: Path, verb: str) -> None:
    folder = made(tmp_path)
    argv = [sys.executable, *(word.format(folder) for word in VERBS[verb])]
    before = listing(folder)
    free = said(argv)
    assert listing(folder) == before
    code, text = said(["unshare", "-rm", "sh", "-c", READ_ONLY, str(folder), "-", *argv])
    if "unshare" in text or "mount:" in text:
        not_run(f"no read-only view of this machine can be made: {text.strip().splitlines()[-1]}")
    probe = said(["unshare", "-rm", "sh", "-c", READ_ONLY, str(folder), "-", "touch", str(folder / "probe")])
    assert "Read-only file system" in probe[1], "the view was not read-only"
    assert (code, text) == free


def test_doctor_comes_to_a_verdict_where_nothing_can_be_written(tmp_path: Path) -> None:
    """It cannot build there, and says so; it does not fail over a file of its own."""
    code, text = said(["unshare", "-rm", "sh", "-c", READ_ONLY, str(tmp_path), "-", sys.executable, "-m", "scripts", "doctor"])
    if "unshare" in text or "mount:" in text:
        not_run(f"no read-only view of this machine can be made: {text.strip().splitlines()[-1]}")
    assert (code, "Traceback" in text) == (13, False), text
    assert "is not writable" in text


@pytest.mark.parametrize("verb", ["counters", "survey", "explain", "manifest"])
def test_a_verb_works_on_another_users_folder(tmp_path: Path, verb: str) -> None:
    if os.geteuid() or not shutil.which("setpriv"):
        not_run("only root can give a folder to another user, and setpriv takes root's rights over it")
    folder = made(tmp_path)
    free = said(argv := [sys.executable, *(word.format(folder) for word in VERBS[verb])])
    for path in (*folder.rglob("*"), folder):
        os.chown(path, 65534, 65534)
        path.chmod(0o555 if path.is_dir() else 0o444)
    bare = ["setpriv", "--bounding-set", "-all", "--"]
    assert said([*bare, "touch", str(folder / "stats" / "probe")])[0], "the folder could be written"
    assert said([*bare, *argv]) == free
