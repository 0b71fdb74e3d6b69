# SPDX-License-Identifier: Apache-2.0
"""tune: for each Linear of a model and each N of its decode, the fastest choice on this device that `verify` lets through.

    python -m vllm.dcu tune --model /models/Qwen3.5-27B -- --max-model-len 32768
    python -m vllm.dcu tune --model /models/Qwen3.5-27B --rows 1,2 --dry-run
    python -m vllm.dcu tune --export FILE

What follows `--` are the arguments that the model is served with: they say which N decode has. docs/tune.md says what is measured and what it opens.
"""

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm.dcu.env import evidence_file
from vllm.dcu.evidence.binding import Binding, file_hash, module_file
from vllm.dcu.evidence.ladder import LadderError, Measure, write_whole
from vllm.dcu.evidence.store import EvidenceError, read_store
from vllm.dcu.records.kernels import GEMV, LLMM1
from vllm.dcu.records.record import Contract
from vllm.dcu.tune.climbs import Ascent, subject_for, turned
from vllm.dcu.tune.exchange import bring, send
from vllm.dcu.tune.found import Found
from vllm.dcu.tune.journal import Journal, read_journal
from vllm.dcu.tune.plan import Item, Plan, choices, plan_of, read_served, seconds
from vllm.dcu.tune.report import Report, as_json, as_markdown, as_text, draw
from vllm.dcu.verify.asked import ending_its_children, parted
from vllm.dcu.verify.rungs.endtoend import Load
from vllm.dcu.verify.rungs.stage import ModelPlan, Stage, Subject
from vllm.dcu.verify.verb import stage_here

__all__ = ["main"]

_ANY = Subject("tune", GEMV, Contract("bfloat16", 1, 8, 8, args={"variant": 0}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vllm.dcu tune",
        description=(__doc__ or "").split("\n")[0],
        epilog="exit: 0 all of it was done; 1 error; 2 usage; 3 something was taken out because a rung failed; 4 something did not run",
    )
    parser.add_argument("--model", type=Path, help="the model's folder")
    parser.add_argument("--rows", metavar="N,N", help="the N to tune for, in the place of what the serve arguments say")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="begin nothing new after that time")
    parser.add_argument("--dry-run", action="store_true", help="list what would be measured and for how long, and touch no device")
    parser.add_argument("--resume", action="store_true", help="go on in --folder")
    parser.add_argument("--folder", type=Path, help="where report, climbs and runs go (default: a new one here)")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="keep the evidence there instead of in the site's file")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write what is verified here for another machine of the same binding")
    parser.add_argument(
        "--import", type=Path, dest="bring", metavar="FILE", help="take in what another machine of the same binding exported"
    )
    parser.add_argument("--tokens", type=int, default=16, help="of a short request (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of V7: legs of on and of off each (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=16, help="requests of one leg of V7 (default: %(default)s)")
    parser.add_argument("--stand-in", type=Path, metavar="FILE.PY", help="as for verify: a rehearsal on what is here")
    parser.add_argument("--json", action="store_true", help="print tune.json instead of the table")
    return parser


def main(argv: Sequence[str]) -> int:
    """Command line of `tune`."""
    words, serve = parted(argv)
    parser = _parser()
    args = parser.parse_args(words)
    if sum(bool(x) for x in (args.model, args.export, args.bring)) != 1:
        parser.error("give one of --model FOLDER, --export FILE and --import FILE")
    if args.resume and args.folder is None:
        parser.error("--resume needs --folder, the one of the run to go on with")
    if min(args.tokens, args.rounds, args.prompts) < 1 or (args.budget is not None and args.budget <= 0):
        parser.error("--tokens, --rounds, --prompts and --budget are above zero")
    if args.rows and not re.fullmatch(r"[1-9](,[1-9])*", args.rows):
        parser.error(f"--rows {args.rows!r} is not N,N such as 1,2,4")
    try:
        with ending_its_children():
            return _exchange(args) if args.model is None else _tune(args, serve)
    except (EvidenceError, LadderError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _store(args: argparse.Namespace, stage: Stage) -> Path | None:
    # A simulation does not write into the site's file by itself.
    return args.evidence or (None if stage.binding.simulated else evidence_file())


def _exchange(args: argparse.Namespace) -> int:
    stage = stage_here(_ANY, None, args.stand_in)
    store = args.evidence or evidence_file()
    if stage.no_device or store is None:
        raise LadderError(stage.no_device or "there is no home folder to keep evidence in: give --evidence FILE")

    def running(module: str) -> Binding:
        if stage.binding.simulated or module == GEMV.extension:
            return stage.binding
        return replace(stage.binding, extension=file_hash(module_file(module)))

    if args.export:
        print(f"{send(store, args.export, running)} capabilities that are verified here written to {args.export}")
    else:
        print("\n".join(bring(args.bring, store, running)))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _tune(args: argparse.Namespace, serve: tuple[str, ...]) -> int:
    served = read_served(serve)
    if args.rows:
        served = replace(served, rows=tuple(sorted({int(n) for n in args.rows.split(",")})))
    plan = plan_of(args.model, served)
    if args.dry_run:
        print(_dry(plan))
        return 0
    stage = stage_here(_ANY, ModelPlan(str(args.model), serve, args.tokens), args.stand_in)
    if stage.no_device or stage.native is None:
        print(f"not run: {stage.no_device or f'{GEMV.op} is not registered in this process'}", file=sys.stderr)
        return 4
    folder = args.folder or Path(f"tune-{args.model.resolve().name}-{time.strftime('%Y%m%d-%H%M%S')}")
    if folder.exists() and not args.resume:
        raise LadderError(f"{folder} is there already: name a fresh folder, or go on with --resume")
    store = _store(args, stage)
    if store is not None:
        read_store(store)  # a damaged one is known before minutes of measuring, not after them
    until = time.monotonic() + 60 * args.budget if args.budget else float("inf")

    def late() -> bool:
        return time.monotonic() > until

    ascent = Ascent(stage, folder, store, Load(args.rounds, args.prompts))
    journal = read_journal((store or folder / "evidence.json").with_name("tuned.json"))
    found, left = _measured(plan, ascent, journal, late)
    for one in found:
        if not one.winners or ascent.verified(one):
            continue
        if late():
            left.append(f"{one.item.label}: its winner did not climb yet")
        elif not ascent.alone(one):
            _say(f"{one.item.label}: F.linear stays")
    if late() and ascent.waiting:
        left.append("the model run of the winners")
    else:
        ascent.together()
    notes = (*plan.notes, *ascent.taken_out, *(f"Left for the next run, the budget is spent: {what}." for what in left))
    _write(args, folder, Report(stage.binding.label, _read_rate(stage), found, ascent.said, notes, ascent.end_to_end))
    if ascent.lost:
        return 1
    return 3 if ascent.taken_out else 4 if left else 0


def _dry(plan: Plan) -> str:
    total = sum(map(seconds, plan.items))
    lines = [f"{item.label:36} {len(choices(item)):3} choices, about {seconds(item):5.1f} s  {item.name}" for item in plan.items]
    lines += [
        f"{len(plan.items)} items, about {total / 60:.1f} min to measure on a device that reads 1 TB/s; then about a minute for each winner alone,"
    ]
    return "\n".join(
        [*lines, "and a run of the model in each mode, a server on and off, and V7's legs for all of them together.", *plan.notes]
    )


def _measured(plan: Plan, ascent: Ascent, journal: Journal, late: Callable[[], bool]) -> tuple[tuple[Found, ...], list[str]]:
    """Every item: from the journal where the binding is the same, else measured now."""
    from vllm.dcu.tune.measure import Clock, PlantedClock, compete, on_device

    stage = ascent.stage
    bound = _bound(stage)
    known = {item: journal.known(item, bound) for item in plan.items}
    todo = [item for item in plan.items if known[item] is None]
    begun, left = time.monotonic(), []
    if len(todo) < len(plan.items):
        _say(f"{len(plan.items) - len(todo)} of {len(plan.items)} items were measured on this very binding before")

    def one(item: Item, clock: Clock) -> None:
        if late():
            left.append(item.label)
            return
        number = todo.index(item)
        gone = time.monotonic() - begun
        remaining = f", about {gone / number * (len(todo) - number):.0f} s left" if number else ""
        _say(f"[{number + 1}/{len(todo)}] measuring {item.label}{remaining}")
        known[item] = result = compete(item, clock)
        journal.add(result, bound)

    if stage.whole or stage.device == "cpu":
        table = getattr(sys.modules.get("dcu_stand_in"), "MICROSECONDS", None)
        if table is None:
            raise LadderError("the time of a stand-in on the CPU says nothing about a device: it would have to define MICROSECONDS")
        for item in todo:
            one(item, PlantedClock(item, table))
    else:
        ops = {s.subject.kernel.name: s.native for s in (stage, turned(stage, subject_for(plan.items[0], LLMM1.name, 4))) if s.native}
        on_device(todo, ops, stage.device, one)
    return tuple(f for item in plan.items if (f := known[item]) is not None), left


def _bound(stage: Stage) -> Binding:
    """The binding of a measurement: both extensions are in it."""
    if stage.binding.simulated:
        return stage.binding
    both = stage.binding.extension + file_hash(module_file(LLMM1.extension))
    return replace(stage.binding, extension=hashlib.sha256(both.encode()).hexdigest())


def _read_rate(stage: Stage) -> Measure:
    from vllm.dcu.verify.rungs.timing import read_bandwidth

    return read_bandwidth(stage.device)


def _write(args: argparse.Namespace, folder: Path, report: Report) -> None:
    data: dict[str, Any] = as_json(report)
    text = as_text(report)
    pictures = [name for name in draw(report, folder) if name.endswith(".svg")]
    write_whole(folder / "tune.json", json.dumps(data, indent=1) + "\n")
    write_whole(folder / "tune.txt", text + "\n")
    write_whole(folder / "tune.md", as_markdown(report, f"tune: {args.model.name}", pictures))
    print(json.dumps(data, indent=1) if args.json else f"{text}\nfiles: {folder}")
