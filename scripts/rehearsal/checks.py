"""The checks of a rehearsal: pure functions over what was written down. Each returns what is wrong, one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.rehearsal.records import Run

__all__ = ["LOGPROB_BOUND", "batch_was_shown", "counts_agree", "law_holds", "near", "same_answers", "sharded", "silent", "state_was_said"]

LOGPROB_BOUND = {1: 0.16, 2: 0.55}
"""Layers -> how far a log probability may move when LLMM1 computes gate/up instead of F.linear.

Derivation, for the weights of scripts/serving/toy_models.py (norms one, matrices of variance 1/fan-in, embeddings of variance 1).
The two results of gate/up differ by at most d = 2.9e-3 + 1.9e-3, rounded up to 5e-3, relative and norm-wise: each one's
own measured distance from float64. silu(g) * u carries that on as 1.7 d / 0.6 < 3 d (silu' is below 1.1; the rms of silu
of a normal variable is 0.6). `down` keeps relative norms. The MLP's share of the residual stream is 0.6 / 1.2, so one
layer adds 1.5 d = 7.5e-3, and bf16 storage of values that differ adds at most 2 * 2^-9 * sqrt(2) = 5.6e-3: e1 = 1.3e-2. A second
layer passes e1 on and adds 1.5 (e1 + d) + 5.6e-3: e2 = 4.6e-2. A logit is a scalar product with a vector of norm one times the
normed state, of rms one, so it moves by e in the rms, and by less than 6 e for all of some thousands; the normaliser
by no more than that: 12 e.
"""


def counts_agree(run: Run) -> list[str]:
    """The gate's hits, the kernel's own count and the GEMMs with N=1 are one number in every phase."""
    found = []
    for phase in run.phases:
        hits, calls, single = phase.counts.hits, phase.counts.calls, phase.counts.single_rows
        if not hits == calls == single:
            found.append(f"{run.name}, {phase.name}: the gate counted {hits}, the kernel ran {calls} times, N was 1 {single} times")
    return found


def law_holds(run: Run) -> list[str]:
    """hits = layers x (T - 1) for a prompt of several tokens, layers x T for one of one token."""
    found = []
    for phase in run.phases:
        if phase.steps is not None and phase.counts.hits != run.layers * phase.steps:
            found.append(f"{run.name}, {phase.name}: {phase.counts.hits} hits, {run.layers} x {phase.steps} were due")
    return found


def batch_was_shown(run: Run) -> list[str]:
    """At least one step of the batch had two rows, else the phase shows nothing."""
    rows = run.phase("batch of two").counts.all_rows
    return [] if 2 in rows else [f"{run.name}: no step had two rows, N was {sorted(set(rows))}"]


def silent(run: Run) -> list[str]:
    """The kernel never ran, although the same operator was called with N=1 as often as where it runs."""
    found = []
    for phase in run.phases:
        if phase.counts.hits or phase.counts.calls:
            found.append(f"{run.name}, {phase.name}: {phase.counts.hits} hits, the kernel ran {phase.counts.calls} times, 0 were due")
        if phase.steps is not None and phase.counts.single_rows != run.layers * phase.steps:
            found.append(f"{run.name}, {phase.name}: N was 1 {phase.counts.single_rows} times, {run.layers} x {phase.steps} were due")
    return found


STATES = {
    "plugin": "Nothing of vLLM for gfx936 is active under it",
    "beside": "the gate stands at ",
    "after": "every capability is shut: ",
}
"""What a server has to say of itself in each state of a vendor's plugin."""


def state_was_said(run: Run) -> list[str]:
    """The state is said, once a process, and no other state's line; after a plugin the line names file, mark and remedy."""
    found = []
    for variant, phrase in STATES.items():
        lines = [line for line in run.said if phrase in line]
        if bool(lines) != (variant == run.variant):
            found.append(f"{run.name}: {len(lines)} lines say {phrase!r}")
        if len(lines) > run.processes:
            found.append(f"{run.name}: {run.processes} processes said {len(lines)} times: {lines[0]}")
    if run.variant == "after" and not any("(mark PATCHED_vllm_" in line and "--force-reinstall --no-deps" in line for line in run.said):
        found.append(f"{run.name}: no line names a mark and the remedy")
    return found


def sharded(run: Run) -> list[str]:
    """Split among workers the matrix is no record's: no hit, and every worker counted every step with N=1 of its own slice."""
    due = run.ending["workers"] * run.layers * sum(phase.steps or 0 for phase in run.phases)
    found = [f"{run.name}, {p.name}: {p.counts.hits} hits, 0 were due" for p in run.phases if p.counts.hits or p.counts.calls]
    if run.ending["shards"] != due or not due:
        found.append(f"{run.name}: {run.ending['shards']} calls of a slice with N=1 were counted, {due} were due")
    return found + all_workers_counted(run)


def all_workers_counted(run: Run) -> list[str]:
    """The counter files are those of two workers at least."""
    workers = run.ending["workers"]
    return [] if workers >= 2 else [f"{run.name}: {workers} worker counted, two were there"]


def same_answers(run: Run, reference: Run) -> list[str]:
    """Tokens and log probabilities are equal to the last digit in every phase that both have."""
    names = [phase.name for phase in reference.phases if phase.answers and any(p.name == phase.name for p in run.phases)]
    found = [f"{run.name} and {reference.name} share no answer"] if not names else []
    return found + [
        f"{run.name}, {name}: another answer than {reference.name}'s"
        for name in names
        if run.phase(name).answers != reference.phase(name).answers
    ]


def near(run: Run, reference: Run) -> tuple[list[str], float]:
    """Answers with the kernel against answers without it: within LOGPROB_BOUND, and the same token unless it was that close.

    Returns what is wrong, and the largest distance seen. After a token that was decided otherwise, the texts are two
    different ones and nothing is compared.
    """
    bound = LOGPROB_BOUND[run.layers]
    found: list[str] = []
    largest, compared, moved = 0.0, 0, 0
    for phase in run.phases:
        if not any(p.name == phase.name for p in reference.phases):
            continue
        for ours, theirs in zip(phase.answers, reference.phase(phase.name).answers, strict=True):
            for i, token in enumerate(ours.tokens):
                if token != theirs.tokens[i]:
                    if theirs.gaps[i] > 2 * bound:
                        found.append(f"{run.name}, {phase.name}: token {i} differs, and was {theirs.gaps[i]:.3f} ahead")
                    break
                distance = abs(ours.logprobs[i] - theirs.logprobs[i])
                compared += 1
                moved += distance > 0
                largest = max(largest, distance)
                if distance > bound:
                    found.append(f"{run.name}, {phase.name}: log probability {i} moved by {distance:.4f}, {bound} is allowed")
    if not compared:
        found.append(f"{run.name} and {reference.name} share no token to compare")
    elif not moved:
        found.append(f"{run.name}: not one log probability differs from {reference.name}'s: the kernel's result was not used")
    return found, largest


def streamed_alike(run: Run) -> list[str]:
    """The streamed text is the whole one, in as many events as tokens."""
    facts = run.phase("streaming").facts
    found = []
    if facts["streamed"] != facts["whole"]:
        found.append(f"{run.name}: the stream said {facts['streamed']!r}, the whole answer was {facts['whole']!r}")
    if facts["events"] < facts["tokens"]:
        found.append(f"{run.name}: {facts['tokens']} tokens came in {facts['events']} events")
    return found


def prefix_was_reused(run: Run) -> list[str]:
    """The second request with the same long prompt takes blocks from the cache and answers the same."""
    phase = run.phase("prefix caching")
    found = []
    if phase.facts["cached_tokens"] < 128:
        found.append(f"{run.name}: {phase.facts['cached_tokens']} tokens came from the prefix cache, a block of 128 was due")
    if phase.answers[0].tokens != phase.answers[1].tokens:
        found.append(f"{run.name}: the answer changed when its prefix came from the cache")
    return found


def priority_was_kept(run: Run) -> list[str]:
    """Of two waiting requests the more urgent one ends first, although it came later."""
    order: Sequence[str] = run.phase("priority").facts["ended"]
    if order.index("urgent") < order.index("patient"):
        return []
    return [f"{run.name}: requests ended in the order {', '.join(order)}"]


def ended_well(run: Run) -> list[str]:
    """After SIGTERM the server ended by itself with 0, and counters.json is whole and holds every process's hits."""
    ending = run.ending
    found = []
    if ending["exit_code"] != 0:
        found.append(f"{run.name}: exit code {ending['exit_code']} after SIGTERM")
    if ending["merged_hits"] != ending["hits"]:
        found.append(f"{run.name}: counters.json says {ending['merged_hits']} hits, the processes' files {ending['hits']}")
    return found


def kill_was_survived(run: Run) -> list[str]:
    """After SIGKILL of the engine the server does not stay up as if nothing were, and no count is lost."""
    ending = run.ending
    found = []
    if not ending["noticed"]:
        found.append(f"{run.name}: the server still says it is healthy after its engine was killed")
    if ending["hits"] != ending["hits_before"] or ending["hits"] == 0:
        found.append(f"{run.name}: {ending['hits_before']} hits before the kill, {ending['hits']} after it")
    return found
