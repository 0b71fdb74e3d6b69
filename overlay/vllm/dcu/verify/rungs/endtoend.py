# SPDX-License-Identifier: Apache-2.0
"""V7: the same server under the same load, the capability on against off, interleaved.  Imports no torch.

Each leg is a fresh `vllm serve` with the user's arguments and one `vllm bench serve` against it. Legs alternate (on, off, on, off, ...), so
that a machine that warms up or slows down does so for both. What is claimed is the ratio of the medians, and only where the two ranges
do not touch.
"""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.dcu.evidence.ladder import Figure, Measure, Result, Trial, failed, not_run, passed, write_whole
from vllm.dcu.verify.rungs.children import ChildError, hits_in, read_result, serving
from vllm.dcu.verify.rungs.model import missing
from vllm.dcu.verify.rungs.stage import Stage
from vllm.dcu.verify.server import Server, processes_of

__all__ = ["Load", "end_to_end", "figures_of", "judge"]

_KEYS = {
    "TTFT": ("median_ttft_ms", "ms", "lower"),
    "TPOT": ("median_tpot_ms", "ms", "lower"),
    "output throughput": ("output_throughput", "token/s", "higher"),
}


@dataclass(frozen=True)
class Load:
    """What each leg asks for: requests one after the other, of so many random tokens in and out; `rounds` of on and off each."""

    rounds: int = 3
    prompts: int = 16
    tokens_in: int = 128
    tokens_out: int = 128


Leg = Mapping[str, float]


def end_to_end(stage: Stage, trial: Trial, folder: Path, load: Load) -> Result:
    """V7. On a simulated device the driver runs, and the verdict is `not run`: its times are about something else."""
    if why := missing(stage):
        return not_run(why)
    legs: dict[str, list[Leg]] = {"on": [], "off": []}
    for number in range(load.rounds):
        for name in ("on", "off"):
            trial.say(f"    round {number + 1} of {load.rounds}, {name}")
            legs[name].append(_leg(stage, trial, folder, load, name, number))
    if stage.together and not sum(leg["own hits"] for leg in legs["on"]) and sum(leg["hits"] for leg in legs["on"]):
        return not_run(f"steps of N={stage.subject.n} did not come up in this load, so that it says nothing of this capability")
    trial.keep("legs.json", json.dumps(legs, indent=1) + "\n")
    figures = figures_of(legs["on"], legs["off"])
    if not sum(leg["hits"] for leg in legs["on"]):
        return failed("with the capability on there was no hit: the two sides are the same thing", figures)
    if sum(leg["hits"] for leg in legs["off"]):
        return failed("with the capability off there were hits: the two sides are the same thing", figures)
    if stage.binding.simulated:
        return not_run("the device is simulated: the load was driven, and its times say nothing about a DCU", figures)
    return judge(figures)


def _leg(stage: Stage, trial: Trial, folder: Path, load: Load, name: str, number: int) -> Leg:
    assert stage.plan is not None
    home = folder / "runs" / "end-to-end" / f"{name}-{number}"
    if (home / "leg.json").is_file():
        kept: Leg = read_result(Mapping[str, float], home / "leg.json")
        return {**kept, "own hits": float(hits_in(home / "stats", stage.subject.id))}
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    with serving(stage, stage.plan, folder, trial.raw / f"server-{name}-{number}.log", name == "on", home / "stats") as server:
        _bench(stage, server, load, home, trial.raw / f"bench-{name}-{number}.log")
        memory = _memory(server.process.pid)
        server.stop()
    result = read_result(Mapping[str, Any], home / "bench.json")
    trial.keep(f"bench-{name}-{number}.json", json.dumps(result, indent=1))
    if result["failed"] or result["completed"] != load.prompts:
        raise ChildError(
            f"{result['failed']} of {load.prompts} requests of a leg failed (see {trial.raw}/bench-{name}-{number}.log): "
            "their times are not those of this load; do --load's tokens fit the model's maximum length?"
        )
    found = {key: float(result[source]) for key, (source, _, _) in _KEYS.items()}
    hits = float(sum(hits_in(home / "stats", subject.id) for subject in stage.every))
    leg = {**found, **memory, "completed": float(result["completed"]), "hits": hits}
    write_whole(home / "leg.json", json.dumps(leg))
    return {**leg, "own hits": float(hits_in(home / "stats", stage.subject.id))}


def _bench(stage: Stage, server: Server, load: Load, home: Path, log: Path) -> None:
    assert stage.plan is not None
    argv = [stage.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai"]
    argv += ["--base-url", f"http://127.0.0.1:{server.port}", "--endpoint", "/v1/completions"]
    argv += ["--model", server.model, "--tokenizer", stage.plan.model]
    argv += ["--dataset-name", "random", "--random-input-len", str(load.tokens_in), "--random-output-len", str(load.tokens_out)]
    argv += [
        "--num-prompts",
        str(load.prompts),
        "--max-concurrency",
        str(min(s.n for s in stage.every)),
        "--ignore-eos",
        "--seed",
        "0",
        "--disable-tqdm",
    ]
    argv += ["--save-result", "--result-dir", str(home), "--result-filename", "bench.json"]
    with log.open("wb") as out:
        env = {**os.environ, **stage.plan.environment}
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode or not (home / "bench.json").is_file():
        raise ChildError(f"`vllm bench serve` ended with {done.returncode} (see {log})")


def _memory(group: int) -> dict[str, float]:
    """MiB: resident memory of the server's processes, and what the driver says is used on the devices (where it does)."""
    resident = 0
    for pid in processes_of(group):
        with contextlib.suppress(OSError):  # it ended meanwhile
            resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    found = {"resident MiB": resident / 2**20}
    used = [int(path.read_text()) for path in sorted(Path("/sys/class/drm").glob("card*/device/mem_info_vram_used"))]
    return found | ({"device MiB": sum(used) / 2**20} if used else {})


def _measure(legs: Sequence[Leg], key: str, unit: str, better: str) -> Measure:
    values = sorted(leg[key] for leg in legs)
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return Measure(middle, values[0], values[-1], len(values), unit, better)


def figures_of(on: Sequence[Leg], off: Sequence[Leg]) -> dict[str, Figure]:
    """Medians and ranges of both sides, and on's gain in the median."""
    figures: dict[str, Figure] = {}
    rows = [*_KEYS.items(), *((key, (key, "MiB", "lower")) for key in ("resident MiB", "device MiB") if key in on[0])]
    for key, (_, unit, better) in rows:
        a, b = _measure(on, key, unit, better), _measure(off, key, unit, better)
        figures |= {f"{key}, on": a, f"{key}, off": b}
    figures["TPOT gain"] = _median(figures, "TPOT, off") / _median(figures, "TPOT, on")
    figures["TTFT gain"] = _median(figures, "TTFT, off") / _median(figures, "TTFT, on")
    figures["requests completed"] = int(sum(leg["completed"] for leg in (*on, *off)))
    return figures


def _median(figures: Mapping[str, Figure], name: str) -> float:
    figure = figures[name]
    assert isinstance(figure, Measure)
    return figure.median


def judge(figures: Mapping[str, Figure]) -> Result:
    """Slower beyond the noise fails; otherwise it passes, with the claim that the two ranges allow, which may be none."""
    on, off = figures["TPOT, on"], figures["TPOT, off"]
    assert isinstance(on, Measure)
    assert isinstance(off, Measure)
    if on.runs < 2:
        return not_run("one leg of each side has no spread, and without one there is no claim", figures)
    if on.low > off.high:
        return failed(
            f"a token takes {on.median:.4g} ms with the capability on and {off.median:.4g} ms with it off, beyond the noise", figures
        )
    if on.high < off.low:
        return passed(
            figures, f"claim: {off.median / on.median:.3f} times the tokens per second of one stream, in medians of {on.runs} legs"
        )
    return passed(figures, "no claim: the two ranges of the time per token touch")
