# SPDX-License-Identifier: Apache-2.0
"""verify: climb the evidence ladder on this device, and keep what it shows.

    python -m vllm.dcu verify --model /models/Qwen3.5-27B -- --max-model-len 32768
    python -m vllm.dcu verify --shape 14336,5120 --kernel LLMM1 --model /models/Qwen3.5-27B
    python -m vllm.dcu verify --shape 5120,17408 --kernel GEMV --variant 0 --rows 2 --model /models/Qwen3.5-27B
    python -m vllm.dcu verify --folder FOLDER --resume

What follows `--` are the arguments that the model is served with. docs/verify.md says what each rung proves and what it leaves open.
"""

import argparse
import importlib.util
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vllm.dcu.dispatch.context import Context, native_ops, observe_context, running_toolchain
from vllm.dcu.env import evidence_file
from vllm.dcu.evidence.binding import module_file, observe_binding
from vllm.dcu.evidence.ladder import Climb, LadderError, Outcome, climb
from vllm.dcu.evidence.report import ReportError, as_json, compare, load_report, write_report
from vllm.dcu.evidence.site import State, Status, status_of
from vllm.dcu.evidence.store import EvidenceError, add, entry_of, forget, read_store
from vllm.dcu.records.catalog import CATALOG, MISSION, records_by_id
from vllm.dcu.records.gemv import VARIANTS
from vllm.dcu.records.kernels import GEMV, KERNELS, Kernel, broken_limit
from vllm.dcu.records.record import Contract, Record, Verdict
from vllm.dcu.verify.asked import ending_its_children, parted
from vllm.dcu.verify.chart import missing, write_plots
from vllm.dcu.verify.climb import make_record, rungs_of
from vllm.dcu.verify.rungs.endtoend import Load
from vllm.dcu.verify.rungs.stage import ModelPlan, Stage, Subject, subject_of

__all__ = ["climbed", "keep", "main", "new_subject", "parse_shape", "stage_here", "verify"]

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vllm.dcu verify",
        description=(__doc__ or "").split("\n")[0],
        epilog="exit: 0 every rung that was asked for passed; 1 error; 2 usage; 3 a rung failed; 4 none failed, some did not run; 5 worse than --baseline",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--capability", metavar="ID", help=f"a positive record of the catalogue (default: {MISSION.id})")
    what.add_argument("--shape", metavar="M,K[,DTYPE]", help="a weight's shape that no record opens yet")
    what.add_argument("--forget", metavar="ID", help="drop the site's evidence about a capability, and do nothing else")
    parser.add_argument("--kernel", default="LLMM1", choices=sorted(k for k, v in KERNELS.items() if v.dispatchable))
    parser.add_argument("--rows-per-block", type=int, default=4, help="of LLMM1, with --shape (default: %(default)s)")
    parser.add_argument("--variant", type=int, help="of GEMV, with --shape: its number in docs/gemv.md")
    parser.add_argument("--rows", type=int, default=1, metavar="N", help="activation rows, with --shape (default: %(default)s)")
    parser.add_argument("--model", help="the model to serve; without one V3 to V7 do not run")
    parser.add_argument("--tokens", type=int, default=16, help="of a short request (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of V7: legs of on and of off each (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=16, help="requests of one leg of V7 (default: %(default)s)")
    parser.add_argument("--load", default="128,128", metavar="IN,OUT", help="tokens of one request of V7 (default: %(default)s)")
    parser.add_argument("--rung", action="append", default=[], metavar="ID", help="climb only this one; may be given again")
    parser.add_argument("--resume", action="store_true", help="go on with the climb in --folder")
    parser.add_argument("--folder", type=Path, help="where report, raw output and state go (default: a new one here)")
    parser.add_argument("--baseline", type=Path, metavar="REPORT.JSON", help="list what is worse than in that report")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="keep the evidence there instead of in the site's file")
    parser.add_argument(
        "--stand-in", type=Path, metavar="FILE.PY", help="a rehearsal: this file registers the operator and says what it is"
    )
    parser.add_argument("--json", action="store_true", help="print report.json instead of the summary")
    return parser


def main(argv: Sequence[str]) -> int:
    """Command line of `verify`."""
    words, serve = parted(argv)
    parser = _parser()
    args = parser.parse_args(words)
    if args.resume and args.folder is None:
        parser.error("--resume needs --folder, the one of the climb to go on with")
    if serve and args.model is None:
        parser.error("arguments after `--` are those that --model is served with: give one")
    try:
        with ending_its_children():
            return _main(args, serve, parser)
    except (EvidenceError, LadderError, ReportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _main(args: argparse.Namespace, serve: tuple[str, ...], parser: argparse.ArgumentParser) -> int:
    store = args.evidence or evidence_file()
    if args.forget:
        if store is None:
            parser.error("--forget needs --evidence FILE where there is no home folder")
        print(f"{forget(store, args.forget)} entries about {args.forget} dropped from {store}")
        return 0
    if store is not None:
        read_store(store)  # a damaged one is known before hours of climbing, not after them
    baseline = load_report(args.baseline) if args.baseline else None
    subject = _subject(args, parser, store)
    plan = ModelPlan(args.model, serve, args.tokens) if args.model else None
    stage = stage_here(subject, plan, args.stand_in)
    folder = args.folder or Path(f"verify-{subject.id}-{time.strftime('%Y%m%d-%H%M%S')}")
    # A simulation does not write into the site's file by itself.
    kept = args.evidence or (None if stage.binding.simulated else store)
    found, notes, lost = verify(stage, folder, _load(args, parser), args.rung, args.resume, kept)
    worse = compare(baseline, found) if baseline else ()
    notes += [f"Worse than {args.baseline}: {w.rung}: {w.what}" for w in worse]
    notes += [said] if (said := missing()) else []
    path = write_report(found, folder, notes, write_plots(found, folder))
    if args.json:
        print(json.dumps(as_json(found), indent=1))
    else:
        print("\n".join(["", *notes, f"report: {path}"]))
    return 1 if lost else _code(found, args.rung, bool(worse))


def _load(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Load:
    parts = re.fullmatch(r"(\d+),(\d+)", args.load)
    if parts is None or min(args.rounds, args.prompts, int(parts[1]), int(parts[2])) < 1:
        parser.error("--rounds, --prompts and both numbers of --load IN,OUT are at least 1")
    return Load(args.rounds, args.prompts, int(parts[1]), int(parts[2]))


def _code(found: Climb, asked: Sequence[str], worse: bool) -> int:
    outcomes = [step.result.outcome for step in found.steps if not asked or step.id in asked]
    if Outcome.FAILED in outcomes:
        return 3
    if worse:
        return 5
    return 4 if Outcome.NOT_RUN in outcomes else 0


def parse_shape(text: str) -> tuple[str, int, int] | None:
    """(dtype, M, K) of `M,K` or `M,K,DTYPE` (bfloat16 where it is left out), or None."""
    parts = re.fullmatch(r"(\d+),(\d+)(?:,(\w+))?", text)
    return (_DTYPES.get(parts[3] or "bf16", parts[3] or ""), int(parts[1]), int(parts[2])) if parts else None


def _of_the_site(ident: str, store: Path | None) -> Record | None:
    """The site's own record of that id, positive or negative."""
    found = read_store(store) if store is not None else ()
    return next((entry.record for entry in found if entry.record is not None and entry.record.id == ident), None)


def _subject(args: argparse.Namespace, parser: argparse.ArgumentParser, store: Path | None) -> Subject:
    if args.shape is None:
        record = records_by_id().get(args.capability or MISSION.id) or _of_the_site(args.capability, store)
        if record is None or (record.verdict is not Verdict.OPEN and record.id in records_by_id()):
            opened = ", ".join(r.id for r in CATALOG if r.verdict is Verdict.OPEN)
            parser.error(f"{args.capability!r} is no positive record of the catalogue ({opened}); for another shape use --shape M,K")
        return subject_of(record)
    shape = parse_shape(args.shape)
    if shape is None:
        parser.error(f"--shape {args.shape!r} is not M,K or M,K,DTYPE")
    dtype, m, k = shape
    kernel = KERNELS[args.kernel]
    if kernel is GEMV and args.variant is None:
        parser.error(f"--kernel GEMV needs --variant, one of {', '.join(map(str, sorted(VARIANTS)))} (docs/gemv.md)")
    if kernel is not GEMV and args.variant is not None:
        parser.error("--variant is GEMV's; LLMM1 has --rows-per-block")
    value = args.variant if kernel is GEMV else args.rows_per_block
    if broken := broken_limit(kernel, dtype, args.rows, m, k, {kernel.argument: value}):
        parser.error(f"{kernel.name} cannot compute that: {broken[1]}")
    return new_subject(kernel, dtype, args.rows, m, k, value)


def new_subject(kernel: Kernel, dtype: str, n: int, m: int, k: int, value: int) -> Subject:
    """The capability of a shape on this site, or the catalogue's own where it has that very one open. `value`: the kernel's argument."""
    for record in CATALOG:
        same = record.kernel == kernel.name and record.contract.n == n and record.key == (dtype, m, k)
        if same and record.verdict is Verdict.OPEN:
            return subject_of(record)
    ident = f"site-{kernel.name.lower()}-gfx936-{dtype}-n{n}-m{m}-k{k}-{kernel.argument[0]}{value}"
    return Subject(ident, kernel, Contract(dtype, n, m, k, args={kernel.argument: value}))


def stage_here(subject: Subject, plan: ModelPlan | None, stand_in: Path | None) -> Stage:
    """This process as the rungs see it: a DCU; or a stand-in on whatever is here; or nothing, with the reason.

    `stand_in` is a Python file that registers the operator for the device here and may define `LABEL` (what it is), `EXTENSION` (its library)
    and `MARKS` (names by which a profiler shows it). Where a whole device is simulated, gate and servers included, `CONTEXT` is what the gate sees.

    Raises:
        LadderError: the stand-in registers no operator, or this is a DCU, where nothing may stand in.
    """
    context, platform = _observed()
    if stand_in is not None:
        if context is not None:
            raise LadderError("this is a DCU: nothing may stand in for its own kernel (leave --stand-in out)")
        return _stage_of_stand_in(subject, plan, stand_in)
    if context is None:
        why = f"there is no DCU in this process: {platform}"
        binding = replace(observe_binding("none", running_toolchain(), simulated=why), extension="")
        return Stage(binding, subject, "cpu", None, None, None, no_device=why, plan=plan)
    import torch

    extension = module_file(subject.kernel.extension)
    wavefront = int(torch.cuda.get_device_properties(0).warp_size)
    op = context.ops.get(subject.kernel.op)
    binding = observe_binding(context.arch, context.toolchain, module=subject.kernel.extension, platform=context.beside)
    marks = (subject.kernel.mark,)
    return Stage(binding, subject, "cuda", op.call if op else None, extension, wavefront, marks=marks, plan=plan)


def _observed() -> tuple[Context | None, str]:
    """The gate's context, or None and what runs instead of a DCU."""
    try:
        context = observe_context()
        from vllm.platforms import current_platform
    except ModuleNotFoundError as error:
        return None, f"vLLM is not installed here ({error.name} is missing)"
    return context, f"vLLM runs as {type(current_platform).__name__}"


def _stage_of_stand_in(subject: Subject, plan: ModelPlan | None, path: Path) -> Stage:
    import torch

    spec = importlib.util.spec_from_file_location("dcu_stand_in", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise LadderError(f"{path} is no Python file that could stand in")
    module = importlib.util.module_from_spec(spec)
    # Kept: the operator lives only as long as the library object that registered it.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    op = native_ops().get(subject.kernel.op)
    if op is None or op.schema != subject.kernel.schema:
        raise LadderError(f"{path} does not register {subject.kernel.schema}")
    cuda = torch.cuda.is_available()
    properties = torch.cuda.get_device_properties(0) if cuda else None
    name = properties.name if properties else "the CPU"
    arch = f"sm_{properties.major}{properties.minor}" if properties else "cpu"
    extension = getattr(module, "EXTENSION", None)
    label = f"{getattr(module, 'LABEL', path.name)}, on {name}"
    context: Context | None = getattr(module, "CONTEXT", None)
    if context is not None:
        binding = observe_binding(context.arch, context.toolchain, context.simulated, module=subject.kernel.extension)
    else:
        binding = observe_binding(arch, running_toolchain(), simulated=label, extension=Path(extension) if extension else path)
    return Stage(
        binding,
        subject,
        "cuda" if cuda else "cpu",
        op.call,
        Path(extension) if extension else None,
        int(properties.warp_size) if properties else None,
        marks=tuple(getattr(module, "MARKS", (subject.kernel.mark,) if cuda else (subject.kernel.op,))),
        plan=plan,
        whole=bool(context and context.simulated),
    )


def verify(stage: Stage, folder: Path, load: Load, only: Sequence[str], resume: bool, store: Path | None) -> tuple[Climb, list[str], bool]:
    """Climb on `stage`, keep the evidence in `store`. Returns the climb, what it means, one sentence each, and whether its evidence could not be kept.

    Raises:
        LadderError, EvidenceError, OSError: the climb cannot begin, or its evidence cannot be kept.
    """
    found = climbed(stage, folder, folder, load, only, resume)
    return found, *keep(stage, folder, found, store)


def climbed(stage: Stage, folder: Path, runs: Path, load: Load, only: Sequence[str], resume: bool) -> Climb:
    """Climb on `stage` with its state in `folder` and its model runs in `runs`, which several climbs may share.

    Raises:
        LadderError, OSError: the climb cannot begin.
    """

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    return climb(
        rungs_of(stage, runs, load),
        tool="verify",
        subject=stage.subject.id,
        binding=stage.binding,
        folder=folder,
        only=only,
        resume=resume,
        say=say,
    )


def keep(stage: Stage, folder: Path, found: Climb, store: Path | None) -> tuple[list[str], bool]:
    """Put what `found` showed into `store`. Returns what it means, one sentence each, and whether it could not be kept."""
    record = make_record(found, stage.subject, stage.whole)
    entry = entry_of(found, record)
    if not entry.rungs:
        return ["Nothing ran: there is no evidence to keep."], False
    if store is None or (stage.binding.simulated and not stage.whole and stage.subject.id not in records_by_id()):
        return [_meaning(stage, status_of(entry.subject, (entry,), stage.binding))], False
    try:
        kept = add(store, entry)
    except (EvidenceError, OSError) as error:
        # The report is written all the same: --resume keeps the evidence without climbing again.
        return (
            [f"NOT KEPT, so that it opens nothing: {error}. Correct that and run this again with --resume --folder {folder}."],
            True,
        )
    return [_meaning(stage, status_of(entry.subject, (kept,), stage.binding)), f"Evidence kept in {store}."], False


def _meaning(stage: Stage, status: Status) -> str:
    ident = stage.subject.id
    if stage.binding.simulated:
        here = f", and is {status.state.value} in that simulation" if stage.whole else ""
        return f"{ident} stays as it is on hardware: this was not a DCU ({stage.binding.simulated}){here}."
    if status.state is State.VERIFIED:
        return f"{ident} opens on this device and toolchain, from the next start of vLLM on."
    if status.state is State.FAILED:
        return status.sentence
    return f"{ident} is not opened by this climb (--resume goes on): {status.sentence}."
