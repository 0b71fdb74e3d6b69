# SPDX-License-Identifier: Apache-2.0
"""explain: for one call, every candidate capability and why it would or would not be taken.

    python -m vllm.dcu explain --arch gfx936 --n 1 --m 34816 --k 5120

With `--arch` no device is needed: operator, code object and toolchain are then assumed to be what the record wants, and the answer
says so. Without it, this process is observed as it is.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vllm.dcu.arch import is_dcu_arch
from vllm.dcu.dispatch.context import Context, assumed_context, observe_context
from vllm.dcu.dispatch.reasons import Reason
from vllm.dcu.dispatch.rules import Call, call_reasons, candidates, choose, standing_reasons, toolchain_phrases
from vllm.dcu.manifest import ManifestError
from vllm.dcu.manifest import read as read_manifest
from vllm.dcu.records.catalog import CATALOG, MISSION
from vllm.dcu.records.record import Record, Toolchain, Verdict

__all__ = ["Candidate", "Explanation", "as_json", "as_text", "context_for", "explain", "main"]


@dataclass(frozen=True)
class Candidate:
    """One record that is about the call's weight: all reasons against it, standing ones first. None: it takes the call."""

    record: Record
    reasons: tuple[Reason, ...]
    toolchain: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """What happens to a call. `taken` is the id of the capability that takes it, or None for `F.linear`; `decides` is the record's."""

    call: Call
    device: str
    simulated: str
    candidates: tuple[Candidate, ...]
    taken: str | None
    decides: str | None = None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why the call goes to `F.linear`, as the counters name it; empty when a capability takes it."""
        if self.taken is not None:
            return ()
        return next((c.reasons for c in self.candidates if c.record.id == self.decides), (Reason.NO_RECORD,))


def explain(call: Call, context: Context, records: tuple[Record, ...] = CATALOG) -> Explanation:
    """Say for every record about this weight why it would or would not take `call` in `context`. Touches no tensor."""
    found = candidates(records, call.dtype, call.m, call.k)
    rows = tuple(_candidate(record, call, context) for record in found)
    standing = {record.id: standing_reasons(record, context) for record in found}
    chosen = choose(found, standing, call.n, context.site.times)
    taken = next((row.record.id for row in rows if chosen is row.record and not row.reasons), None)
    return Explanation(call, context.arch, context.simulated, rows, taken, chosen.id if chosen else None)


def _candidate(record: Record, call: Call, context: Context) -> Candidate:
    standing = standing_reasons(record, context)
    if record.verdict is not Verdict.OPEN:
        return Candidate(record, standing, ())
    reasons = standing + call_reasons(record, call, context.device_type)
    return Candidate(record, reasons, toolchain_phrases(record, context))


def context_for(arch: str | None, toolchain: Toolchain | None = None) -> Context | None:
    """The assumed context of `arch`, or this process's own where `arch` is None (None: upstream's function runs as it is)."""
    if arch is None:
        return observe_context()
    return assumed_context(arch, MISSION, toolchain)


def own_kernels() -> str:
    """What this build says of `_dcu_C`: why it was left out; empty where it is there, or where no device build says anything."""
    try:
        said = read_manifest().toolchain.get("dcu_kernels", "")
    except ManifestError:
        return ""
    return "" if said == "_dcu_C" else said


def as_json(found: Explanation) -> dict[str, Any]:
    """The explanation as plain data."""
    return {
        "call": asdict(found.call),
        "device": found.device,
        "simulated": found.simulated,
        "taken": found.taken,
        "runs": _runs(found),
        "own_kernels": own_kernels(),
        "reasons": [reason.value for reason in found.reasons],
        "candidates": [
            {
                "id": row.record.id,
                "kernel": row.record.kernel,
                "verdict": row.record.verdict.value,
                "taken": row.record.id == found.taken,
                "reasons": [{"id": r.value, "sentence": r.sentence, "todo": r.todo} for r in row.reasons],
                "toolchain": list(row.toolchain),
                "why": row.record.why,
                "revisit": row.record.revisit,
            }
            for row in found.candidates
        ],
    }


def _runs(found: Explanation) -> str:
    if not is_dcu_arch(found.device):
        return "upstream's own choice: the gate is not in place on this device"
    taken = [row.record.kernel for row in found.candidates if row.record.id == found.taken]
    return taken[0] if taken else "F.linear"


def as_text(found: Explanation) -> str:
    """The explanation for people."""
    call = found.call
    device = found.device + (f" ({found.simulated})" if found.simulated else "")
    lines = [
        f"call      {call.dtype}, N={call.n}, M={call.m}, K={call.k}, {'with' if call.bias else 'no'} bias",
        f"device    {device}",
    ]
    for row in found.candidates:
        taken = row.record.id == found.taken
        lines.append(f"{'taken    ' if taken else 'not taken'} {row.record.id} ({row.record.kernel}): {row.record.why}")
        if row.record.verdict is not Verdict.OPEN:
            lines.append(f"            [{Reason.NEGATIVE_RECORD.value}] look again: {row.record.revisit}")
            continue
        lines += [f"            [{r.value}] {r.sentence} {r.todo}" for r in row.reasons]
        lines += [f"            {phrase}" for phrase in row.toolchain]
    if found.reasons == (Reason.NO_RECORD,):
        lines.append(f"            [{Reason.NO_RECORD.value}] {Reason.NO_RECORD.sentence} {Reason.NO_RECORD.todo}")
    if said := own_kernels():
        lines.append(f"_dcu_C    {said}: no record of GEMV can open")
    lines.append(f"runs      {_runs(found)}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Command line of `explain`. Exit 0: explained, whatever the answer is."""
    parser = argparse.ArgumentParser(prog="python -m vllm.dcu explain", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--arch", help="assume a device of this arch; without it this process is observed")
    parser.add_argument("--dtype", default="bfloat16", help="of weight and activation (default: %(default)s)")
    parser.add_argument("--x-dtype", help="of the activation, where it differs")
    parser.add_argument("--n", type=int, default=1, help="activation rows (default: %(default)s)")
    parser.add_argument("--m", type=int, required=True, help="rows of the weight")
    parser.add_argument("--k", type=int, required=True, help="columns of the weight")
    parser.add_argument("--bias", action="store_true")
    parser.add_argument("--strided-x", action="store_true", help="the activation is not contiguous")
    parser.add_argument("--strided-weight", action="store_true", help="the weight is not contiguous")
    parser.add_argument("--x-offset", type=int, default=0, metavar="BYTES", help="past a 16-byte boundary")
    parser.add_argument("--weight-offset", type=int, default=0, metavar="BYTES", help="past a 16-byte boundary")
    for name in ("torch", "hip", "vllm"):
        parser.add_argument(f"--{name}", help=f"with --arch: assume this {name} version")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    versions = {name: getattr(args, name) for name in ("torch", "hip", "vllm") if getattr(args, name) is not None}
    if versions and args.arch is None:
        parser.error("--torch, --hip and --vllm need --arch")
    context = context_for(args.arch)
    if context is None:
        print("This process does not run on a DCU: upstream's own function is in place. Use --arch gfx936 to assume one.")
        return 0
    if versions:
        context = replace(context, toolchain=replace(context.toolchain, **versions))
    call = Call(
        args.dtype,
        args.n,
        args.m,
        args.k,
        args.bias,
        x_dtype=args.x_dtype,
        x_contiguous=not args.strided_x,
        weight_contiguous=not args.strided_weight,
        x_offset=args.x_offset,
        weight_offset=args.weight_offset,
    )
    found = explain(call, context, CATALOG + context.site.records)
    print(json.dumps(as_json(found), indent=2) if args.json else as_text(found))
    return 0
