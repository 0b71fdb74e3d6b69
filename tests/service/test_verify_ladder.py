"""V3, V4 and V5 climbed on a simulated device with a real model run and real servers: the command as a person gives it.

V6 and V7 drive the same children and take minutes more: they were climbed by hand (docs/verify.md), and their verdicts have unit tests.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from scripts.common.paths import ROOT
from scripts.serving.ready import ready_python
from scripts.serving.server import model_folder, server_environment

STAND_IN = """
import torch
LABEL = "a test of the upper rungs"
library = torch.library.Library("_rocm_C", "DEF")
library.define("LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor")
library.impl("LLMM1", lambda a, b, rows: torch.nn.functional.linear(b, a), "CPU")
"""


def test_tensors_dispatch_and_service_on_a_simulated_device(tmp_path: Path) -> None:
    python = ready_python()
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    (tmp_path / "sim").mkdir()
    extra = {
        "PYTHONPATH": str(ROOT / "scripts" / "rehearsal" / "plugin"),
        "GFX936_SIM_ARCH": "gfx936:sramecc+:xnack-",
        "GFX936_SIM_LOG": str(tmp_path / "sim"),
    }
    argv = [str(python), "-m", "vllm.dcu", "verify", "--stand-in", "stand_in.py", "--folder", "climb", "--evidence", "evidence.json"]
    argv += ["--model", str(model_folder("mission-1", python)), "--tokens", "4", "--rung", "V3", "--rung", "V4", "--rung", "V5"]
    argv += ["--", "--max-model-len", "256", "--dtype", "bfloat16", "--max-num-seqs", "2", "--seed", "0", "--enforce-eager"]
    env = server_environment(python, tmp_path / "cache", extra)
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    steps = {step["id"]: step for step in json.loads((tmp_path / "climb" / "report.json").read_text())["steps"]}
    assert steps["V3"]["result"]["figures"]["taken"] == 1
    assert steps["V4"]["result"]["figures"]["hits by counter"] == steps["V4"]["result"]["figures"]["runs by profiler"] == 3
    assert steps["V5"]["result"]["figures"]["on: hits"] == 3
    assert steps["V5"]["result"]["figures"]["off: hits"] == 0
    (entry,) = json.loads((tmp_path / "evidence.json").read_text())["entries"]
    assert entry["binding"]["simulated"].startswith("a test of the upper rungs")
