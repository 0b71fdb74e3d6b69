"""`python -m vllm.dcu verify` and `bench` as a person runs them on a machine without a DCU, and with a stand-in."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vllm.dcu import __main__ as command
from vllm.dcu.evidence.store import read_store
from vllm.dcu.records.catalog import MISSION

CAPABILITY = MISSION.id
STAND_IN = """
import torch
LABEL = "F.linear standing in"
library = torch.library.Library("_rocm_C", "DEF")
library.define("LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor")
library.impl("LLMM1", lambda a, b, rows: torch.nn.functional.linear(b, a){change}, "CPU")
"""


def run(folder: Path, *argv: str, verb: str = "verify", code: int) -> str:
    """Run the verb in `folder` with a home of its own; the exit code must be `code`. Returns all output.

    In this process, but for stand-ins: what they register stays with a process.
    """
    if "--stand-in" in argv:
        env = {**os.environ, "HOME": str(folder), "VLLM_CONFIG_ROOT": str(folder / "config")}
        line = [sys.executable, "-m", "vllm.dcu", verb, *argv]
        done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)
        got, out = done.returncode, done.stdout + done.stderr
    else:
        text = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            patch.chdir(folder)
            patch.setenv("VLLM_CONFIG_ROOT", str(folder / "config"))
            try:
                got = command.main([verb, *argv])
            except SystemExit as usage:
                got = int(str(usage.code))
        out = text.getvalue()
    assert got == code, out
    return out


def verdicts(report: Path) -> dict[str, str]:
    return {step["id"]: step["result"]["outcome"] for step in json.loads(report.read_text())["steps"]}


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN.format(change=""))
    return path


def test_without_a_dcu_nothing_but_the_build_is_green_and_nothing_is_kept(tmp_path: Path) -> None:
    out = run(tmp_path, "--folder", "climb", code=4)
    found = verdicts(tmp_path / "climb" / "report.json")
    assert found.pop("V0") == "passed"
    assert set(found.values()) == {"not run"}
    assert "there is no DCU in this process: vLLM runs as CpuPlatform" in out
    assert not (tmp_path / "config").exists()


def test_with_a_stand_in_v2_runs_and_opens_nothing(tmp_path: Path, stand_in: Path) -> None:
    argv = ("--shape", "128,512", "--stand-in", str(stand_in), "--folder", "climb", "--evidence", "evidence.json")
    out = run(tmp_path, *argv, code=4)
    assert verdicts(tmp_path / "climb" / "report.json")["V2"] == "passed"
    assert "stays as it is on hardware" in out
    assert not (tmp_path / "evidence.json").exists(), "a simulation makes no record of a new shape"
    resumed = run(tmp_path, *argv, "--resume", code=4)
    assert "V2 passed (resumed)" in resumed


def test_a_wrong_stand_in_is_refused_with_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN.format(change=" * 1.01"))
    out = run(tmp_path, "--shape", "128,512", "--stand-in", str(path), "--rung", "V2", "--folder", "climb", code=3)
    assert "V2 failed" in out
    assert "cases are wrong" in (tmp_path / "climb" / "report.md").read_text()


def test_evidence_that_is_asked_for_carries_its_label(tmp_path: Path, stand_in: Path) -> None:
    run(tmp_path, "--rung", "V0", "--stand-in", str(stand_in), "--folder", "climb", "--evidence", "evidence.json", code=0)
    (entry,) = read_store(tmp_path / "evidence.json")
    assert entry.binding.simulated == "F.linear standing in, on the CPU"
    run(tmp_path, "--forget", CAPABILITY, "--evidence", "evidence.json", code=0)
    assert read_store(tmp_path / "evidence.json") == ()


def test_a_baseline_lists_what_does_not_pass_any_more(tmp_path: Path) -> None:
    run(tmp_path, "--rung", "V0", "--folder", "before", code=0)
    out = run(tmp_path, "--rung", "V1", "--folder", "now", "--baseline", "before/report.json", code=5)
    assert "Worse than before/report.json: V0: passed before, now not run" in out


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("--resume",), 2, "--resume needs --folder"),
        (("--shape", "5120,17408"), 2, "K=17408 is above 8192"),
        (("--shape", "5120"), 2, "is not M,K"),
        (("--capability", "wvsplitk-gfx936"), 2, "is no positive record"),
        (("--", "--max-model-len", "64"), 2, "give one"),
        (("--load", "128", "--rung", "V0"), 2, "at least 1"),
        (("--rounds", "0", "--rung", "V0"), 2, "at least 1"),
        (("--rung", "V9", "--folder", "x"), 1, "there is no rung V9"),
        (("--baseline", "none.json"), 1, "none.json is not there: give the report.json of an earlier climb"),
    ],
)
def test_wrong_usage_is_one_clear_sentence(tmp_path: Path, argv: tuple[str, ...], code: int, words: str) -> None:
    out = run(tmp_path, *argv, code=code)
    assert words in out
    assert "Traceback" not in out


def test_a_stand_in_that_registers_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    assert "does not register" in run(tmp_path, "--stand-in", "empty.py", code=1)


def test_a_forged_evidence_file_stops_the_command(tmp_path: Path, stand_in: Path) -> None:
    (tmp_path / "evidence.json").write_text('{"format": 1, "entries": [{"subject": "x", "digest": "' + "0" * 64 + '"}]}')
    out = run(tmp_path, "--rung", "V0", "--stand-in", str(stand_in), "--folder", "climb", "--evidence", "evidence.json", code=1)
    assert "the evidence in evidence.json is not used: " in out


def test_bench_writes_its_table_csv_json_and_plot(tmp_path: Path, stand_in: Path) -> None:
    out = run(tmp_path, "--shape", "64,512", "--stand-in", str(stand_in), "--rounds", "2", "--folder", "b", verb="bench", code=0)
    assert "64 x 512" in out
    assert "simulated: F.linear standing in, on the CPU" in out
    drawn = importlib.util.find_spec("matplotlib") is not None
    assert {"bench.json", "bench.csv"} <= {p.name for p in (tmp_path / "b").iterdir()}
    assert (tmp_path / "b" / "roofline.svg").is_file() is drawn
    assert ("matplotlib is not installed here" in out) is not drawn
    (row,) = json.loads((tmp_path / "b" / "bench.json").read_text())["rows"]
    assert row["fault"] == ""
    assert row["kernel"]["runs"] == 2


def test_bench_without_a_dcu_says_not_run(tmp_path: Path) -> None:
    assert "not run: there is no DCU in this process" in run(tmp_path, "--shape", "64,512", verb="bench", code=1)


def test_a_climb_that_is_told_to_end_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGTERM arrives inside V2: exit 143, V0 is kept, V2 is not; the same command with --resume finishes."""
    path = tmp_path / "stand_in.py"
    path.write_text("import os, pathlib\n" + STAND_IN.format(change=' if not pathlib.Path("die").exists() else os.kill(os.getpid(), 15)'))
    (tmp_path / "die").touch()
    argv = ("--shape", "128,512", "--stand-in", str(path), "--folder", "climb", "--rung", "V0", "--rung", "V2")
    run(tmp_path, *argv, code=143)
    assert not (tmp_path / "climb" / "rungs" / "V2.json").exists()
    (tmp_path / "die").unlink()
    out = run(tmp_path, *argv, "--resume", code=0)
    assert "V0 passed (resumed)" in out
    assert verdicts(tmp_path / "climb" / "report.json")["V2"] == "passed"
