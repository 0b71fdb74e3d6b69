"""Upstream's own tests of platform and attention selection, on upstream's tree and on the patched one: the same outcomes.

They run as on an MI300 (a stand-in amdsmi names gfx942), with an empty module for the compiled library that the CUDA
platform imports. Some fail or are skipped on upstream's own tree here; what counts is that nothing differs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts.rehearsal.platform_table import trees
from scripts.rehearsal.scenarios import FAKES, link_tree

FILES = (
    "tests/v1/attention/test_rocm_attention_backends_selection.py",
    "tests/kernels/attention/test_attention_selector.py",
    "tests/kernels/moe/test_unquantized_backend_selection.py",
    "tests/cuda/test_platform_no_cuda_init.py",
    "tests/test_attention_backend_registry.py",
    "tests/test_zen_cpu_platform_detection.py",
)


def outcomes(tree: Path, folder: Path) -> dict[str, str]:
    """test id -> PASSED, FAILED or SKIPPED (without the id: pytest names only the place)."""
    path = [link_tree(tree / "vllm", folder), FAKES]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTEST", "GFX936", "CUDA_VISIBLE", "HIP_"))}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, path)), "FAKE_AMDSMI_ARCH": "gfx942"}
    argv = [sys.executable, "-P", "-m", "pytest", "-q", "-rA", "--noconftest", "-p", "stand_in_compiled", "-p", "no:cacheprovider"]
    argv += ["-c", os.devnull, "--rootdir", str(tree), *[str(tree / file) for file in FILES]]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, flags=re.M)
    assert found, done.stdout + done.stderr
    return {name.split("tests/", 1)[1]: outcome for outcome, name in found}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, str]]:
    """Outcomes on (upstream, patched)."""
    folder = tmp_path_factory.mktemp("upstream-tests")
    pair = trees(folder, "tests")
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(outcomes, tree, folder / f"{tree.name}-path") for tree in pair]
        return jobs[0].result(), jobs[1].result()


def test_no_test_of_upstreams_changes_its_outcome(both: tuple[dict[str, str], dict[str, str]]) -> None:
    upstream, patched = both
    assert {t: (upstream.get(t), patched.get(t)) for t in upstream.keys() | patched.keys() if upstream.get(t) != patched.get(t)} == {}


def test_upstreams_tests_did_run(both: tuple[dict[str, str], dict[str, str]]) -> None:
    for name in ("test_rocm_attention_backends_selection.py", "test_attention_selector.py", "test_platform_no_cuda_init.py"):
        assert any(name in test and outcome == "PASSED" for test, outcome in both[1].items()), name
    assert sum(outcome == "PASSED" for outcome in both[1].values()) >= 40
    failed = {test.rsplit("::", 1)[1] for test, outcome in both[0].items() if outcome != "PASSED"}
    assert failed <= {
        "test_mla_backend_selection[env_vars1-TRITON_MLA-1-None-True]",  # the backend takes a block size of 1 by now
        "test_backend_selection[hip_TRITON_MLA_mla_T_blks1]",  # the same
        "test_fp32_fallback[cuda]",  # needs NVML
    }, "on upstream's own tree"
