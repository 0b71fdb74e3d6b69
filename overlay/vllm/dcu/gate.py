# SPDX-License-Identifier: Apache-2.0
"""The gate in the unquantized GEMM: on a DCU, exact dispatch; on every other device, upstream's own function.

`wrap(impl)` stands at the registration of `vllm::rocm_unquantized_gemm`. Everything that can be decided once is decided there:
it runs when the module of the layers is imported, in every process anew (spawned) or inherited (forked), after the platform
was resolved and before the first forward, so that no call, inside a graph capture or not, finds anything left to look up.

    out[N, M] = x[N, K] @ weight[M, K].T

A call looks its weight up by exact (dtype, shape); where several N of that weight have a record each, by N too. Nearly every one ends there, at
`F.linear` and one counter. Only where a capability is open for that very weight are N, bias, layout, alignment and device asked. Any doubt goes to `F.linear`.

A test or a rehearsal passes its own `Context`, labelled in `simulated`: `wrap(impl, context=...)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter

import torch
from vllm.dcu.device.footing import say_once, when_replaced
from vllm.dcu.device.plugins import owner
from vllm.dcu.device.shut import left_on
from vllm.dcu.dispatch import beside
from vllm.dcu.dispatch.aside import say
from vllm.dcu.dispatch.context import Context, observe_context, pair_asked_for
from vllm.dcu.dispatch.counters import FREQUENT, Tally, new_tally
from vllm.dcu.dispatch.countfiles import Header, Key
from vllm.dcu.dispatch.launches import watch
from vllm.dcu.dispatch.reasons import CALL_REASONS, Reason
from vllm.dcu.dispatch.rules import candidates, choose, is_forced, standing_reasons, toolchain_phrases, unknown_capabilities, unshown
from vllm.dcu.dispatch.signatures import recorded
from vllm.dcu.env import EnvError, stats_dir
from vllm.dcu.records.catalog import CATALOG
from vllm.dcu.records.kernels import KERNELS
from vllm.dcu.records.record import Record, Verdict
from vllm.logger import init_logger

__all__ = ["ActiveGate", "Context", "active", "build", "stand_beside", "wrap"]

logger = init_logger(__name__)

Gemm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

# The order of CALL_REASONS is the order of the questions in `_refusal`; a slot's cells lie in the same order.
_BIAS, _ROWS, _INNER, _DTYPE, _LAYOUT, _X_STRIDES, _W_STRIDES, _X_ALIGN, _W_ALIGN, _DEVICE, _UNDECIDABLE, _RAISED = range(len(CALL_REASONS))
_FITS = -1


@dataclass(frozen=True)
class ActiveGate:
    """What was decided in this process: the context, why each record is closed (empty: open), and the counters.

    `over` makes a gate that leaves to the given function what it does not take; `forget` drops what was decided for single shapes.
    """

    context: Context
    standing: dict[str, tuple[Reason, ...]]
    tally: Tally
    over: Callable[[Gemm], Gemm]
    forget: Callable[[], None] = lambda: None

    @cached_property
    def gemm(self) -> Gemm:
        """The gate over `F.linear`."""
        return self.over(torch.nn.functional.linear)

    def shut(self) -> None:
        """Close every capability for the rest of this process, because calls do not come as they were built to."""
        self.standing.update({ident: (Reason.BUILD_EDITED, *reasons) for ident, reasons in self.standing.items()})
        self.forget()

    @property
    def open(self) -> tuple[str, ...]:
        """Ids of the capabilities that are open."""
        return tuple(ident for ident, reasons in self.standing.items() if not reasons)


_active: ActiveGate | None = None


def active() -> ActiveGate | None:
    """The gate that `wrap` put in place last in this process, or None where upstream's function runs as it is."""
    return _active


def wrap(impl: Gemm, context: Context | None = None) -> Gemm:
    """What to register in the place of `impl`, upstream's implementation.

    Args:
        impl: upstream's `rocm_unquantized_gemm_impl`.
        context: for tests and rehearsals, with `simulated` set. By default this process is observed.

    Returns:
        `impl` itself, the same object, unless the device is a DCU; there, the gate.

    Raises:
        EnvError: on a DCU, where a switch has a value that cannot be read or honoured.
    """
    global _active
    if context is None:
        if _of_a_plugin():
            return impl
        context = observe_context()
        if context is None:
            return impl
    _active = build(context, CATALOG + context.site.records)
    _announce(_active, CATALOG + context.site.records)
    when_replaced(_active.shut)
    return recorded(_active.gemm, hits=partial(_hits, _active))


def _of_a_plugin() -> bool:
    """Whether another package has the platform. Then the operator is not ours; where it was asked for, the gate comes with the loaded model."""
    from vllm.platforms import current_platform

    who = owner(type(current_platform)) if current_platform.is_rocm() else None
    if who is None:
        return False
    if pair_asked_for() is None:
        say_once(logger, f"DCU: the platform is {who}: an out-of-tree plugin. Nothing of vLLM for gfx936 is active under it.")
    else:
        beside.arm(stand_beside)
    for what in left_on(current_platform):
        say_once(logger, f"DCU: {who} leaves on what vLLM for gfx936 keeps shut, and it is not ours to change there: {what}.")
    return True


def stand_beside(model: torch.nn.Module) -> None:
    """Put the gate at every unquantized layer of a loaded model, beside the plugin that was asked for.

    Raises:
        EnvError: a switch has a value that cannot be read or honoured.
    """
    global _active
    gate = _active
    if gate is None or not gate.context.beside:
        context = observe_context()
        if context is None:
            say_once(logger, "DCU: VLLM_DCU_BESIDE is set and there is no gfx936 here: nothing of vLLM for gfx936 is active.")
            return
        gate = _active = build(context, CATALOG + context.site.records)
        _announce(gate, CATALOG + context.site.records)
    hits = partial(_hits, gate)
    taken = beside.take(model, lambda generic: recorded(gate.over(generic), hits), share=not gate.context.switches.batch_invariant)
    logger.info(
        "DCU: beside %s, %s [%s]. Platform, attention and all else are the plugin's.", gate.context.beside, taken, gate.context.label
    )


def _hits(gate: ActiveGate) -> int:
    return sum(count.value for count in gate.tally.snapshot() if count.key.kind == "hit")


def build(context: Context, records: tuple[Record, ...] = CATALOG) -> ActiveGate:
    """Decide everything that can be decided once, and make the function that decides the rest.

    Raises:
        EnvError: VLLM_DCU_CAPABILITIES names what these records cannot honour.
    """
    wrong = unknown_capabilities(context, records)
    if wrong:
        raise EnvError("VLLM_DCU_CAPABILITIES: " + "; ".join(wrong))
    standing = {record.id: standing_reasons(record, context) for record in records}
    header = Header(context.arch, context.simulated, tuple(ident for ident, reasons in standing.items() if not reasons))
    slots: dict[tuple[torch.dtype, torch.Size], _Slot] = {}
    tally = new_tally(header, stats_dir(), on_reset=slots.clear)
    opener = _Opener(context, records, standing, tally, slots)
    return ActiveGate(context, standing, tally, partial(_make_gemm, context.device_type, tally, slots, opener), slots.clear)


@dataclass(frozen=True, slots=True)
class _Slot:
    """What was decided for one (dtype, shape), or for one N of it. Without a `native` op every call is a miss, in `base` (N=1) or `base + 1`."""

    native: Callable[..., torch.Tensor] | None
    base: int
    m: int
    k: int
    record: str = ""
    rows: int = 1
    alignment: int = 16
    args: tuple[int, ...] = ()
    x_shape: tuple[int, int] = (1, -1)
    others: "Mapping[int, _Slot] | None" = None
    """N * K -> the slot of another N that has a record of its own."""


_LOST = _Slot(None, 0, -1, -1)
"""For a weight that no slot can be made for: the generic operator, counted among what has no cell of its own."""


@dataclass(frozen=True)
class _Opener:
    """Makes the slot of a weight that is seen for the first time."""

    context: Context
    records: tuple[Record, ...]
    standing: dict[str, tuple[Reason, ...]]
    tally: Tally
    slots: dict[tuple[torch.dtype, torch.Size], _Slot]

    def __call__(self, weight: torch.Tensor) -> _Slot:
        try:
            return self._decide(weight)
        except Exception:
            return _LOST

    def _decide(self, weight: torch.Tensor) -> _Slot:
        shape = weight.shape
        dtype = str(weight.dtype).removeprefix("torch.")
        m, k = (shape[0], shape[1]) if len(shape) == 2 else (-1, -1)
        found = candidates(self.records, dtype, m, k)
        chosen = {n: choose(found, self.standing, n, self.context.site.times) for n in (None, *(r.contract.n for r in found))}
        default = chosen.pop(None)
        slot = self._made(dtype, m, k, default, weight)
        own = {n: self._made(dtype, m, k, record, weight) for n, record in chosen.items() if n is not None and record is not default}
        if own:
            slot = replace(slot, others={n * k: other for n, other in own.items()})
        # A slot without cells of its own is not kept: what is kept per shape stays bounded.
        if slot.base and all(other.base for other in own.values()):
            self.slots[weight.dtype, shape] = slot
        return slot

    def _made(self, dtype: str, m: int, k: int, record: Record | None, weight: torch.Tensor) -> _Slot:
        if record is None:
            return self._closed(dtype, m, k, None, Reason.NO_RECORD)
        if self.standing[record.id]:
            return self._closed(dtype, m, k, record.id, self.standing[record.id][0])
        slot = self._opened(dtype, m, k, record)
        watch(self.tally, record, weight)
        return slot

    def close(self, weight: torch.Tensor, ident: str) -> None:
        """Let no later call of `weight`'s shape reach the native operator, which raised."""
        m, k = weight.shape
        dtype = str(weight.dtype).removeprefix("torch.")
        self.slots[weight.dtype, weight.shape] = self._closed(dtype, m, k, ident, Reason.KERNEL_RAISED)

    def _closed(self, dtype: str, m: int, k: int, ident: str | None, reason: Reason) -> _Slot:
        keys = [Key("miss", dtype, m, k, ident, reason.value, rows) for rows in ("1", "other")]
        return _Slot(None, self.tally.allocate(keys), m, k)

    def _opened(self, dtype: str, m: int, k: int, record: Record) -> _Slot:
        assert record.contract.n is not None, "a positive record was validated to name it"
        keys = [Key("miss", dtype, m, k, record.id, reason.value, "any") for reason in CALL_REASONS]
        base = self.tally.allocate([*keys, Key("hit", dtype, m, k, record.id, None, "1" if record.contract.n == 1 else "other")])
        if not base:
            return _Slot(None, base, m, k)
        return _Slot(
            self.context.ops[KERNELS[record.kernel].op].call,
            base,
            m,
            k,
            record.id,
            record.contract.n,
            record.contract.alignment,
            tuple(record.contract.args.values()),
            (record.contract.n, k),
        )


def _refusal(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, slot: _Slot, on_device: Callable[[object], bool]) -> int:
    """The index in CALL_REASONS of the first condition that this call does not meet, or _FITS."""
    if bias is not None:
        return _BIAS
    shape = x.shape
    if shape != slot.x_shape:
        # Not [N, K], but any number of dimensions will do.
        if x.numel() != slot.rows * slot.k:
            return _ROWS
        if shape[-1] != slot.k:
            return _INNER
    if x.dtype is not weight.dtype:
        return _DTYPE
    if not x.is_contiguous():
        return _X_STRIDES if x.layout is torch.strided else _LAYOUT
    if not weight.is_contiguous():
        return _W_STRIDES if weight.layout is torch.strided else _LAYOUT
    if (at := x.data_ptr()) % slot.alignment:
        return _X_ALIGN
    if (weight_at := weight.data_ptr()) % slot.alignment:
        return _W_ALIGN
    if not on_device(x) or x.device != weight.device:
        return _DEVICE
    if not at or not weight_at:
        return _UNDECIDABLE  # a freed storage: `F.linear` has its own error for it, a kernel has none
    return _FITS


def _make_gemm(device_type: str, tally: Tally, slots: dict[tuple[torch.dtype, torch.Size], _Slot], opener: _Opener, linear: Gemm) -> Gemm:
    # `x.is_cuda` and its like: a tenth of the cost of comparing `x.device.type`.
    on_device: Callable[[object], bool] = attrgetter(f"is_{device_type}")
    hit_offset = len(CALL_REASONS)

    def rocm_unquantized_gemm_dcu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        slot = slots.get((weight.dtype, weight.shape)) or opener(weight)
        if slot.others is not None:
            slot = slot.others.get(x.numel(), slot)
        native = slot.native
        if native is None:
            tally.cells[slot.base + (x.numel() != slot.k)] += 1
            return linear(x, weight, bias)
        try:
            refused = _refusal(x, weight, bias, slot, on_device)
        except Exception:
            refused = _UNDECIDABLE
        if refused == _FITS:
            try:
                out = native(weight, x if x.dim() == 2 else x.view(slot.rows, slot.k), *slot.args)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                # What `F.linear` refuses as well is no fault of the kernel's and shuts nothing: that error leaves here.
                out = linear(x, weight, bias)
                tally.cells[slot.base + _RAISED] += 1
                opener.close(weight, slot.record)
                say(logger.error, "DCU capability %s raised and is closed in this process: %s", slot.record, error)
                return out
            else:
                tally.cells[slot.base + hit_offset] += 1
                return out if x.dim() == 2 else out.view(*x.shape[:-1], slot.m)
        cell = slot.base + refused
        tally.cells[cell] = count = tally.cells[cell] + 1
        if count == FREQUENT:
            _report_frequent(slot, refused)
        return linear(x, weight, bias)

    return rocm_unquantized_gemm_dcu


def _report_frequent(slot: _Slot, refused: int) -> None:
    reason = CALL_REASONS[refused]
    say(
        logger.info,
        "DCU capability for %d x %d was refused %d times for %r: %s %s (said once)",
        slot.m,
        slot.k,
        FREQUENT,
        reason.value,
        reason.sentence,
        reason.todo,
    )


def _announce(gate: ActiveGate, records: tuple[Record, ...]) -> None:
    """Log once what was decided, one line for each positive record."""
    context = gate.context
    say_once(logger, context.footing.sentence)
    for note in context.site.notes:
        logger.warning("%s", note)
    for record in records:
        reasons = gate.standing[record.id]
        if record.verdict is not Verdict.OPEN:
            continue
        differs = "; ".join(toolchain_phrases(record, context))
        if reasons:
            why = " ".join(f"[{r.value}] {r.sentence} {r.todo}" for r in reasons)
            logger.info("DCU capability %s is closed [%s]: %s%s", record.id, context.label, why, differs and f" ({differs})")
        elif (over := unshown(record, context)) and is_forced(record, context):
            logger.warning(
                "DCU capability %s is FORCED OPEN by VLLM_DCU_CAPABILITIES [%s] although %s: its results are unverified.",
                record.id,
                context.label,
                "; ".join(over),
            )
        else:
            logger.info("DCU capability %s is open [%s].", record.id, context.label)
