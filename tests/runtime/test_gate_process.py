"""Whole processes: what a real start decides, logs, counts and refuses, in spawned and forked workers, with fake devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from vllm.dcu.dispatch.countfiles import write_merged
from vllm.dcu.records.catalog import MISSION

ID = MISSION.id

# A process that believes its vLLM platform is ROCm on ARCH: a fake amdsmi answers vllm.platforms.rocm's own query, and the platform
# object is the CPU's with the enum of ROCm, so that the operator is registered for the CPU and can be called.
START = """
import os, sys, types
arch = os.environ["TEST_ARCH"]
import torch
torch.set_num_threads(1)
from vllm.platforms import current_platform, PlatformEnum
import vllm.platforms
amdsmi = types.ModuleType("amdsmi")
class AmdSmiException(Exception): ...
amdsmi.AmdSmiException = AmdSmiException
amdsmi.amdsmi_init = amdsmi.amdsmi_shut_down = lambda *a: None
amdsmi.amdsmi_get_processor_handles = lambda: ["gpu0"]
amdsmi.amdsmi_get_gpu_asic_info = lambda h: {"target_graphics_version": arch, "device_id": "0x0", "market_name": "fake"}
amdsmi.amdsmi_topo_get_link_type = lambda *a: {"type": 0, "hops": 0}
sys.modules["amdsmi"] = amdsmi
for name in ("vllm._C", "vllm._rocm_C"):
    sys.modules.setdefault(name, types.ModuleType(name))
import vllm.platforms.rocm as rocm
view = type("View", (type(current_platform),), {"_enum": PlatformEnum.ROCM})()
vllm.platforms._current_platform = view
library = torch.library.Library("_rocm_C", "DEF")
library.define(os.environ.get("TEST_SCHEMA", "LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor"))
def llmm1(a, b, rows_per_block):
    assert a.shape == (34816, 5120) and b.shape == (1, 5120) and rows_per_block == 4
    return torch.nn.functional.linear(b, a)
library.impl("LLMM1", llmm1, "CPU")
if os.environ.get("TEST_TOOLCHAIN") != "real":
    torch.version.hip = "6.2.41133"
import vllm.dcu.dispatch.context as c
if os.environ.get("TEST_CODE_OBJECT") != "none":
    c._extension_targets = lambda *_: frozenset({"gfx936"})
"""

# The registration as patched runs when this module is imported; only the label is added to what is observed.
SIMULATED = """
import dataclasses
observe = c.observe_context
def simulated():
    found = observe()
    return found and dataclasses.replace(found, simulated="test: fake amdsmi, stand-in operator, code object asserted")
import vllm.dcu.gate as gate
gate.observe_context = simulated
import vllm.model_executor.layers.utils as U
"""

CALLS = """
def calls(hits, misses):
    weight = torch.zeros(34816, 5120, dtype=torch.bfloat16)
    x = torch.zeros(1, 5120, dtype=torch.bfloat16)
    for _ in range(hits):
        U.rocm_unquantized_gemm(None, x, weight)
    for _ in range(misses):
        U.rocm_unquantized_gemm(None, x.expand(2, -1), weight)
"""

# Starting vLLM costs seconds, so it is started once: every scenario is a fork of a process that has imported all that the module of the
# layers needs, but not that module, and no platform but the CPU's. The fork ends like any process, exit handlers included.
TEMPLATE = """
import json, os, sys, warnings
import vllm._custom_ops, vllm._aiter_ops, vllm.utils.torch_utils, vllm.utils.platform_utils, vllm.v1.attention.backends.registry
assert "vllm.model_executor.layers.utils" not in sys.modules and "vllm.platforms.rocm" not in sys.modules
print("ready", flush=True)
for line in sys.stdin:
    wanted = json.loads(line)
    child = os.fork()
    if child == 0:
        out = os.open(wanted["out"], os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(out, 1), os.dup2(out, 2)
        os.environ.update(wanted["environ"])
        exec(wanted["code"], {"__name__": "__main__"})
        break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, flush=True)
"""


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")} | {"TEST_ARCH": "gfx936"}


@dataclass(frozen=True)
class Done:
    """How a scenario ended, and what it wrote to standard output and error."""

    returncode: int
    text: str


class Template:
    """The process that scenarios are forked from."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.process = subprocess.Popen(
            [sys.executable, "-c", TEMPLATE], env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        while self._read() != "ready":
            pass

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the template process ended"
        return line.strip()

    def run(self, code: str, check: bool = True, **environ: str) -> Done:
        """Run `code` in a fork with `environ` added to a clean environment."""
        assert self.process.stdin is not None
        self.out.unlink(missing_ok=True)
        self.process.stdin.write(json.dumps({"code": code, "environ": environ, "out": str(self.out)}) + "\n")
        self.process.stdin.flush()
        done = Done(int(self._read()), self.out.read_text())
        assert not check or done.returncode == 0, done.text
        return done


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    made = Template(tmp_path_factory.mktemp("template"))
    yield made
    made.process.communicate(timeout=60)


def said(done: Done, word: str) -> list[str]:
    return [line for line in done.text.splitlines() if word in line]


def test_the_real_operator_dispatches_the_exact_shape_and_the_counters_say_so(template: Template, tmp_path: Path) -> None:
    """The registration as patched, in a process that believes it is on gfx936: decided, logged once, dispatched, counted, summed."""
    code = START + SIMULATED + CALLS + "calls(3, 2)\nassert gate.active().open\n"
    done = template.run(code, TEST_ARCH="gfx936:sramecc+:xnack-", VLLM_DCU_STATS_DIR=str(tmp_path))
    (opened,) = said(done, "is open")
    assert ID in opened
    assert "simulated: test" in opened
    (group,) = json.loads((tmp_path / "counters.json").read_text())["groups"]
    assert group["hits"] == {ID: 3}
    assert [(m["reason"], m["count"]) for m in group["misses"]] == [("rows", 2)]
    assert group["simulated"].startswith("test:")
    (summary,) = said(done, "DCU dispatches")
    assert "simulated: test" in summary


@pytest.mark.parametrize("arch", ["gfx928", "gfx90a", "gfx942", "gfx1100", "gfx9360"])
def test_on_another_arch_nothing_is_decided_logged_or_counted(template: Template, tmp_path: Path, arch: str) -> None:
    code = START + SIMULATED + "assert gate.active() is None\nprint('started')\n"
    done = template.run(code, TEST_ARCH=arch, VLLM_DCU_STATS_DIR=str(tmp_path))
    assert "started" in done.text
    assert not said(done, "DCU capability")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"TEST_CODE_OBJECT": "none"}, "code-object-unknown"),
        ({"TEST_SCHEMA": "LLMM1(Tensor a, Tensor b, int rows) -> Tensor"}, "op-schema"),
        ({"TEST_TOOLCHAIN": "real"}, "toolchain-mismatch"),
        ({"VLLM_DCU_CAPABILITIES": f"{ID}=off"}, "capability-off"),
        ({"VLLM_ROCM_USE_SKINNY_GEMM": "no"}, "skinny-gemm-off"),
        ({"VLLM_BATCH_INVARIANT": "1"}, "batch-invariant"),
    ],
)
def test_each_missing_fact_closes_the_capability_and_is_said_once(template: Template, environ: dict[str, str], reason: str) -> None:
    code = START + SIMULATED + CALLS + "calls(1, 0)\nprint([c.key.reason for c in gate.active().tally.snapshot()])\n"
    done = template.run(code, **environ)
    (closed,) = said(done, "is closed")
    assert f"[{reason}]" in closed
    assert f"['{reason}']" in done.text


@pytest.mark.parametrize("evidence", ["/", "/dev/zero", "/dev/null/x"])
def test_evidence_that_is_no_file_shuts_and_vllm_starts(template: Template, evidence: str) -> None:
    code = START + SIMULATED + CALLS + "calls(1, 0)\nprint([c.key.reason for c in gate.active().tally.snapshot()])\n"
    done = template.run(code, VLLM_DCU_EVIDENCE=evidence)
    assert f"the evidence in {evidence} is not used" in done.text
    assert "['site-refused']" in done.text
    assert "Traceback" not in done.text


@pytest.mark.parametrize("value", [" 1 ", "yes", "TRUE", "on"])
def test_an_on_word_leaves_the_capability_open(template: Template, value: str) -> None:
    """Upstream takes "yes" and " 1 " for off without a word."""
    assert said(template.run(START + SIMULATED, VLLM_ROCM_USE_SKINNY_GEMM=value), "is open")


def test_force_opens_against_the_toolchain_and_is_loud(template: Template) -> None:
    done = template.run(START + SIMULATED, TEST_TOOLCHAIN="real", VLLM_DCU_CAPABILITIES=f"{ID}=force")
    (line,) = said(done, "FORCED OPEN")
    assert "WARNING" in line
    assert "hip is unknown, verified with 6.2" in line


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"VLLM_ROCM_USE_SKINNY_GEMM": "nonsense"}, "VLLM_ROCM_USE_SKINNY_GEMM"),
        ({"VLLM_DCU_CAPABILITIES": "nonsense"}, "VLLM_DCU_CAPABILITIES"),
        ({"VLLM_DCU_CAPABILITIES": "llmm9=off"}, "VLLM_DCU_CAPABILITIES"),
        ({"VLLM_DCU_CAPABILITIES": "llmm1-gfx936-bf16-n1-m5120-k17408=force"}, "VLLM_DCU_CAPABILITIES"),
    ],
)
def test_nonsense_stops_the_start_and_names_the_variable(template: Template, environ: dict[str, str], name: str) -> None:
    done = template.run(START + SIMULATED, check=False, **environ)
    assert done.returncode != 0
    assert f"EnvError: {name}" in done.text


WORKERS = """
import multiprocessing
if __name__ == "__main__":
    calls(1, 0)
    workers = [multiprocessing.get_context(METHOD).Process(target=work, args=(n,)) for n in (2, 4)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0], workers
    calls(1, 0)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_decide_alike_and_their_hits_are_added_up(tmp_path: Path, method: str) -> None:
    """The engine core is a child; spawned ones decide anew, forked ones inherit the decision and start from zero."""
    script = tmp_path / "server.py"
    stats = tmp_path / "stats"
    body = START + SIMULATED + CALLS + "def work(n):\n    calls(n, 1)\n"
    script.write_text(body + WORKERS.replace("METHOD", repr(method)))
    env = clean_environment() | {"VLLM_DCU_STATS_DIR": str(stats)}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (group,) = json.loads(write_merged(stats).read_text())["groups"]
    assert group["hits"] == {ID: 8}
    assert len(group["processes"]) == 3
    assert [(m["reason"], m["count"]) for m in group["misses"]] == [("rows", 2)]


def test_ten_thousand_refused_calls_leave_one_line(template: Template) -> None:
    """Ten thousand refused calls log one line for each reason and shape."""
    code = (
        START
        + SIMULATED
        + """
small = torch.zeros(8, 8, dtype=torch.bfloat16)
weight = torch.empty(34816, 5120, dtype=torch.bfloat16, device="meta")
x = torch.empty(2, 5120, dtype=torch.bfloat16, device="meta")
for _ in range(10_000):
    gate.active().gemm(x, weight)
    U.rocm_unquantized_gemm(None, small, small)
"""
    )
    done = template.run(code)
    lines = said(done, "refused")
    assert len(lines) == 1
    assert "'rows'" in lines[0]


def test_vllm_knows_the_variables_and_keeps_them_out_of_the_compile_cache(template: Template, tmp_path: Path) -> None:
    code = """
import vllm.envs as envs
before = envs.compile_factors()
import os
assert envs.VLLM_DCU_CAPABILITIES == {} and envs.VLLM_DCU_STATS_DIR is None
os.environ["VLLM_DCU_CAPABILITIES"] = "a=off"
os.environ["VLLM_DCU_STATS_DIR"] = "/x"
assert envs.compile_factors() == before and [k for k in before if "DCU" in k] == ["VLLM_DCU_BESIDE"]
assert envs.is_set("VLLM_DCU_CAPABILITIES")
from vllm.dcu.env import environment_variables as ours
assert set(ours) <= set(envs.environment_variables), ours
envs.validate_environ(hard_fail=True)
os.environ["VLLM_DCU_CAPABILITIES"] = "a"
try:
    envs.VLLM_DCU_CAPABILITIES
except ValueError as error:
    print("refused:", error)
"""
    assert said(template.run(code), "refused: VLLM_DCU_CAPABILITIES")


def test_the_build_reads_vllms_environment_file_alone(template: Template, tmp_path: Path) -> None:
    """setup.py loads vllm/envs.py by its path, where no package vllm can be imported."""
    import vllm.envs

    code = f"""
import sys, importlib.util
sys.path = [p for p in sys.path if p and not __import__("os").path.isdir(p + "/vllm")]
sys.modules["vllm"] = None
spec = importlib.util.spec_from_file_location("envs", {vllm.envs.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print("target", module.VLLM_TARGET_DEVICE)
"""
    assert said(template.run(code), "target")


VERB = "import sys, vllm.dcu.__main__ as m\nsys.exit(m.main({}))\n"


def test_the_command_line_explains_on_any_machine(template: Template) -> None:
    done = template.run(VERB.format(["explain", "--arch", "gfx936", "--m", "34816", "--k", "5120", "--json"]))
    data = json.loads(done.text[done.text.index("{\n") :])
    assert (data["taken"], data["runs"]) == (ID, "LLMM1")
    assert "assumed" in data["simulated"]


def test_the_command_line_says_that_this_machine_has_no_dcu(template: Template) -> None:
    assert said(template.run(VERB.format(["explain", "--m", "34816", "--k", "5120"])), "does not run on a DCU")


def test_the_module_can_be_run(tmp_path: Path) -> None:
    """`python -m vllm.dcu`, as a user types it."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm.dcu", "counters", str(tmp_path / "none")], env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "VLLM_DCU_STATS_DIR" in done.stderr
