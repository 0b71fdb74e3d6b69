# SPDX-License-Identifier: Apache-2.0
"""V2, the kernel alone against float64, and V2S, its speed against `F.linear`."""

import csv
import io
from collections.abc import Sequence

import torch
from vllm.dcu.evidence.compare import Check, check, float64
from vllm.dcu.evidence.ladder import Figure, Result, Trial, failed, not_run, passed
from vllm.dcu.evidence.numerics import ceiling
from vllm.dcu.verify.rungs.cases import Case, cases, controls, make
from vllm.dcu.verify.rungs.stage import MARGIN, Stage
from vllm.dcu.verify.rungs.timing import compare_speed

__all__ = ["MARGIN", "right_numbers", "right_speed"]

_POISON = 0x7FC1
"""A NaN in bfloat16 and in float16."""
_POISONED_BLOCKS = 4


def right_numbers(stage: Stage, trial: Trial) -> Result:
    """V2: every case against float64, the output's memory poisoned before; then planted faults, which must be refused."""
    if stage.no_device:
        return not_run(stage.no_device)
    native = stage.native
    if native is None:
        return not_run(f"{stage.subject.kernel.op} is not registered in this process")
    dtype, m, k = stage.subject.shape
    rows: list[tuple[str, str, str, str, str]] = []
    faults: list[str] = []
    landed, flushed, own_error, linear_error = 0, False, float("nan"), float("nan")
    every = cases(stage.subject)
    for case in every:
        trial.say(f"    {case.name}")
        weight, x = make(case, dtype, stage.device, stage.subject.n)
        exact, size = float64(weight, x)
        poisoned = _poison(case.m * stage.subject.n, weight)
        out = native(weight, x, *stage.subject.arguments)
        landed += out.data_ptr() in poisoned
        found = check(out, exact, size, dtype, case.k, True, stage.subject.sums(case.k))
        if case.data == "denormal" and found.fault and not bool(out.any()):
            found, flushed = Check(1.0, ""), True  # all inputs flushed, as a device may; one output that is not zero tells a fault
        linear = check(torch.nn.functional.linear(x, weight), exact, size, dtype, case.k, False)
        rows.append((case.name, f"{found.error:.4g}", f"{linear.error:.4g}", "refused" if found.fault else "right", found.fault))
        if found.fault:
            faults.append(f"{case.name}: {found.fault}")
        if case == every[0]:
            own_error, linear_error = found.error, linear.error
    trial.keep("cases.csv", _table(("case", "error", "F.linear error", "verdict", "fault"), rows))
    figures: dict[str, Figure] = {
        "cases": len(every),
        "refused": len(faults),
        "relative error": own_error,
        "tolerance": ceiling(dtype, m * stage.subject.n, stage.subject.sums(k)),
        "F.linear relative error": linear_error,
        "outputs in poisoned memory": landed,
        "denormal inputs": "flushed" if flushed else "kept",
        "shape": f"{m} x {k} {dtype}, N={stage.subject.n}",
    }
    if faults:
        return failed(f"{len(faults)} of {len(every)} cases are wrong, the first is {faults[0]}", figures)
    if unseen := _unseen(landed, stage.device):
        return failed(unseen, figures)
    blind = _blind(stage)
    figures["planted faults refused"] = len(list(controls(native, stage.subject))) - len(blind)
    if blind:
        return failed(f"the check did not refuse a planted fault: {blind[0]}", figures)
    return passed(figures)


def _poison(m: int, like: torch.Tensor) -> set[int]:
    """Leave NaN in the memory that an allocator gives to the next outputs of `m` elements. Returns the blocks' addresses."""
    blocks = [torch.empty(1, m, dtype=like.dtype, device=like.device) for _ in range(_POISONED_BLOCKS)]
    for block in blocks:
        block.view(torch.int16).fill_(_POISON)
    return {int(block.data_ptr()) for block in blocks}


def _unseen(landed: int, device: str) -> str:
    """Why an output that the kernel never writes would not be noticed, or "". A CPU's allocator promises nothing, and shows nothing of a device."""
    return (
        "" if landed or device == "cpu" else "no output landed in the poisoned memory: one that the kernel never writes would not be seen"
    )


def _blind(stage: Stage) -> list[str]:
    dtype, m, k = stage.subject.shape
    assert stage.native is not None
    case = Case(min(m, 64 * stage.subject.block_rows), k, "zero-centred", 99)
    weight, x = make(case, dtype, stage.device, stage.subject.n)
    exact, size = float64(weight, x)
    return [
        name
        for name, planted in controls(stage.native, stage.subject)
        if not check(planted(weight, x, *stage.subject.arguments), exact, size, dtype, k, True, stage.subject.sums(k)).fault
    ]


def right_speed(stage: Stage, trial: Trial) -> Result:
    """V2S: the kernel against `F.linear` on the record's shape, cold L2, interleaved."""
    if stage.no_device:
        return not_run(stage.no_device)
    if stage.device == "cpu":
        return not_run("the time of a stand-in on the CPU says nothing about a device")
    native = stage.native
    if native is None:
        return not_run(f"{stage.subject.kernel.op} is not registered in this process")
    dtype, m, k = stage.subject.shape
    found = compare_speed(native, stage.subject.arguments, dtype, m, k, stage.device, n=stage.subject.n)
    trial.keep("times.csv", _table(("kernel us", "F.linear us"), [(f"{a:.3f}", f"{b:.3f}") for a, b in found.pairs]))
    ratio = found.linear.median / found.kernel.median
    figures: dict[str, Figure] = {
        "kernel time": found.kernel,
        "F.linear time": found.linear,
        "ratio": ratio,
        "margin": MARGIN,
        "weights rotated": found.copies,
        "timed in graphs": not found.uncaptured,
        "faster": ratio >= MARGIN and found.kernel.high < found.linear.low,
    }
    if found.uncaptured:
        return failed(f"it was not captured into a graph, and a served model is: {found.uncaptured}", figures)
    if ratio < MARGIN:
        return failed(f"it is {ratio:.3f} times as fast as F.linear, and {MARGIN} is what a record needs", figures)
    if found.kernel.high >= found.linear.low:
        return failed(f"it is {ratio:.3f} times as fast in the median, but the two ranges touch: that is no measured gain", figures)
    return passed(figures)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
