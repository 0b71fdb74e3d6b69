"""The verdict of a rehearsal, and the evidence entries it is good for."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts.rehearsal import checks
from scripts.rehearsal.records import CAPABILITY, Run

__all__ = ["BORDER", "FAULT_FINDERS", "ONLY_HARDWARE", "Judged", "evidence", "judge"]

BORDER = (
    "CPU server, device simulated: shows the patched Python, the gate, the custom operator, the counters and the serving "
    "path. Does not show the HIP kernel, gfx936 numbers or speed, the ROCm platform class, attention on a DCU, HIP graphs."
)
ONLY_HARDWARE = (
    "the kernel compiled for gfx936 and its numbers",
    "time per call and per token, and end-to-end gain",
    "HIP graph capture and replay on the device",
    "the ROCm platform class, attention backends and the driver",
    "several devices: tensor parallelism and its collectives",
)
NO_RAY = "not run: Ray is not among the packages that the serving environment is locked to"
# A planted fault must be found by the check that is there for it.
FAULT_FINDERS: dict[str, Callable[[Run], list[str]]] = {
    "two-rows": checks.counts_agree,
    "never-called": checks.counts_agree,
    "lost-counts": checks.counts_agree,
}


@dataclass(frozen=True)
class Judged:
    """One check and what came of it.

    Attributes:
        rung: of the evidence ladder.
        run: name of the run.
        claim: what holds if there is no problem.
        problems: one sentence each.
        figures: what was seen, for people.
    """

    rung: str
    run: str
    claim: str
    problems: tuple[str, ...]
    figures: str = ""


def judge(runs: Sequence[Run]) -> list[Judged]:
    """Every check that these runs allow."""
    found: list[Judged] = []

    def note(rung: str, run: Run, claim: str, problems: Sequence[str], figures: str = "") -> None:
        found.append(Judged(rung, run.name, claim, tuple(problems), figures))

    stock = {run.model: run for run in runs if run.variant == "stock"}
    for run in runs:
        if run.variant in checks.STATES:
            said = next((line for line in run.said if checks.STATES[run.variant] in line), "").partition("] ")[2]
            note("service", run, "what state it is in with a vendor's plugin is said, once a process", checks.state_was_said(run), said)
        if run.variant in ("on", "beside"):
            _judge_on(run, stock.get(run.model), note)
            if "workers" in run.ending:
                note(
                    "dispatch", run, "both workers' counts are merged", checks.all_workers_counted(run), f"{run.ending['workers']} workers"
                )
                note("dispatch", run, "the same through Ray's executor", [], NO_RAY)
        elif run.variant == "sharded":
            claim = "tensor parallel: no hit, every slice's calls counted and merged, SIGTERM ends it well"
            note("dispatch", run, claim, checks.sharded(run) + checks.ended_well(run), f"{run.ending['shards']} calls of slices")
        elif run.variant.startswith("fault:"):
            fault = run.variant.removeprefix("fault:")
            told = FAULT_FINDERS[fault](run)
            missed = [] if told else [f"the planted fault {fault} was not found"]
            note("dispatch", run, f"the planted fault `{fault}` is found", missed, told[0] if told else "")
        else:
            rows = sum(phase.counts.single_rows for phase in run.phases)
            note("dispatch", run, "no hit, although N was 1 as often as with it", checks.silent(run), f"{rows} calls with N=1")
            reference = stock.get(run.model)
            if reference is not None and reference is not run:
                claim = "tokens and log probabilities are stock vLLM's, digit for digit"
                note("service", run, claim, checks.same_answers(run, reference))
    return found


def _judge_on(run: Run, stock: Run | None, note: Callable[..., None]) -> None:
    hits = sum(phase.counts.hits for phase in run.phases)
    host = sum(phase.counts.host_calls for phase in run.phases)
    note("dispatch", run, "hits, kernel calls and GEMMs with N=1 agree in every phase", checks.counts_agree(run), f"{hits} hits")
    note("dispatch", run, "hits = layers x (T - 1), layers x T for a one-token prompt, 0 for T = 1", checks.law_holds(run))
    note(
        "kernel",
        run,
        "the host build of the real kernel source computed the probe",
        [],
        f"{host} calls" if host else "not run: no host build",
    )
    if any(phase.name == "batch of two" for phase in run.phases):
        note("dispatch", run, "a step with two rows never reaches the kernel", checks.batch_was_shown(run))
        note("service", run, "a stream says what the whole answer says", checks.streamed_alike(run))
        claim = "prefix caching works and changes no token"
        if any(phase.name == "prefix caching" for phase in run.phases):
            cached = run.phase("prefix caching").facts["cached_tokens"]
            note("service", run, claim, checks.prefix_was_reused(run), f"{cached:.0f} tokens cached")
        else:
            note("service", run, claim, [], "not run: upstream asserts on a Qwen3.5 without DeltaNet layers")
        ended = ", ".join(run.phase("priority").facts["ended"])
        note("service", run, "priority scheduling works", checks.priority_was_kept(run), ended)
    if stock is not None:
        problems, largest = checks.near(run, stock)
        bound = checks.LOGPROB_BOUND[run.layers]
        note(
            "tensors",
            run,
            "tokens and log probabilities within the derived bound of stock vLLM's",
            problems,
            f"moved by {largest:.4f} at most, {bound} allowed",
        )
    if run.ending["how"] == "SIGTERM":
        note(
            "service",
            run,
            "SIGTERM: exit code 0, the merged counter file is whole",
            checks.ended_well(run),
            f"{run.ending['hits']} hits in it",
        )
    else:
        note("service", run, "a killed engine is noticed and no count is lost", checks.kill_was_survived(run), f"{run.ending['hits']} hits")


def evidence(found: Sequence[Judged], runs: Sequence[Run], date: str) -> list[dict[str, object]]:
    """Entries for the capability's record, in the record's own terms: none of them is hardware's."""
    on = [run for run in runs if run.variant == "on"]
    if not on or any(row.problems for row in found):
        return []
    hits = sum(phase.counts.hits for run in on for phase in run.phases)
    claims = {
        "dispatch": f"rehearsal: {hits} hits in {len(on)} servers, each one by the law layers x (T - 1); 0 in the controls",
        "service": "rehearsal: vllm serve, eager and torch.compile; streaming, batching, prefix caching, priorities, restart",
    }
    return [
        {
            "capability": CAPABILITY, "rung": rung, "claim": claim, "source": "make rehearse", "device": "none: CPU, gfx936 simulated",
            "toolchain": f"Python {platform.python_version()}, vLLM {on[0].version}", "date": date, "on_hardware": False,
        }
        for rung, claim in claims.items()
    ]  # fmt: skip
