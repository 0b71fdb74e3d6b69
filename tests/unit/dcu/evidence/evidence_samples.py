"""Evidence made by hand for the tests of the store and the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vllm.dcu.dispatch.context import Context, NativeOp
from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Result, failed, passed
from vllm.dcu.evidence.site import Site, judge
from vllm.dcu.evidence.store import RUNG_IDS, Entry
from vllm.dcu.records.catalog import MISSION
from vllm.dcu.records.catalog import records_by_id as records_by_id
from vllm.dcu.records.kernels import LLMM1
from vllm.dcu.records.record import Contract, Evidence, Record, Toolchain, Verdict

BUILT_IN = MISSION.id
SITE = "site-llmm1-gfx936-bfloat16-n1-m14336-k5120"
DATE = "2026-11-30T08:00:00Z"

BINDING = Binding(
    device="1d94:6210",
    arch="gfx936",
    toolchain=Toolchain("2.10.0", "6.2.0", "0.18.1", "3.10.12"),
    hip_runtime=f"libamdhip64.so.6 {'aa' * 32}",
    dtk="26.04",
    build=f"0.18.1+gfx936.1 {'7e' * 20}",
    extension="ee" * 32,
    driver="hydcu 6.2",
)
SIMULATED = replace(BINDING, simulated="LLMM1 on the host")


def rungs(**changed: Result) -> dict[str, Result]:
    """Every rung passed, but for the changed ones."""
    return {name: changed.get(name, passed({"seen": 1})) for name in RUNG_IDS}


def entry(
    binding: Binding = BINDING,
    subject: str = BUILT_IN,
    results: Mapping[str, Result] | None = None,
    record: Record | None = None,
    date: str = DATE,
) -> Entry:
    found = rungs() if results is None else dict(results)
    return Entry(subject, binding, found, dict.fromkeys(found, date), record)


def site_record(binding: Binding = BINDING, verdict: Verdict = Verdict.OPEN) -> Record:
    built_in = records_by_id()[BUILT_IN]
    seen = Evidence("kernel", "right and faster", "verify", binding.device, "as bound", "2026-11-30", on_hardware=not binding.simulated)
    return replace(
        built_in,
        id=SITE,
        verdict=verdict,
        target=replace(built_in.target, toolchain=replace(binding.toolchain, python="")),
        contract=Contract("bfloat16", 1, 14336, 5120, args={"rows_per_block": 4}),
        evidence=(seen,),
    )


def site_of(*entries: Entry, binding: Binding = BINDING) -> Site:
    return judge(entries, binding)


def context(binding: Binding = BINDING, site: Site | None = None) -> Context:
    """A process on that binding with everything in place that a build can have."""
    return Context(
        arch=binding.arch,
        device_type="cuda",
        toolchain=binding.toolchain,
        ops={LLMM1.op: NativeOp(LLMM1.schema, lambda *args: None)},
        code_objects=frozenset({"gfx936"}),
        simulated=binding.simulated,
        site=Site() if site is None else site,
    )


WRONG = failed("relative error 0.45")
