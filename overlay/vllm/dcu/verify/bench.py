# SPDX-License-Identifier: Apache-2.0
"""bench: the kernel against `F.linear`, shape by shape: time, bandwidth, share of a measured copy, error.

    python -m vllm.dcu bench --config /models/Qwen3.5-27B
    python -m vllm.dcu bench --shape 34816,5120 --shape 14336,5120

Cold L2 (weights rotated), interleaved, medians. The ceiling is a copy measured here and now, not a data sheet; a
read is measured beside it, which a product of a matrix and a vector may come nearer to than a copy does. It writes `bench.json`, `bench.csv`, a
table and, with matplotlib, a chart of the bandwidths (`roofline`). It opens nothing: `verify --shape` does.
"""

import argparse
import csv
import io
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm.dcu.ask.model_config import linears, model_dtype
from vllm.dcu.ask.survey import read_config
from vllm.dcu.evidence.ladder import LadderError, Measure, write_whole
from vllm.dcu.records.catalog import CATALOG
from vllm.dcu.records.kernels import LLMM1, broken_limit
from vllm.dcu.records.record import Contract
from vllm.dcu.verify.chart import Bar, bars, missing, write_chart
from vllm.dcu.verify.rungs.stage import Stage, Subject
from vllm.dcu.verify.verb import parse_shape, stage_here

__all__ = ["Row", "as_table", "bench", "main"]

_ROWS = 4


@dataclass(frozen=True)
class Row:
    """One shape: microseconds of both, GB/s of the kernel and of `F.linear`, the kernel's share of the copy ceiling, and the errors."""

    dtype: str
    m: int
    k: int
    kernel: Measure
    linear: Measure
    kernel_gbs: float
    linear_gbs: float
    share: float
    kernel_error: float
    linear_error: float
    fault: str


def bench(stage: Stage, shapes: Sequence[tuple[str, int, int]], ceiling: float, rounds: int) -> list[Row]:
    """Measure every shape on the stage. `ceiling` is the copy bandwidth in GB/s."""
    import torch
    from vllm.dcu.evidence.compare import check, float64
    from vllm.dcu.verify.rungs.cases import Case, make
    from vllm.dcu.verify.rungs.timing import compare_speed

    native = stage.native
    assert native is not None
    rows = []
    for dtype, m, k in shapes:
        print(f"{m} x {k} {dtype} ...", file=sys.stderr, flush=True)
        weight, x = make(Case(m, k, "zero-centred", 0), dtype, stage.device)
        exact, size = float64(weight, x)
        ours = check(native(weight, x, _ROWS), exact, size, dtype, k, zero_centred=True)
        theirs = check(torch.nn.functional.linear(x, weight), exact, size, dtype, k, zero_centred=False)
        del weight
        speed = compare_speed(native, (_ROWS,), dtype, m, k, stage.device, rounds)
        moved = (m * k + m + k) * 2 / 1e3
        rates = moved / speed.kernel.median, moved / speed.linear.median
        rows.append(Row(dtype, m, k, speed.kernel, speed.linear, *rates, rates[0] / ceiling, ours.error, theirs.error, ours.fault))
    return rows


def as_table(rows: Sequence[Row], ceiling: Measure, read: Measure, label: str) -> str:
    """The table for people."""
    lines = [f"device {label}; measured copy {ceiling.median:.0f} GB/s, measured read {read.median:.0f} GB/s"]
    head = (
        f"{'M x K':>16} {'dtype':9} {'kernel us':>10} {'linear us':>10} {'ratio':>6} {'GB/s':>6} {'of copy':>8} {'error':>9} {'linear':>9}"
    )
    lines.append(head)
    for r in rows:
        ratio = r.linear.median / r.kernel.median
        lines.append(
            f"{f'{r.m} x {r.k}':>16} {r.dtype:9} {r.kernel.median:10.2f} {r.linear.median:10.2f} {ratio:6.3f} {r.kernel_gbs:6.0f} "
            f"{r.share:8.1%} {r.kernel_error:9.2e} {r.linear_error:9.2e}" + (f"  WRONG: {r.fault}" if r.fault else "")
        )
    return "\n".join(lines)


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("dtype", "m", "k", "kernel_us", "linear_us", "ratio", "kernel_gbs", "linear_gbs", "share", "error", "linear_error", "fault")
    )
    for r in rows:
        a, b = r.kernel.median, r.linear.median
        writer.writerow((r.dtype, r.m, r.k, a, b, b / a, r.kernel_gbs, r.linear_gbs, r.share, r.kernel_error, r.linear_error, r.fault))
    return text.getvalue()


def _bars(rows: Sequence[Row]) -> list[Bar]:
    """GB/s of both, by the MB that a product moves. A matrix times one vector has 1 FLOP per byte: a roofline's usual axis says nothing."""
    found = []
    for r in sorted(rows, key=lambda r: r.m * r.k):
        label = f"{r.m} x {r.k}, {r.m * r.k * 2 / 1e6:.1f} MB"
        found += [Bar(label, "the kernel", r.kernel_gbs), Bar(label, "F.linear", r.linear_gbs)]
    return found


def _shapes(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[tuple[str, int, int]]:
    shapes: list[tuple[str, int, int]] = []
    for text in args.shape:
        found = parse_shape(text)
        if found is None:
            parser.error(f"--shape {text!r} is not M,K or M,K,DTYPE")
        shapes.append(found)
    if args.config:
        config = read_config(args.config)
        shapes += [(model_dtype(config), linear.m, linear.k) for linear in linears(config, args.tp)]
    if not shapes:
        shapes = [r.key for r in CATALOG if r.key is not None and r.kernel == LLMM1.name]
    limits = {s: broken_limit(LLMM1, s[0], 1, s[1], s[2], {"rows_per_block": _ROWS}) for s in dict.fromkeys(shapes)}
    for (dtype, m, k), broken in limits.items():
        if broken:
            print(f"{m} x {k} {dtype} left out: {broken[1]}", file=sys.stderr)
    return [shape for shape, broken in limits.items() if broken is None]


def main(argv: Sequence[str]) -> int:
    """Command line of `bench`. Exit 0: measured; 1: it could not be; 3: measured, and a result was wrong."""
    parser = argparse.ArgumentParser(prog="python -m vllm.dcu bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shape", action="append", default=[], metavar="M,K[,DTYPE]")
    parser.add_argument("--config", type=Path, help="a model folder or its config.json: every Linear of it")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the files go (default: a new one here)")
    parser.add_argument("--stand-in", type=Path, metavar="FILE.PY", help="as for verify: a rehearsal on what is here")
    args = parser.parse_args(argv)
    shapes = _shapes(args, parser)
    try:
        stage = stage_here(Subject("bench", LLMM1, Contract("bfloat16", 1, 1, 1)), None, args.stand_in)
    except LadderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if stage.no_device or stage.native is None:
        why = stage.no_device or f"{LLMM1.op} is not registered in this process"
        print(f"not run: {why}", file=sys.stderr)
        return 1
    from vllm.dcu.verify.rungs.timing import copy_bandwidth, read_bandwidth

    ceiling, read = copy_bandwidth(stage.device, args.rounds), read_bandwidth(stage.device, args.rounds)
    rows = bench(stage, shapes, ceiling.median, args.rounds)
    folder = args.folder or Path(f"bench-{time.strftime('%Y%m%d-%H%M%S')}")
    table = as_table(rows, ceiling, read, stage.binding.label)
    data: dict[str, Any] = {
        "format": 1,
        "binding": asdict(stage.binding),
        "copy": asdict(ceiling),
        "read": asdict(read),
        "rows": [asdict(row) for row in rows],
    }
    write_whole(folder / "bench.json", json.dumps(data, indent=1) + "\n")
    write_whole(folder / "bench.csv", _csv(rows))
    write_whole(folder / "bench.txt", table + "\n")
    roofs = [("measured copy", ceiling.median), ("measured read", read.median)]
    if said := missing():
        print(said, file=sys.stderr)
    else:
        write_chart(bars(f"LLMM1 and F.linear, {stage.binding.label}", "GB/s", _bars(rows), roofs), folder, "roofline")
    print(f"{table}\nfiles: {folder}")
    return 3 if any(row.fault for row in rows) else 0
