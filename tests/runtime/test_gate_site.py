"""The gate of a process that takes itself for gfx936 with HIP 6.3 reads the site's evidence: exact match, changed version, damaged file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.runtime.platform_scenarios import DCU, Ask

# The parts of a binding that no machine without a DCU has are files here; everything else is read as on a DCU.
CODE = """
import logging, os
from pathlib import Path
import torch
from vllm.dcu import gate
from vllm.dcu.evidence import binding
from vllm.dcu.records.catalog import CATALOG
from vllm.dcu.dispatch.context import observe_context
from vllm.dcu.evidence.store import RUNG_IDS, Entry, add
from vllm.dcu.evidence.ladder import passed

here = Path(os.environ["HERE"])
for name in ("libamdhip64.so.6", "_rocm_C.so"):
    (here / name).write_bytes(name.encode())
binding._hip_library = lambda: here / "libamdhip64.so.6"
binding.module_file = lambda name: here / "_rocm_C.so"
binding._driver = lambda: "hydcu 6.2"
binding._build = lambda: "0.18.1+gfx936.1 " + "a" * 40
store = Path(os.environ["VLLM_DCU_EVIDENCE"])
record = CATALOG[0]

class Kept(logging.Handler):
    def emit(self, line): said.append(line.getMessage())

said = []
logging.getLogger("vllm").addHandler(Kept())

def standing():
    said.clear()
    gate.wrap(lambda x, weight, bias=None: None)
    return [reason.value for reason in gate.active().standing[record.id]]

result = {"without": standing()}
seen = observe_context()
bound = binding.observe_binding(seen.arch, seen.toolchain)
rungs = {name: passed({"seen": 1}) for name in RUNG_IDS}
add(store, Entry(record.id, bound, rungs, dict.fromkeys(rungs, "2026-11-30T08:00:00Z")))
result["exact"], result["exact says"] = standing(), [s for s in said if "verify" in s]
for name, module, attribute, value in (
    ("torch", torch, "__version__", "2.10.1"), ("hip", torch.version, "hip", "6.4.1")
):
    before = getattr(module, attribute)
    setattr(module, attribute, value)
    result[name], result[name + " says"] = standing(), [s for s in said if "was verified with another" in s]
    setattr(module, attribute, before)
(here / "_rocm_C.so").write_bytes(b"rebuilt")
result["rebuilt"] = standing()
(here / "_rocm_C.so").write_bytes(b"_rocm_C.so")
result["again"] = standing()
store.write_text("{")
result["damaged"], result["damaged says"] = standing(), [s for s in said if "Move the file away" in s]
"""
BUILD = {"op-missing", "code-object-missing"}


def seen(ask: Ask, tmp_path: Path) -> Any:
    return ask(CODE, kfd=ask.sysfs(DCU), env={"HERE": str(tmp_path), "VLLM_DCU_EVIDENCE": str(tmp_path / "evidence.json")})


def test_the_gate_follows_the_sites_evidence(ask: Ask, tmp_path: Path) -> None:
    found = seen(ask, tmp_path)
    reasons = {name: set(value) - BUILD for name, value in found.items() if not name.endswith("says")}
    assert reasons == {
        "without": {"toolchain-mismatch"},
        "exact": set(),
        "torch": {"toolchain-mismatch", "site-lapsed"},
        "hip": {"toolchain-mismatch", "site-lapsed"},
        "rebuilt": {"toolchain-mismatch", "site-lapsed"},
        "again": set(),
        "damaged": {"toolchain-mismatch", "site-refused"},
    }
    for name in ("torch", "hip"):
        (sentence,) = found[f"{name} says"]
        assert f"another {name};" in sentence
        assert "python -m vllm.dcu verify --capability llmm1-gfx936-bf16-n1-m34816-k5120" in sentence
    assert len(found["damaged says"]) == 1
