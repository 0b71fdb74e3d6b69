"""The vllm that this interpreter imports is the patched wheel, whole, and says so."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import vllm
from vllm.dcu import manifest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(vllm.__file__).parent


def test_the_running_build_is_whole() -> None:
    assert manifest.examine(PACKAGE).problems == ()


def test_it_was_made_of_the_series_of_this_checkout() -> None:
    tree = re.search(r"(?m)^tree (\S+)$", (ROOT / "patches" / "series.lock").read_text())
    assert tree is not None
    assert manifest.read().tree == tree[1]


def test_c40_module_metadata_and_manifest_say_one_version() -> None:
    assert vllm.__version__ == importlib.metadata.version("vllm") == manifest.read().version
    assert re.fullmatch(r"\d+\.\d+\.\d+\+gfx936\.\d+(\.cpu)?", vllm.__version__)


def test_c41_the_wheel_does_not_ask_for_another_torch_than_the_one_that_serves() -> None:
    from packaging.requirements import Requirement

    pins = {
        r.name: r.specifier
        for r in map(Requirement, importlib.metadata.requires("vllm") or [])
        if r.marker is None or r.marker.evaluate({"extra": ""})
    }
    assert pins["torch"].contains(importlib.metadata.version("torch"))
    assert pins["torch"].contains("2.10.0+das.opt1.dtk2604"), "a vendor's build of that release satisfies the pin"


@pytest.mark.parametrize("first", [True, False])
def test_c44_of_two_copies_the_running_one_is_named(tmp_path: Path, first: bool) -> None:
    stock = tmp_path / "vllm"
    stock.mkdir()
    (stock / "__init__.py").write_text("")
    code = (
        "import sys, importlib.util as u; from importlib.machinery import PathFinder; from pathlib import Path\n"
        f"s = u.spec_from_file_location('m', {str(PACKAGE / 'dcu' / 'manifest.py')!r}); m = u.module_from_spec(s)\n"
        "sys.modules['m'] = m; s.loader.exec_module(m)\n"
        f"sys.path.{'insert(0, ' if first else 'append('}{str(tmp_path)!r})\n"
        "v = m.examine(Path(PathFinder.find_spec('vllm').origin).parent)\n"
        "print(v.package, len(v.problems), len(v.notes), sep='\\n')"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == ([str(stock), "1", "1"] if first else [str(PACKAGE), "0", "1"])


def test_the_build_can_be_asked_what_it_is() -> None:
    argv = [sys.executable, "-m", "vllm.dcu", "manifest"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert f"version   {vllm.__version__}, target " in text
    assert text.rstrip().endswith("whole: every file is the one that was built")
    data = json.loads(subprocess.run([*argv, "--json"], capture_output=True, text=True, check=True).stdout)
    assert (data["problems"], data["manifest"]["tree"]) == ([], manifest.read().tree)
