# SPDX-License-Identifier: Apache-2.0
"""The rungs on a real run of the user's model: V3 tensors, V4 dispatch, V5 service, V6 compile and graph.  Imports no torch."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm.dcu.dispatch.reasons import Reason
from vllm.dcu.dispatch.rules import call_reasons
from vllm.dcu.evidence.ladder import Figure, Result, Trial, failed, not_run, passed, write_whole
from vllm.dcu.records.catalog import records_by_id
from vllm.dcu.records.record import Record
from vllm.dcu.records.typed import dump
from vllm.dcu.verify.rungs.children import hits_in, model_run, read_result, serving
from vllm.dcu.verify.rungs.stage import Stage

__all__ = ["compile_and_graph", "dispatch_hit", "missing", "real_tensors", "service"]


_PROMPT = "The first service of this device"


def missing(stage: Stage) -> str:
    """Why no model can be run here; empty where one can."""
    if stage.no_device:
        return stage.no_device
    if stage.plan is None:
        return "it needs a model: --model MODEL, and after `--` the arguments that it is served with"
    if stage.binding.simulated and not stage.whole and stage.subject.id not in records_by_id():
        return "a simulation makes no record, so that no model can be run with one"
    return ""


def real_tensors(stage: Stage, trial: Trial, folder: Path, record: Record) -> Result:
    """V3: each distinct call of the model's run on the record's weight: taken exactly where the record says so, and right."""
    if why := missing(stage):
        return not_run(why)
    from vllm.dcu.dispatch.signatures import Seen, read_signatures

    _, home = model_run(stage, folder, "eager")
    _keep(trial, home, "log.txt")
    seen = read_signatures(home / "signatures")
    trial.keep("signatures.json", json.dumps([asdict(s) for s in seen], indent=1) + "\n")
    dtype, m, k = stage.subject.shape
    # Of what is on together each has its own N of a weight: those calls are the other one's to judge.
    others = {(*subject.shape, subject.n) for subject in stage.every if subject != stage.subject}
    on = [s for s in seen if (s.call.dtype, s.call.m, s.call.k, s.call.n) not in others]
    ours = [s for s in on if (s.call.dtype, s.call.m, s.call.k) == (dtype, m, k)]
    figures: dict[str, Figure] = {"signatures": len(seen), "on this weight": len(ours), "taken": sum(s.took for s in seen)}
    if not ours:
        return not_run(
            f"{stage.plan.model if stage.plan else ''} makes no call of {m} x {k} {dtype}: it says nothing of this capability", figures
        )

    def expected(s: Seen) -> tuple[Reason, ...]:
        return call_reasons(record, s.call, stage.device)

    if stray := [s for s in on if s.took and s not in ours]:
        return failed(f"the kernel took a call that is none of this record's: {_say(stray[0])}", figures)
    if wrong := [s for s in ours if s.took == bool(expected(s))]:
        why = ", ".join(reason.value for reason in expected(wrong[0])) or "nothing"
        did = "was taken" if wrong[0].took else "was not taken"
        return failed(f"{_say(wrong[0])} {did}, and the record has against it: {why}", figures)
    taken = [s for s in ours if s.took]
    if not taken:
        return failed("no call of the run met the record, although its weight came up", figures)
    if bad := [s for s in taken if s.fault]:
        return failed(f"on the model's own tensors: {bad[0].fault}", figures)
    unchecked = [s for s in taken if s.error is None]
    if unchecked:
        return failed("a call was taken and its numbers were not checked", figures)
    figures["largest relative error"] = max(s.error for s in taken if s.error is not None)
    return passed(figures)


def _say(seen: object) -> str:
    call = getattr(seen, "call", None)
    return f"N={getattr(call, 'n', '?')} {getattr(call, 'm', '?')} x {getattr(call, 'k', '?')} {getattr(call, 'dtype', '?')}"


def dispatch_hit(stage: Stage, trial: Trial, folder: Path) -> Result:
    """V4: the counter and the profiler agree that the kernel ran in that run."""
    if why := missing(stage):
        return not_run(why)
    run, home = model_run(stage, folder, "eager")
    _keep(trial, home, "kernels.json")
    figures: dict[str, Figure] = {
        "hits by counter": run.hits,
        "runs by profiler": run.kernels,
        "profiled names": ", ".join(stage.marks),
        "device events": run.device_events,
        "tokens": len(run.tokens),
    }
    if not run.hits:
        return failed("the counter has no hit: a configured switch is not a hit", figures)
    if not run.device_events:
        return not_run("the profiler of this torch shows no device kernel at all; run the same under hipprof and attach its list", figures)
    if run.kernels != run.all_hits:
        return failed(f"the counter has {run.all_hits} hits, the profiler saw the kernel {run.kernels} times", figures)
    return passed(figures)


def service(stage: Stage, trial: Trial, folder: Path) -> Result:
    """V5: cold start, health and a short request of `vllm serve`, the capability on and off."""
    if why := missing(stage):
        return not_run(why)
    plan = stage.plan
    assert plan is not None
    figures: dict[str, Figure] = {}
    for name, on in (("on", True), ("off", False)):
        home = folder / "runs" / f"serve-{name}"
        if not (home / "served.json").is_file():
            shutil.rmtree(home / "stats", ignore_errors=True)
            with serving(stage, plan, folder, trial.raw / f"server-{name}.log", on, home / "stats") as server:
                answers = [server.complete([_PROMPT] * n, plan.tokens) for n in sorted({subject.n for subject in stage.every})]
                trial.keep(f"answer-{name}.json", json.dumps(answers, indent=1) + "\n")
                code = server.stop()
            tokens = sum(int(answer["usage"]["completion_tokens"]) for answer in answers)
            served = _Served(server.start_seconds, tokens, str(answers[0]["choices"][0]["text"])[:200], code)
            write_whole(home / "served.json", json.dumps(dump(served)))
        seen: _Served = read_result(_Served, home / "served.json")
        figures |= {
            f"{name}: cold start s": seen.start_seconds,
            f"{name}: tokens": seen.tokens,
            f"{name}: text": seen.text,
            f"{name}: exit code": seen.code,
            f"{name}: hits": hits_in(home / "stats", stage.subject.id),
        }
    return _judge_service(figures, plan.tokens * sum({subject.n for subject in stage.every}))


@dataclass(frozen=True)
class _Served:
    """What a server of V5 did: kept, because climbs that share a folder share its runs."""

    start_seconds: float
    tokens: int
    text: str
    code: int


def _judge_service(figures: dict[str, Figure], tokens: int) -> Result:
    for name in ("on", "off"):
        if figures[f"{name}: tokens"] != tokens:
            return failed(f"with the capability {name} the server made {figures[f'{name}: tokens']} tokens, not {tokens}", figures)
        if figures[f"{name}: exit code"] != 0:
            return failed(f"with the capability {name} the server ended with {figures[f'{name}: exit code']}", figures)
    if not figures["on: hits"]:
        return failed("the server had the capability on and never hit it", figures)
    if figures["off: hits"]:
        return failed(f"the server had the capability off and hit it {figures['off: hits']} times", figures)
    return passed(figures)


def compile_and_graph(stage: Stage, trial: Trial, folder: Path) -> Result:
    """V6: the same tokens eager, compiled and captured, and the kernel seen in a replayed graph."""
    if why := missing(stage):
        return not_run(why)
    modes = ("eager", "compiled") if stage.device == "cpu" else ("eager", "compiled", "captured")
    runs = {}
    for mode in modes:
        trial.say(f"    {mode}")
        runs[mode], home = model_run(stage, folder, mode)
        _keep(trial, home, "kernels.json", f"kernels-{mode}.json")
    figures: dict[str, Figure] = {}
    for mode, run in runs.items():
        figures |= {f"{mode}: hits": run.hits, f"{mode}: runs by profiler": run.kernels, f"{mode}: tokens": " ".join(map(str, run.tokens))}
    for mode in modes[1:]:
        if runs[mode].tokens != runs["eager"].tokens:
            both = zip(runs[mode].tokens, runs["eager"].tokens, strict=False)
            at = next((i for i, (a, b) in enumerate(both) if a != b), min(len(runs[mode].tokens), len(runs["eager"].tokens)))
            return failed(f"{mode} makes another token than eager, the first at {at}", figures)
    if not runs["compiled"].hits:
        return failed("compiled, the capability is never hit", figures)
    if "captured" not in runs:
        return not_run("there are no graphs to capture on a CPU; eager and compiled made the same tokens", figures)
    captured = runs["captured"]
    if not captured.device_events:
        return not_run("the profiler of this torch shows no device kernel at all; run the captured model under hipprof", figures)
    if captured.kernels <= captured.all_hits:
        return failed("no replayed graph ran the kernel: every run of it was a dispatch from Python, or there was none", figures)
    return passed(figures)


def _keep(trial: Trial, home: Path, name: str, kept: str = "") -> None:
    if (home / name).is_file():
        trial.keep(kept or name, (home / name).read_bytes())
