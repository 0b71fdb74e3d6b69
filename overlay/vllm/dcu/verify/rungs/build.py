# SPDX-License-Identifier: Apache-2.0
"""V0, the build that runs, and V1, the code object.  Imports no torch."""

import importlib.util
import json
import struct
from pathlib import Path

import msgspec
from vllm.dcu.arch import WAVEFRONT_SIZE, base_arch
from vllm.dcu.device.codeobjects import MAGIC, CodeObject, CodeObjectError, code_object_targets, code_objects
from vllm.dcu.device.kernelnotes import KernelNote, NoteError, kernel_notes, wave_faults
from vllm.dcu.device.plugins import home
from vllm.dcu.evidence.ladder import Figure, Result, Trial, failed, not_run, passed
from vllm.dcu.manifest import ADDED, REWRITTEN, examine
from vllm.dcu.records.gemv import VARIANTS
from vllm.dcu.records.kernels import LLMM1
from vllm.dcu.verify.rungs.stage import Stage, Subject

__all__ = ["build_that_runs", "code_object"]

_FLOAT = 4
_MARKED = "(mark PATCHED_"
_BLOCK_WAVES = 8  # of GEMV: its LDS holds one float for each of them, each row of a wave and each activation


def build_that_runs(stage: Stage, trial: Trial) -> Result:
    """V0: the imported vllm is the patched build, file by file, and the platform that is active is ours, or the very one that was asked for.

    Beside a plugin, a file that carries its mark is its doing, which the binding names; any other file is as built here too.
    """
    spec = importlib.util.find_spec("vllm")
    locations = list(spec.submodule_search_locations or []) if spec is not None else []
    if not locations:
        return failed("no vllm is on the path")
    verdict = examine(Path(locations[0]))
    figures: dict[str, Figure] = {"package": str(verdict.package)}
    if verdict.manifest is not None:
        manifest = verdict.manifest
        figures |= {"version": manifest.version, "tree": manifest.tree, "target": manifest.target, "files": len(manifest.files)}
    trial.keep("problems.txt", "\n".join([*verdict.problems, *verdict.notes]) + "\n")
    problems = list(verdict.problems)
    if pair := stage.binding.platform:
        problems = [problem for problem in problems if not _of_the_plugin(problem)]
        figures["beside"] = (
            f"{pair}: this pair is accepted, and no other; {sum(_MARKED in p for p in verdict.problems)} file(s) carry its marks"
        )
    whole = not problems
    problems += [note for note in verdict.notes if note.startswith("another vllm")]
    if whole:
        ours = _platform(figures)
        if not ours and not pair and not stage.binding.simulated:
            problems.append(str(figures["platform"]))
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return failed(problems[0] + more, figures)
    return passed(figures)


def _of_the_plugin(problem: str) -> bool:
    """Whether a problem of the build is the doing of the plugin that has the platform: a marked file, or a link into its package."""
    from vllm.platforms import current_platform

    lies = home(type(current_platform))
    added = Path(problem.removesuffix(ADDED)) if problem.endswith(ADDED) else None
    linked = added is not None and lies is not None and added.is_symlink() and added.resolve().is_relative_to(lies)
    return linked or _MARKED in problem or problem == REWRITTEN


def _platform(figures: dict[str, Figure]) -> bool:
    from vllm.dcu.evidence.active import active_platform

    found = active_platform()
    figures["platform"] = found.sentence
    return found.ours


def code_object(stage: Stage, trial: Trial) -> Result:
    """V1: the extension holds a code object for this arch, built for 64 lanes; a control shows that the probe can say no."""
    arch, library = stage.binding.arch, stage.extension
    if library is None:
        return not_run(f"there is no compiled extension here that could hold code for {arch}")
    if blind := _control(trial, arch):
        return failed(blind)
    try:
        found = [entry for entry in code_objects(library) if base_arch(entry.target) == arch and entry.size]
    except (CodeObjectError, OSError) as error:
        return failed(str(error))
    targets = ", ".join(sorted(code_object_targets(library))) or "no HIP device code"
    figures: dict[str, Figure] = {"library": library.name, "targets": targets, "code objects": len(found)}
    if not found:
        if stage.binding.simulated:
            return not_run(f"{library.name} holds {targets}: what stands in is no code object of a DCU", figures)
        return failed(f"{library.name} holds no code object for {arch} (it holds {targets})", figures)
    return _kernels(stage, trial, library, found, figures)


def _kernels(stage: Stage, trial: Trial, library: Path, found: list[CodeObject], figures: dict[str, Figure]) -> Result:
    notes: list[KernelNote] = []
    with library.open("rb") as file:
        for entry in found:
            file.seek(entry.offset)
            try:
                notes += kernel_notes(file.read(entry.size))
            except NoteError as error:
                return failed(f"a code object of {library.name} cannot be read: {error}", figures)
    trial.keep("kernels.json", json.dumps([msgspec.structs.asdict(note) for note in notes], indent=1) + "\n")
    mark = stage.subject.kernel.mark
    kernels = [note for note in notes if mark in note.name]
    figures |= {"kernels": len(notes), f"{mark} kernels": len(kernels)}
    if not kernels:
        return failed(f"{library.name} holds code for the arch and no {mark} in it", figures)
    return _resources(stage, kernels, figures)


def _resources(stage: Stage, kernels: list[KernelNote], figures: dict[str, Figure]) -> Result:
    instance, lds = _instance(stage.subject)
    # By the template arguments: a 32-wide build of LLMM1 has the same set of LDS sizes, one kernel further up.
    mine = [note for note in kernels if instance in note.name]
    figures |= {"wavefront": kernels[0].wavefront, "LDS bytes": ", ".join(str(lds) for lds in sorted({n.lds for n in mine}))}
    if not mine:
        return failed(f"no {stage.subject.kernel.mark} instance {instance}: the build lacks the kernel of this capability", figures)
    rows = stage.subject.contract.args.get("rows_per_block")
    if faults := [fault for note in kernels for fault in wave_faults(note, rows if note in mine else None)]:
        return failed(faults[0], figures)
    if odd := [note for note in mine if note.lds != lds]:
        return failed(f"{odd[0].name} has {odd[0].lds} bytes of LDS, not {lds}: it is not the kernel of this source", figures)
    if spilled := [note for note in mine if note.scratch]:
        return failed(f"{spilled[0].name} spills {spilled[0].scratch} bytes to scratch", figures)
    if stage.wavefront is not None and stage.wavefront != WAVEFRONT_SIZE:
        return failed(f"the runtime reports {stage.wavefront} lanes, the code is for {WAVEFRONT_SIZE}", figures)
    return passed(figures)


def _instance(subject: Subject) -> tuple[str, int]:
    """(part of the mangled name of the kernel that a call launches, bytes of its LDS)."""
    args = subject.contract.args
    if subject.kernel is LLMM1:
        rows = args["rows_per_block"]
        return f"Li{rows}EE", rows * WAVEFRONT_SIZE * _FLOAT
    variant = VARIANTS[args["variant"]]
    scalar = {"bfloat16": "8BFloat16", "float16": "4Half"}[subject.shape[0]]
    name = f"{scalar}ELi{subject.n}ELi{variant.rows}ELi{variant.loads}EE"
    return name, subject.n * variant.rows * _BLOCK_WAVES * _FLOAT


def _control(trial: Trial, arch: str) -> str:
    """Show that the probe tells a library with code for `arch` from one without; a sentence where it does not."""
    with_arch = trial.keep("control-with.bin", _bundle(arch))
    without = trial.keep("control-without.bin", _bundle("gfx90a"))
    nothing = trial.keep("control-nothing.bin", b"\x7fELF no device code at all")
    answers = [arch in code_object_targets(path) for path in (with_arch, without, nothing)]
    if answers != [True, False, False]:
        return f"the probe is blind: of three libraries of which the first alone holds {arch}, it says {answers}"
    return ""


def _bundle(arch: str) -> bytes:
    ident = f"hipv4-amdgcn-amd-amdhsa--{arch}".encode()
    code = b"\x7fELF" + bytes(60)
    head = 24 + 8 + 24 + len(ident)
    return MAGIC + struct.pack("<Q", 1) + struct.pack("<QQQ", head, len(code), len(ident)) + ident + code
