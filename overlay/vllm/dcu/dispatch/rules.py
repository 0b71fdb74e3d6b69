# SPDX-License-Identifier: Apache-2.0
"""Why a record does or does not take a call: all reasons, not only the first.  Standard library only.

`standing_reasons` is what the gate uses to decide once. `call_reasons` is the plain statement of what the gate's fast path
asks of each call; `explain` and `survey` use it, and tests hold the two together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from vllm.dcu.dispatch.context import Context
from vllm.dcu.dispatch.reasons import Reason
from vllm.dcu.env import Mode
from vllm.dcu.evidence.site import State
from vllm.dcu.records.kernels import KERNELS
from vllm.dcu.records.record import Record, Verdict

__all__ = ["Call", "call_reasons", "covers", "is_forced", "standing_reasons", "toolchain_phrases", "unknown_capabilities", "unshown"]


@dataclass(frozen=True)
class Call:
    """One call of the unquantized GEMM, `out[N, M] = x[N, K] @ weight[M, K].T`, described without tensors.

    `x_offset` and `weight_offset` are where the data starts, in bytes past a 16-byte boundary.
    """

    dtype: str
    n: int
    m: int
    k: int
    bias: bool = False
    x_dtype: str | None = None
    x_k: int | None = None
    strided: bool = True
    x_contiguous: bool = True
    weight_contiguous: bool = True
    x_offset: int = 0
    weight_offset: int = 0
    device_type: str | None = None


def covers(record: Record, dtype: str, m: int, k: int) -> bool:
    """Whether `record` is about weights of this dtype and shape."""
    c = record.contract
    return c.dtype in (None, dtype) and c.m in (None, m) and c.k in (None, k)


def candidates(records: tuple[Record, ...], dtype: str, m: int, k: int) -> tuple[Record, ...]:
    """Every record that is about weights of this dtype and shape, records about any shape included."""
    return tuple(record for record in records if covers(record, dtype, m, k))


def choose(
    found: Iterable[Record], standing: Mapping[str, tuple[Reason, ...]], n: int | None = None, times: Mapping[str, float] | None = None
) -> Record | None:
    """The record that decides a shape: an open one, else a positive one, else a negative one for exactly this shape.

    Args:
        n: activation rows. Records for just so many decide alone; where there are none, those for other numbers do.
        times: id -> microseconds that the site measured. Of several open ones the fastest decides, and one that was measured before one that was not.
    """
    exact = [record for record in found if record.key is not None]
    same = [record for record in exact if record.contract.n == n is not None]
    took = times or {}
    return min(same or exact, key=lambda r: (bool(standing[r.id]), r.verdict is not Verdict.OPEN, took.get(r.id, inf)), default=None)


def toolchain_phrases(record: Record, context: Context) -> tuple[str, ...]:
    """What of the running toolchain is not what the record was verified with."""
    return record.target.toolchain.mismatches(context.toolchain)


def unshown(record: Record, context: Context) -> tuple[str, ...]:
    """What stands against `record` that nobody has shown to be wrong: what `force` overrides, one phrase each."""
    phrases = list(toolchain_phrases(record, context)) if context.site.state(record.id) is not State.VERIFIED else []
    if context.beside and context.site.state(record.id) is not State.VERIFIED:
        phrases.append(f"nothing was verified beside {context.beside}")
    return (*phrases, *([context.footing.unknown] if context.footing.unknown else ()))


def is_forced(record: Record, context: Context) -> bool:
    """Whether the user opened this record against its toolchain."""
    return context.switches.mode(record.id) is Mode.FORCE


def standing_reasons(record: Record, context: Context) -> tuple[Reason, ...]:
    """Every reason, in the catalogue's order, why `record` takes no call in this process. Empty: it is open."""
    if record.verdict is not Verdict.OPEN:
        return (Reason.NEGATIVE_RECORD,)
    reasons: list[Reason] = []
    if record.target.arch != context.arch or record.simulated not in ("", context.simulated):
        reasons.append(Reason.ARCH)
    if context.footing.edits:
        reasons.append(Reason.BUILD_EDITED)
    if context.footing.unknown and not is_forced(record, context):
        reasons.append(Reason.BUILD_UNKNOWN)
    if not context.switches.skinny_gemm:
        reasons.append(Reason.SKINNY_GEMM_OFF)
    if context.switches.mode(record.id) is Mode.OFF:
        reasons.append(Reason.CAPABILITY_OFF)
    if context.switches.batch_invariant:
        reasons.append(Reason.BATCH_INVARIANT)
    reasons += _build_reasons(record, context)
    state = context.site.state(record.id)
    if toolchain_phrases(record, context) and not is_forced(record, context) and state is not State.VERIFIED:
        reasons.append(Reason.TOOLCHAIN)
    if context.beside and state is State.NONE and not is_forced(record, context):
        reasons.append(Reason.BESIDE_UNVERIFIED)
    return tuple(reasons) + _site_reasons(record, context, state)


def _site_reasons(record: Record, context: Context, state: State) -> tuple[Reason, ...]:
    """What the site's own evidence says against `record`. Force opens what was not shown, never what was shown to fail."""
    if context.site.problem:
        return (Reason.SITE_REFUSED,)
    if state is State.FAILED:
        return (Reason.SITE_FAILED,)
    if state is State.LAPSED and not is_forced(record, context):
        return (Reason.SITE_LAPSED,)
    asked = context.site.owns(record.id) or (bool(context.beside) and state is State.UNFINISHED)
    if asked and state is not State.VERIFIED and not is_forced(record, context):
        return (Reason.SITE_UNFINISHED,)
    return ()


def _build_reasons(record: Record, context: Context) -> list[Reason]:
    """What this build lacks for `record`."""
    reasons: list[Reason] = []
    kernel = KERNELS[record.kernel]
    op = context.ops.get(kernel.op)
    if op is None:
        reasons.append(Reason.OP_MISSING)
    elif op.schema != kernel.schema:
        reasons.append(Reason.OP_SCHEMA)
    code_objects = context.code_for(kernel)
    if code_objects is None:
        reasons.append(Reason.CODE_OBJECT_UNKNOWN)
    elif record.target.arch not in code_objects:
        reasons.append(Reason.CODE_OBJECT_MISSING)
    return reasons


def call_reasons(record: Record, call: Call, device_type: str) -> tuple[Reason, ...]:
    """Every reason, in the catalogue's order, why `record`, were it open, would not take `call`."""
    c = record.contract
    asked = (
        (Reason.BIAS, call.bias),
        (Reason.ROWS, c.n is not None and call.n != c.n),
        (Reason.INNER, call.x_k is not None and call.x_k != call.k),
        (Reason.DTYPE, call.x_dtype is not None and call.x_dtype != call.dtype),
        (Reason.LAYOUT, not call.strided),
        (Reason.ACTIVATION_STRIDES, not call.x_contiguous),
        (Reason.WEIGHT_STRIDES, not call.weight_contiguous),
        (Reason.ACTIVATION_ALIGNMENT, call.x_offset % c.alignment != 0),
        (Reason.WEIGHT_ALIGNMENT, call.weight_offset % c.alignment != 0),
        (Reason.DEVICE, call.device_type is not None and call.device_type != device_type),
    )
    return tuple(reason for reason, holds in asked if holds)


def unknown_capabilities(context: Context, records: tuple[Record, ...]) -> tuple[str, ...]:
    """One sentence for each entry of VLLM_DCU_CAPABILITIES that these records cannot honour."""
    known = {record.id: record for record in records}
    sentences: list[str] = []
    for ident, mode in context.switches.capabilities.items():
        if ident not in known:
            sentences.append(f"there is no capability {ident!r}; the known ones are {', '.join(known)}")
        elif mode is Mode.FORCE and known[ident].verdict is not Verdict.OPEN:
            sentences.append(f"{ident!r} is a negative record ({known[ident].why}) and cannot be forced")
    return tuple(sentences)
