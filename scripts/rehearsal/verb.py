"""rehearse: a real `vllm serve` of the built wheel on the CPU, whose device is a simulated gfx936; report in build/rehearsal/report.

It proves the patched Python, the gate, the operator and the serving path in a real server. It does not prove the HIP
kernel, gfx936 numbers or speed, the ROCm platform class, attention on a DCU, or HIP graphs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.files import new_folder, remove_tree, say, sha256_of
from scripts.common.paths import BUILD, ROOT, TREE, shown
from scripts.rehearsal import drive, report
from scripts.rehearsal.climb import as_climb
from scripts.rehearsal.records import CAPABILITY, Run
from scripts.rehearsal.scenarios import VENDOR, own_copy
from scripts.rehearsal.wave import build as host_build
from scripts.rehearsal.wave import region
from scripts.serving.ready import ready_python
from scripts.serving.server import model_folder, serving
from scripts.serving.toy_models import KINDS
from scripts.wheel.build import build_stock

__all__ = ["FULL", "PARALLEL", "SHORT", "Scene", "main", "rehearse", "write_report"]

FOLDER = BUILD / "rehearsal"
WITH_PLUGIN = ("plugin", "beside")
REWRITABLE = ("platforms/rocm.py", "model_executor/layers/utils.py", "envs.py", "v1/engine/core.py")
"""What the stand-in of the plugin rewrites."""
_SERVER = ("--max-num-seqs", "2", "--scheduling-policy", "priority", "--enable-prefix-caching")


@dataclass(frozen=True)
class Scene:
    """One server to start.

    Attributes:
        name: of the run.
        variant: `on`, `off`, `stock`, `gfx928`, `sharded` (on, and tensor parallel), `fault:NAME` for a planted one; with the stand-in of the
            vendor's plugin `plugin` (not asked for), `beside`, and `after` (gone, the files still rewritten).
        model: kind of model folder.
        compiled: torch.compile instead of eager.
        whole: also batching, streaming, prefix caching and priorities.
        killed: ended by killing its engine instead of SIGTERM.
        continues: name of the scene whose counter folder it goes on with (a restart).
        workers: how many workers, each on a core of its own; `sharded` splits every layer among them, `on` gives each some layers.
    """

    name: str
    variant: str
    model: str = "mission-1"
    compiled: bool = False
    whole: bool = False
    killed: bool = False
    continues: str = ""
    workers: int = 1


SHORT = (
    Scene("eager", "on", whole=True, killed=True),
    Scene("compiled, after the kill", "on", compiled=True, continues="eager"),
    Scene("capability off", "off"),
    Scene("stock vLLM", "stock"),
    Scene("another DCU, gfx928", "gfx928"),
    Scene("plugin, not asked for", "plugin"),
    Scene("beside the plugin", "beside", whole=True),
    Scene("after the plugin", "after"),
)
PARALLEL = (
    Scene("tensor parallel, two workers", "sharded", workers=2),
    Scene("pipeline parallel, two workers", "on", model="mission-2", workers=2),
)
FULL = (
    *SHORT,
    *PARALLEL,
    Scene("two layers, eager", "on", model="mission-2", whole=True),
    Scene("two layers, compiled", "on", model="mission-2", compiled=True),
    Scene("two layers, stock vLLM", "stock", model="mission-2"),
    Scene("Qwen3.5, eager", "on", model="mission-3.5", whole=True),
    Scene("Qwen3.5, compiled", "on", model="mission-3.5", compiled=True),
    Scene("Qwen3.5, stock vLLM", "stock", model="mission-3.5"),
    Scene("planted: two rows", "fault:two-rows", whole=True),
    Scene("planted: never called", "fault:never-called"),
    Scene("planted: lost counts", "fault:lost-counts"),
)


def stock_folder() -> Path:
    """The untouched upstream release, packed with the same CPU libraries and unpacked for PYTHONPATH."""
    wheel = build_stock(FOLDER)
    final = FOLDER / f"stock-{sha256_of(wheel)[:12]}"
    if not final.is_dir():
        with new_folder(final) as work, zipfile.ZipFile(wheel) as archive:
            archive.extractall(work)
    return final


def host_kernel() -> Path | None:
    """The host build of the real kernel source at wave 64, or None where no compiler can make it."""
    try:
        return host_build.build(region.skinny_source(TREE).read_text(), kind="fast", wave=64)
    except host_build.BuildError as error:
        say(f"the host build of the kernel was left out: {str(error).splitlines()[0]}")
        return None


def rewritable(python: Path, rewritten: bool) -> Path:
    """A folder for PYTHONPATH: the vllm that `python` has, with files of its own that the plugin may rewrite, or has rewritten."""
    code = "import importlib.util as u; print(u.find_spec('vllm').origin)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, errors="replace", check=True, cwd="/")
    package = Path(found.stdout.strip()).parent
    tree = FOLDER / "rewritable"
    remove_tree(tree)
    tree.mkdir(parents=True)
    (tree / "vllm").symlink_to(package)
    for name in REWRITABLE:
        own_copy(tree, name)
    if rewritten:
        subprocess.run([python, str(VENDOR / "stand_in_hcu.py"), tree / "vllm"], check=True)
    return tree


def environment(scene: Scene, folders: drive.Folders, kernel: Path | None, tree: Path | None = None) -> dict[str, str]:
    """What makes the scene's server what it is. `tree`: where its vllm is not the installed one."""
    path = [str(ROOT / "scripts" / "rehearsal" / "plugin")]
    if tree is not None:
        path.insert(0, str(tree))
    if scene.variant in WITH_PLUGIN:
        path.insert(0, str(VENDOR))
    if scene.variant == "stock":
        path.insert(0, str(stock_folder()))
    found = {
        "PYTHONPATH": ":".join(path),
        "GFX936_SIM_ARCH": "gfx928" if scene.variant == "gfx928" else "gfx936:sramecc+:xnack-",
        "GFX936_SIM_LOG": str(folders.log),
        "VLLM_DCU_STATS_DIR": str(folders.stats),
    }
    if scene.variant in WITH_PLUGIN:
        found |= {"STAND_IN_HCU": "rewrite", "STAND_IN_HCU_DEVICE": "cpu"}
    if scene.variant == "beside":
        # As the children of `verify` see it: evidence for this pair there is none yet.
        found |= {"VLLM_DCU_BESIDE": "vllm-hcu-stand-in", "VLLM_DCU_CAPABILITIES": f"{CAPABILITY}=force"}
    if scene.workers > 1:
        cores = sorted(os.sched_getaffinity(0))
        found |= {
            "VLLM_CPU_SIM_MULTI_NUMA": "1",  # upstream's own switch for tests: workers need no NUMA node each
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(cores[i % len(cores)]) for i in range(scene.workers)),
        }
    if scene.variant == "off":
        found["VLLM_DCU_CAPABILITIES"] = f"{CAPABILITY}=off"
    if scene.variant.startswith("fault:"):
        found["GFX936_SIM_FAULT"] = scene.variant.removeprefix("fault:")
    elif kernel is not None:
        # The probe's calls; what follows would only take longer.
        found |= {"GFX936_SIM_HOST_KERNEL": str(kernel), "GFX936_SIM_HOST_CALLS": str(9 * KINDS[scene.model].layers)}
    return found


def play(scene: Scene, python: Path, kernel: Path | None) -> Run:
    """Start the scene's server, ask, end it, and write down what was seen."""
    home = FOLDER / (scene.continues or scene.name).replace(" ", "-").replace(":", "").replace(",", "")
    folders = drive.Folders(home / "stats", home / "sim")
    if not scene.continues:
        remove_tree(home)
    for folder in (folders.stats, folders.log):
        folder.mkdir(parents=True, exist_ok=True)
    kind = KINDS[scene.model]
    arguments = [*_SERVER, *kind.arguments, *(kind.compiled_arguments if scene.compiled else ["--enforce-eager"])]
    if scene.workers > 1:
        split = "--tensor-parallel-size" if scene.variant == "sharded" else "--pipeline-parallel-size"
        arguments += [split, str(scene.workers)]
    log = FOLDER / "logs" / f"{scene.name.replace(' ', '-').replace(':', '').replace(',', '')}.log"
    say(f"rehearsing: {scene.name}")
    model = model_folder(scene.model, python)
    tree = rewritable(python, scene.variant == "after") if scene.variant in (*WITH_PLUGIN, "after") else None
    with serving(python, model, log, arguments=arguments, environment=environment(scene, folders, kernel, tree)) as server:
        before = folders.shards(scene.workers)
        phases = drive.probe(server, folders)
        seen = {"workers": folders.workers(), "shards": folders.shards(scene.workers) - before} if scene.workers > 1 else {}
        if scene.whole:
            phases += drive.features(server, folders, prefix=KINDS[scene.model].family == "qwen3")
        version = server.json("/version")["version"]
        ending = (drive.end_by_kill if scene.killed else drive.end_by_sigterm)(server, folders)
    return Run(
        scene.name, scene.variant, scene.model, KINDS[scene.model].layers, "compiled" if scene.compiled else "eager",
        version, server.start_seconds, tuple(phases), {**ending, **seen},
        tuple(line for line in log.read_text(errors="replace").splitlines() if "] DCU: " in line),
        log.read_text(errors="replace").count("gfx936_sim: pid "),
    )  # fmt: skip


def rehearse(scenes: Sequence[Scene], python: Path) -> list[Run]:
    """Play the scenes, one after the other (a server needs both cores and 3 GB)."""
    kernel = host_kernel()
    return [play(scene, python, kernel) for scene in scenes]


def write_report(runs: Sequence[Run], name: str = "report") -> list[report.Judged]:
    """Judge the runs and write them as a climb of `verify`'s rungs into build/rehearsal/NAME."""
    found = report.judge(runs)
    as_climb(found, runs, FOLDER / name)
    return found


def main(argv: Sequence[str]) -> int:
    """Command line of `rehearse`."""
    parser = argparse.ArgumentParser(prog="rehearse", description=__doc__)
    parser.add_argument("--short", action="store_true", help="the form that CI runs: eight servers")
    parser.add_argument("--only", help="play only the scenes whose name contains this")
    args = parser.parse_args(argv)
    scenes = [scene for scene in (SHORT if args.short else FULL) if (args.only or "") in scene.name]
    if not scenes:
        raise errors.UserError(f"no scene is called {args.only!r}", "there is nothing to play", "leave --only out")
    runs = rehearse(scenes, ready_python())
    name = "partial" if args.only else "report"  # a part never stands where the whole report is looked for
    found = write_report(runs, name)
    print((FOLDER / name / "report.md").read_text())
    if wrong := [row for row in found if row.problems]:
        raise errors.CheckFailed(
            f"{len(wrong)} of {len(found)} checks failed, first: {wrong[0].problems[0]}",
            "the rehearsal is only worth something whole",
            f"read {shown(FOLDER / name / 'report.md')} and {shown(FOLDER / 'logs')}",
        )
    return 0
