"""`python -m vllm.dcu profile` of a real toy model on a simulated gfx936: what is planted in its steps is named first, with its milliseconds."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from vllm.config.compilation import PassConfig
from vllm.dcu.profile.report import Kind, Place, Profile, load_profile
from vllm.dcu.profile.suggest import _FUSIONS
from vllm.dcu.records.catalog import MISSION
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from scripts.common.paths import ROOT
from scripts.serving.server import model_folder, server_environment

STEPS = 4


def profiled(folder: Path, kind: str, plant: str, ms: float, **more: str) -> tuple[Profile, str, float]:
    """Profile a toy model with something planted in its steps; also returns the output and the median of what was planted, in ms a time."""
    plugin = folder / "plugin"
    (plugin / "planted_step-0.dist-info").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "runtime" / "planted_step.py", plugin)
    (plugin / "planted_step-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-step\nVersion: 0\n")
    (plugin / "planted_step-0.dist-info" / "entry_points.txt").write_text("[vllm.general_plugins]\nplanted_step = planted_step:register\n")
    (folder / "sim").mkdir()
    extra = {
        "PYTHONPATH": os.pathsep.join([str(plugin), str(ROOT / "scripts" / "rehearsal" / "plugin")]),
        "GFX936_SIM_ARCH": "gfx936:sramecc+:xnack-",
        "GFX936_SIM_LOG": str(folder / "sim"),
        # One thread waits for no other that a busy machine holds up: what is planted stays far above the rest.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PLANT": plant,
        "PLANT_MS": str(ms),
        "PLANT_LOG": str(folder / "planted"),
        **more,
    }
    python = Path(sys.executable)
    argv = [str(python), "-m", "vllm.dcu", "profile", "--model", str(model_folder(kind, python)), "--rows", "1", "--folder", "p"]
    argv += ["--steps", str(STEPS), "--context", "8", "--prefill", "8", "--timeout", "400"]
    argv += ["--", "--max-model-len", "64", "--dtype", "bfloat16", "--max-num-seqs", "2", "--seed", "0", "--enforce-eager"]
    env = server_environment(python, folder / "cache", extra)
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + (folder / "p" / "served" / "log.txt").read_text()[-3000:]
    each = statistics.median(map(float, (folder / "planted").read_text().split())) / 1e3
    return load_profile(folder / "p" / "profile.json"), done.stdout, each


@pytest.mark.parametrize(
    ("plant", "kind", "words"),
    [("slow", Kind.OPERATOR, "planted::slow"), ("gap", Kind.GAP, "nothing runs in 'gpu_model_runner: forward'")],
)
def test_a_planted_operator_and_a_planted_gap_are_named_first(tmp_path: Path, plant: str, kind: Kind, words: str) -> None:
    """Each of the model's two layers sleeps 300 ms a step: far above what a busy machine adds to a toy's step."""
    found, out, each = profiled(tmp_path, "tiny", plant, 300.0)
    decode = found.accounts[0]
    first = decode.suggestions[0]
    assert (first.kind, words in first.subject) == (kind, True), out
    assert first.ms == pytest.approx(2 * each, rel=0.1)
    assert f"1. {first.ms:.3f} ms  [{kind.value}]" in out
    assert found.binding.simulated
    kept = json.loads((tmp_path / "p" / "served" / "result.json").read_text())["kv"]
    assert kept == 2 * 2 * 2 * 64 * 2, "two layers, K and V, two heads of 64, two bytes each"
    assert json.loads((tmp_path / "p" / "profile.json").read_text())["accounts"][1]["phase"] == "prefill"


def test_a_planted_fallback_is_named_first(tmp_path: Path) -> None:
    """Gate/up of the mission's model goes to an `F.linear` of 800 ms in place of a hit."""
    found, out, each = profiled(tmp_path, "mission-1", "fallback", 800.0, VLLM_DCU_CAPABILITIES=f"{MISSION.id}=off")
    first = found.accounts[0].suggestions[0]
    assert (first.kind, "shut: capability-off" in first.subject) == (Kind.SHUT, True), out
    assert first.ms == pytest.approx(each, rel=0.1)
    assert first.command == "python -m vllm.dcu explain --m 34816 --k 5120 --n 1 --dtype bfloat16"


def test_a_hit_is_seen_as_a_hit_and_is_no_suggestion_to_open_anything(tmp_path: Path) -> None:
    """The control: with the capability open nothing sleeps, the kernel is seen in the trace, and no fallback is named."""
    (tmp_path / "planted").write_text("0")
    found, out, _ = profiled(tmp_path, "mission-1", "fallback", 800.0)
    decode, prefill = found.accounts
    (line,) = [line for line in decode.lines if line.linear and line.linear.m == 34816]
    assert line.linear is not None
    assert (line.linear.ran, line.linear.choice, line.linear.reasons, line.place) == ("LLMM1", MISSION.id, (), Place.DEVICE)
    assert not [one for one in decode.suggestions if one.kind is Kind.SHUT and "34816" in one.subject], out
    assert ["rows" in line.linear.reasons for line in prefill.lines if line.linear and line.linear.m == 34816] == [True]


def test_vllm_takes_every_flag_that_is_suggested() -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    passes = {field.name for field in dataclasses.fields(PassConfig)}
    asked = [words for words in (fusion.flag for fusion in _FUSIONS) if words]
    assert asked
    for words in (*asked, ("--async-scheduling",)):
        taken = parser.parse_args(["M", *words])
        config = getattr(taken, "compilation_config", None)
        if words[0] == "--compilation-config":
            assert set(json.loads(words[1])["pass_config"]) <= passes
            assert config
