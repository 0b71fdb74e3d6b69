"""The host checks before LLMM1's launch (csrc/rocm/dcu_contract.h), compiled and called."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.common.paths import ROOT
from tests.support import not_run

# One call a line on standard input: M K(a) K(b) N rows wavefront dtypes devices contiguity addresses grad dims strided
DRIVER = r"""
#include <iostream>
#include "dcu_contract.h"
int main() {
  vllm_dcu::Llmm1Call c;
  std::int64_t kb, n;
  std::string da, db, va, vb;
  while (std::cin >> c.a.rows >> c.a.cols >> kb >> n >> c.rows_per_block >> c.wavefront >> da >> db >> va >> vb >>
         c.a.contiguous >> c.b.contiguous >> c.a.address >> c.b.address >> c.a.wants_grad >> c.a.dim >> c.b.dim >> c.a.strided) {
    c.a.name = "in_a"; c.b.name = "in_b"; c.b.cols = kb; c.b.rows = n; c.b.strided = true; c.b.wants_grad = false;
    c.a.dtype = da; c.b.dtype = db; c.a.device = va; c.b.device = vb;
    c.a.reduced_float = da == "BFloat16" || da == "Half"; c.b.reduced_float = db == "BFloat16" || db == "Half";
    c.a.on_gpu = va.rfind("cuda", 0) == 0; c.b.on_gpu = vb.rfind("cuda", 0) == 0;
    std::cout << vllm_dcu::llmm1_refusal(c) << "\n";
  }
  std::cerr << vllm_dcu::is_dcu_arch("gfx936") << vllm_dcu::is_dcu_arch("gfx936:sramecc+:xnack-") << vllm_dcu::is_dcu_arch("gfx9360")
            << vllm_dcu::is_dcu_arch("gfx93") << vllm_dcu::is_dcu_arch("GFX936") << vllm_dcu::is_dcu_arch("")
            << vllm_dcu::is_dcu_arch("gfx936x:") << vllm_dcu::is_dcu_arch("gfx906");
}
"""
FIT: dict[str, object] = {
    "M": 34816, "K": 5120, "Kb": 5120, "N": 1, "rows": 4, "wave": 64, "da": "BFloat16", "db": "BFloat16", "va": "cuda:0", "vb": "cuda:0",
    "ca": 1, "cb": 1, "pa": 4096, "pb": 8192, "grad": 0, "dima": 2, "dimb": 2, "strided": 1,
}  # fmt: skip
REFUSED: list[tuple[dict[str, object], str]] = [
    ({"N": 2}, "in_b has 2 rows"),
    ({"N": 0}, "in_b has 0 rows"),
    ({"Kb": 5112}, "in_a has K=5120 and in_b K=5112"),
    ({"da": "Float", "db": "Float"}, "in_a is Float"),
    ({"db": "Char"}, "in_b is Char"),
    ({"db": "Half"}, "in_a is BFloat16 and in_b Half"),
    ({"va": "cpu"}, "in_a is on cpu"),
    ({"vb": "cuda:1"}, "in_a is on cuda:0 and in_b on cuda:1"),
    ({"ca": 0}, "in_a is not contiguous"),
    ({"cb": 0}, "in_b is not contiguous"),
    ({"pa": 4098}, "in_a starts at an address 2 bytes past"),
    ({"pb": 8200}, "in_b starts at an address 8 bytes past"),
    ({"M": 34815}, "in_a has M=34815 rows, not a multiple of rows_per_block=4"),
    ({"M": 34818}, "M=34818"),
    ({"K": 5124, "Kb": 5124}, "in_a has K=5124, not a multiple of 8"),
    ({"K": 8200, "Kb": 8200}, "in_a has K=8200; LLMM1 sums at most 8192"),
    ({"K": 17408, "Kb": 17408, "M": 5120}, "K=17408"),
    ({"M": 262144, "K": 8192, "Kb": 8192}, "in_a has M*K=262144*8192 elements"),
    ({"rows": 3}, "rows_per_block is 3"),
    ({"rows": 0}, "rows_per_block is 0"),
    ({"wave": 32}, "the device has 32 lanes"),
    ({"grad": 1}, "in_a requires grad"),
    ({"dima": 1}, "in_a is 1-dimensional"),
    ({"dimb": 3}, "in_b is 3-dimensional"),
    ({"strided": 0}, "in_a is not a strided tensor"),
]
ACCEPTED: list[dict[str, object]] = [
    {},
    {"da": "Half", "db": "Half"},
    {"K": 8192, "Kb": 8192},
    {"M": 262140, "K": 8192, "Kb": 8192},
    {"rows": 16},
    {"M": 0, "pa": 0},
    {"K": 0, "Kb": 0, "pa": 0, "pb": 0},
    {"M": 2, "rows": 2, "K": 8, "Kb": 8},
]


#: What cmake/dcu.cmake says our own C++ was compiled as: here is where it is.
STANDARDS = re.findall(r"set\(VLLM_DCU_CXX_STANDARDS ([\d ]+)\)", (ROOT / "overlay" / "cmake" / "dcu.cmake").read_text())[0].split()


@pytest.fixture(scope="module", params=STANDARDS)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++")
    if compiler is None:
        not_run("no C++ compiler")
    folder = tmp_path_factory.mktemp("contract")
    (folder / "driver.cpp").write_text(DRIVER)
    argv = [
        compiler,
        f"-std=c++{request.param}",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        str(ROOT / "csrc" / "rocm"),
        "driver.cpp",
        "-o",
        "driver",
    ]
    subprocess.run(argv, cwd=folder, check=True)
    return folder / "driver"


def ask(driver: Path, calls: list[dict[str, object]]) -> list[str]:
    lines = "".join(" ".join(str(v) for v in {**FIT, **call}.values()) + "\n" for call in calls)
    return subprocess.run([driver], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()


def test_every_call_the_kernel_cannot_compute_is_refused_by_argument_and_value(driver: Path) -> None:
    answers = ask(driver, [call for call, _ in REFUSED])
    assert len(answers) == len(REFUSED)
    for (call, says), answer in zip(REFUSED, answers, strict=True):
        assert says in answer, (call, answer)


def test_a_fitting_call_is_not_refused(driver: Path) -> None:
    assert ask(driver, ACCEPTED) == [""] * len(ACCEPTED)


def test_only_the_exact_arch_is_a_dcu(driver: Path) -> None:
    done = subprocess.run([driver], input="", capture_output=True, text=True, check=True)
    assert done.stderr == "11000000"


def test_the_checks_really_depend_on_the_limit_of_the_wavefront(driver: Path, tmp_path: Path) -> None:
    """A planted fault: with 32 lanes in dcu_arch.h, the reach is 4096 and the fitting call is refused."""
    for name in ("dcu_arch.h", "dcu_contract.h"):
        text = (ROOT / "csrc" / "rocm" / name).read_text()
        (tmp_path / name).write_text(text.replace("VLLM_DCU_WAVEFRONT 64", "VLLM_DCU_WAVEFRONT 32"))
    (tmp_path / "driver.cpp").write_text(DRIVER)
    subprocess.run(["c++", "-std=c++17", "driver.cpp", "-o", "driver"], cwd=tmp_path, check=True)
    assert ask(tmp_path / "driver", [{"wave": 32}]) == [
        "in_a has K=5120; LLMM1 sums at most 4096 at 32 lanes a wavefront and drops the rest"
    ]
