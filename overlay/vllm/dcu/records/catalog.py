# SPDX-License-Identifier: Apache-2.0
"""The built-in capability records: one positive, the others negative.  Standard library only.

The only positive record is the public field report's. Its hardware evidence is a cold start, a health check and one short
request; the report claims neither throughput nor accuracy, and so does this record. Figures that users published for other
shapes say what is plausible and open nothing: those shapes stand here as negative records until someone verifies them.
"""

from vllm.dcu.records.kernels import LLMM1, Kernel
from vllm.dcu.records.record import Contract, Evidence, Record, RecordError, Semantics, Target, Toolchain, Verdict

__all__ = ["CATALOG", "EXTENSIONS", "MISSION", "check_catalog", "records_by_id", "semantics_of"]

_REPORT_TOOLCHAIN = "Python 3.10, PyTorch 2.10, HIP 6.2.0, vLLM 0.18.1"
_REPORT_DEVICE = "one Hygon DCU, gfx936"

EXTENSIONS = {
    "LLMM1": "vllm._rocm_C with a gfx936 code object that holds LLMM1 and no other kernel of skinny_gemms.cu",
    "GEMV": "vllm._dcu_C with a gfx936 code object that holds the kernels of csrc/dcu/gemv_variants.h and no other",
}
"""What the target's extension must hold, by kernel."""

_GFX936 = Target(
    arch="gfx936",
    wavefront=64,
    toolchain=Toolchain(torch="2.10", hip="6.2", vllm="0.18.1", python="3.10"),
    extension=EXTENSIONS["LLMM1"],
)


def semantics_of(kernel: Kernel) -> Semantics:
    """How the framework sees a call that `kernel` takes."""
    return Semantics(
        op=kernel.op,
        schema=kernel.schema,
        fake="vllm::rocm_unquantized_gemm's: (*x.shape[:-1], M), x's dtype and device; no device code runs",
        mutates=(),
        autograd="none: as upstream, the operator is for inference",
        graph="one opaque operator; a captured graph replays the choice made at capture, and counters count dispatches only",
    )


_FIELD_REPORT = "docs/evidence/field-report.md"
"""What others published from the device, as text: a claim about hardware names where it can be read."""


def _report(rung: str, claim: str) -> Evidence:
    return Evidence(
        rung,
        claim,
        source=_FIELD_REPORT,
        device=_REPORT_DEVICE,
        toolchain=_REPORT_TOOLCHAIN,
        date="unknown",
        on_hardware=True,
    )


def _rehearsed(rung: str, claim: str, source: str, device: str, toolchain: str) -> Evidence:
    return Evidence(rung, "rehearsal: " + claim, source=source, device=device, toolchain=toolchain, date="2026-11-30", on_hardware=False)


_GPU_REPORT = ("docs/evidence/gpu-rehearsal.md", "NVIDIA H200, 32 lanes: not gfx936", "CUDA 13.0, PyTorch 2.11.0")


def _negative(ident: str, kernel: str, contract: Contract, rung: str, claim: str, source: str, why: str, revisit: str) -> Record:
    hardware = source == _FIELD_REPORT
    return Record(
        id=ident,
        kernel=kernel,
        verdict=Verdict.CLOSED,
        target=_GFX936,
        contract=contract,
        semantics=None,
        evidence=(
            Evidence(
                rung,
                claim,
                source=source,
                device=_REPORT_DEVICE if hardware else "none",
                toolchain="not stated",
                date="unknown",
                on_hardware=hardware,
            ),
        ),
        fallback="F.linear",
        why=why,
        revisit=revisit,
    )


def _unverified_llmm1(name: str, m: int, k: int, linear_ms: str, llmm1_ms: str, faster: bool) -> Record:
    return _negative(
        f"llmm1-gfx936-bf16-n1-m{m}-k{k}",
        "LLMM1",
        Contract("bfloat16", 1, m, k),
        "kernel",
        f"{name}: F.linear {linear_ms} ms, LLMM1 {llmm1_ms} ms",
        _FIELD_REPORT,
        why=f"{name}: not part of the report; nobody has verified numbers and dispatch for it"
        if faster
        else f"{name}: F.linear is faster there",
        revisit="when it is verified on the user's own device" if faster else "when the kernel changes",
    )


_ANY = Contract(dtype=None, n=None, m=None, k=None)
_WVSPLITK_WHY = (
    "its FP16 branch uses v_dot2c_f32_f16, which gfx936 is reported not to have; built without its arch macro it is an "
    "empty shell that aborts; at N=1 wrong numbers were reported"
)

MISSION = Record(
    id="llmm1-gfx936-bf16-n1-m34816-k5120",
    kernel="LLMM1",
    verdict=Verdict.OPEN,
    target=_GFX936,
    contract=Contract(
        dtype="bfloat16",
        n=1,
        m=34816,
        k=5120,
        alignment=16,
        args={"rows_per_block": 4},
        instructions="no v_dot2c*, no v_mfma*; 1024 bytes of LDS at wavefront 64; no scratch",
    ),
    semantics=semantics_of(LLMM1),
    evidence=(
        _report("service", "cold start of `vllm serve` with the capability open"),
        _report("service", "health check of that server"),
        _report("service", "one short request answered by that server"),
        _rehearsed("kernel", "the kernel's own text agrees with float64 up to K=4096, and is refused at K=5120 on 32 lanes", *_GPU_REPORT),
        _rehearsed("graph", "opcheck, fullgraph with dynamic N, capture; the kernel seen in each of 5 replays", *_GPU_REPORT),
        _rehearsed(
            "kernel",
            "the kernel's own text and its gfx906 object, run at wavefront 64, agree bit for bit and with float64 (3.1e-3, norm-wise)",
            "docs/llmm1-numerics.md",
            "CPU, emulated wavefront 64: not gfx936",
            "clang 19, HIP 6.4 headers",
        ),
        _rehearsed(
            "service",
            "vllm serve with a simulated gfx936: hits = layers x (T - 1), eager and compiled; off is F.linear digit for digit",
            "docs/rehearsal.md",
            "CPU, simulated gfx936",
            "PyTorch 2.10.0, vLLM 0.18.1",
        ),
    ),
    fallback="F.linear",
    why="Qwen3.5-27B's MLP gate/up projection at decode",
    revisit="when the device, PyTorch, HIP or vLLM differs from the target",
)
"""The one positive record: what a command is about where it is told no other."""

CATALOG: tuple[Record, ...] = (
    MISSION,
    _negative(
        "llmm1-gfx936-bf16-n1-m5120-k17408",
        "LLMM1",
        Contract("bfloat16", 1, 5120, 17408),
        "kernel",
        "K=17408 is above the kernel's 8192",
        "read in the kernel's source",
        why="MLP down: K is too long for the kernel, and F.linear is faster there",
        revisit="when the kernel changes",
    ),
    _unverified_llmm1("attention qkv and gate", 14336, 5120, "0.234", "0.154", faster=True),
    _unverified_llmm1("Gated DeltaNet q, k, v, z", 16384, 5120, "0.239", "0.175", faster=True),
    _unverified_llmm1("Gated DeltaNet b, a", 96, 5120, "0.0235", "0.0109", faster=True),
    _unverified_llmm1("attention and Gated DeltaNet out", 5120, 6144, "0.0501", "0.0688", faster=False),
    _unverified_llmm1("lm_head", 248320, 5120, "1.897", "2.517", faster=False),
    _negative(
        "wvsplitk-gfx936",
        "wvSplitK",
        _ANY,
        "kernel",
        "wrong numbers without a fault at N=1",
        _FIELD_REPORT,
        why=_WVSPLITK_WHY,
        revisit="when a source for gfx936 without that instruction exists",
    ),
    _negative(
        "wvsplitkrc-gfx936",
        "wvSplitKrc",
        _ANY,
        "code-object",
        "its source needs instructions of gfx950",
        "read in the kernel's source",
        why="it is gfx950's kernel",
        revisit="never on this device",
    ),
    _negative(
        "wvsplitkq-gfx936",
        "wvSplitKQ",
        _ANY,
        "code-object",
        "its source needs fp8 instructions of gfx94x and later",
        "read in the kernel's source",
        why="the device has no fp8 instructions that were shown to work",
        revisit="when fp8 is shown to work on the device",
    ),
)


def check_catalog(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """`records`, if no two of them contradict each other.

    Raises:
        RecordError: an id stands twice, a record is a simulation's, or two positive records claim one (arch, dtype, M, K, N).
    """
    ids: set[str] = set()
    opened: set[object] = set()
    for record in records:
        if record.id in ids:
            raise RecordError(record.id, "id", "stands twice")
        ids.add(record.id)
        if record.simulated:
            raise RecordError(record.id, "simulated", "no record of the build is a simulation's")
        if record.verdict is Verdict.OPEN:
            claim = (record.target.arch, record.key, record.contract.n)
            if claim in opened:
                raise RecordError(record.id, "contract", "another positive record claims the same shape")
            opened.add(claim)
    return records


def records_by_id(records: tuple[Record, ...] = CATALOG) -> dict[str, Record]:
    """Every record under its id."""
    return {record.id: record for record in records}


check_catalog(CATALOG)
