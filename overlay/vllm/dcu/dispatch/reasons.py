# SPDX-License-Identifier: Apache-2.0
"""The closed catalogue of reasons why a capability did not take a call.  Standard library only.

A reason is an identifier that stays the same for ever (counters, logs and tickets carry it), one sentence, and what to
do about it. `docs/reasons.md` is generated from here. No code may refuse a call with a reason that is not listed.

Reasons come at two moments. STANDING ones are decided once, before the first forward, and hold for the whole process.
CALL ones depend on the tensors of one call; their order here is the order in which the gate asks.
"""

from enum import Enum

__all__ = ["CALL_REASONS", "STANDING_REASONS", "Moment", "Reason", "as_markdown"]


class Moment(Enum):
    """When a reason is decided."""

    STANDING = "standing"
    CALL = "call"


class Reason(Enum):
    """One reason: `value` is its identifier, `moment` when it is decided, `sentence` what it means, `todo` what to do."""

    moment: Moment
    sentence: str
    todo: str

    def __new__(cls, ident: str, moment: Moment, sentence: str, todo: str) -> "Reason":
        member = object.__new__(cls)
        member._value_ = ident
        member.moment = moment
        member.sentence = sentence
        member.todo = todo
        return member

    NO_RECORD = (
        "no-record",
        Moment.STANDING,
        "No record covers this weight's dtype and shape.",
        "Nothing is wrong. If the shape is frequent at N=1, verify a kernel for it on the device.",
    )
    NEGATIVE_RECORD = (
        "negative-record",
        Moment.STANDING,
        "A record says that the native kernel is worse, wrong or unverified for this shape.",
        "Read the record: it names the reason and when to look again.",
    )
    ARCH = (
        "arch",
        Moment.STANDING,
        "The device is not the one the record was verified on.",
        "A record for this device needs its own evidence.",
    )
    BUILD_EDITED = (
        "build-edited",
        Moment.STANDING,
        "A file that the decision rests on is not the one that was built, or not the one that runs.",
        "The log names the file; reinstall the wheel: `pip install --force-reinstall --no-deps`.",
    )
    BUILD_UNKNOWN = (
        "build-unknown",
        Moment.STANDING,
        "There is no build manifest, so that nothing says whether the files that run are the build's.",
        "Install the wheel; a source tree or an editable install has no manifest.",
    )
    SKINNY_GEMM_OFF = (
        "skinny-gemm-off",
        Moment.STANDING,
        "VLLM_ROCM_USE_SKINNY_GEMM is off, which closes every capability.",
        "Unset VLLM_ROCM_USE_SKINNY_GEMM or set it to 1.",
    )
    CAPABILITY_OFF = (
        "capability-off",
        Moment.STANDING,
        "VLLM_DCU_CAPABILITIES switches this capability off.",
        "Remove its entry from VLLM_DCU_CAPABILITIES.",
    )
    BATCH_INVARIANT = (
        "batch-invariant",
        Moment.STANDING,
        "Batch-invariant mode is on, and a kernel that is chosen by N is not batch-invariant.",
        "Unset VLLM_BATCH_INVARIANT if that mode is not wanted.",
    )
    OP_MISSING = (
        "op-missing",
        Moment.STANDING,
        "The kernel's operator is not registered in this process.",
        "Build vLLM's ROCm extension for this device (`make build TARGET=rocm`) and check that it loads.",
    )
    OP_SCHEMA = (
        "op-schema",
        Moment.STANDING,
        "An operator of that name is registered with another signature than the record's.",
        "Find which package registered it; the record fits only the signature it names.",
    )
    CODE_OBJECT_UNKNOWN = (
        "code-object-unknown",
        Moment.STANDING,
        "It could not be read from the extension which devices it holds code for.",
        "Rebuild the extension uncompressed, or report the file that cannot be read.",
    )
    CODE_OBJECT_MISSING = (
        "code-object-missing",
        Moment.STANDING,
        "The extension holds no code for this device.",
        "Rebuild with this device in PYTORCH_ROCM_ARCH (`make build TARGET=rocm`).",
    )
    TOOLCHAIN = (
        "toolchain-mismatch",
        Moment.STANDING,
        "The running PyTorch, HIP or vLLM is not the one the record was verified with.",
        "Verify the capability again on this device and toolchain, or accept the risk with VLLM_DCU_CAPABILITIES=<id>=force.",
    )
    BESIDE_UNVERIFIED = (
        "beside-unverified",
        Moment.STANDING,
        "Nothing was verified beside the plugin that has the platform, and evidence without it does not count with it.",
        "Run `python -m vllm.dcu verify` with VLLM_DCU_BESIDE set as it is here.",
    )
    SITE_LAPSED = (
        "site-lapsed",
        Moment.STANDING,
        "The site's own evidence was seen on another device, toolchain or build.",
        "Run `python -m vllm.dcu verify` again; the log names the command and the rung that still holds.",
    )
    SITE_UNFINISHED = (
        "site-unfinished",
        Moment.STANDING,
        "A record of this site has not passed every rung.",
        "Finish it: `python -m vllm.dcu verify --resume`.",
    )
    SITE_FAILED = (
        "site-failed",
        Moment.STANDING,
        "A rung of `verify` failed for this capability on this site.",
        "Read the report that `verify` wrote; when the fault is gone, verify again.",
    )
    SITE_REFUSED = (
        "site-refused",
        Moment.STANDING,
        "The site's evidence file is damaged, looks forged or can be written by others, and may have held a failure.",
        "The log names what is wrong; move the file away and verify again.",
    )

    BIAS = (
        "bias",
        Moment.CALL,
        "The call has a bias, and the kernel takes none.",
        "Nothing to do: the generic operator is right here.",
    )
    ROWS = (
        "rows",
        Moment.CALL,
        "The number of activation rows is not the record's (N, the tokens of this step).",
        "Nothing to do: prefill, batches, speculative decoding (N = 1 + guesses) and steps that a graph pads are the generic operator's.",
    )
    INNER = (
        "inner-dimension",
        Moment.CALL,
        "The activation's last dimension is not the weight's K.",
        "The generic operator reports it as the error it is.",
    )
    DTYPE = (
        "activation-dtype",
        Moment.CALL,
        "The activation's dtype is not the weight's.",
        "Look for a cast that is missing in front of this layer.",
    )
    LAYOUT = (
        "tensor-layout",
        Moment.CALL,
        "A tensor is not an ordinary strided one.",
        "Nothing to do: the generic operator is right here.",
    )
    ACTIVATION_STRIDES = (
        "activation-not-contiguous",
        Moment.CALL,
        "The activation is not contiguous.",
        "If it is frequent, look for a slice or transpose in front of this layer.",
    )
    WEIGHT_STRIDES = (
        "weight-not-contiguous",
        Moment.CALL,
        "The weight is not contiguous (padded or transposed storage).",
        "Check whether weight padding is on (VLLM_ROCM_FP8_PADDING and the like).",
    )
    ACTIVATION_ALIGNMENT = (
        "activation-alignment",
        Moment.CALL,
        "The activation does not start at a 16-byte boundary.",
        "If it is frequent, look for a view with an offset in front of this layer.",
    )
    WEIGHT_ALIGNMENT = (
        "weight-alignment",
        Moment.CALL,
        "The weight does not start at a 16-byte boundary.",
        "Look for a weight that is a view into a larger buffer.",
    )
    DEVICE = (
        "device",
        Moment.CALL,
        "The tensors are not on one device of the record's kind.",
        "Look for an offloaded weight.",
    )
    UNDECIDABLE = (
        "undecidable",
        Moment.CALL,
        "A condition could not be read from the tensors.",
        "Report it, with the tensor types: any doubt goes to the generic operator.",
    )
    KERNEL_RAISED = (
        "kernel-raised",
        Moment.CALL,
        "The native operator raised; the capability is closed for the rest of this process.",
        "Report the error that was logged.",
    )


STANDING_REASONS: tuple[Reason, ...] = tuple(r for r in Reason if r.moment is Moment.STANDING)
CALL_REASONS: tuple[Reason, ...] = tuple(r for r in Reason if r.moment is Moment.CALL)


def as_markdown() -> str:
    """The table of `docs/reasons.md`."""
    lines = ["| reason | decided | meaning | what to do |", "|---|---|---|---|"]
    for reason in Reason:
        when = "once" if reason.moment is Moment.STANDING else "each call"
        lines.append(f"| `{reason.value}` | {when} | {reason.sentence} | {reason.todo} |")
    return "\n".join(lines) + "\n"
