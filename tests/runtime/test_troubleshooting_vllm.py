"""Rows of docs/troubleshooting.md whose message is vLLM's own: provoked in a child of the serving Python."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.troubleshooting import row

# The wheel under test is a CPU build, and vLLM picks its platform by that word of the installed version.
_NOT_A_CPU_BUILD = """
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: "0.18.1+gfx936.1" if name == "vllm" else real(name)
from vllm.config.device import DeviceConfig
DeviceConfig()
"""


def child(code: str, **environ: str) -> str:
    """Standard error of a Python child that must fail."""
    env = {key: value for key, value in os.environ.items() if "VISIBLE_DEVICES" not in key and key != "LD_PRELOAD"}
    done = subprocess.run([sys.executable, "-c", code], env={**env, **environ}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr


def test_row_no_platform(tmp_path) -> None:
    """No amdsmi, no KFD node, and a torch that is not built for HIP."""
    said = child(_NOT_A_CPU_BUILD, VLLM_DCU_TEST_KFD_ROOT=str(tmp_path))
    assert row("no_platform").symptom in said


def test_row_visible() -> None:
    said = child("import vllm.platforms.rocm", HIP_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="1")
    assert row("visible").symptom in said
