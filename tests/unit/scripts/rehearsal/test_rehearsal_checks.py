"""Every check of the rehearsal is seen failing on a planted fault, over outputs as a real rehearsal writes them down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scripts.rehearsal import checks, report
from scripts.rehearsal.records import Answer, Counts, Phase, Run, answer_of

LAYERS = 2
LONG = Answer((5, 6, 7), (-3.0, -3.5, -4.0), (0.9, 0.9, 0.9))


def counts(ones: int, others: tuple[int, ...] = (), **changed: int) -> Counts:
    """Counts of a whole system: three numbers that are one."""
    return Counts(**{"hits": ones, "calls": ones, "rows": {"rows-1": (*others, *([1] * ones))}, "host_calls": 0, **changed})


def moved(answer: Answer, by: float) -> Answer:
    return replace(answer, logprobs=tuple(value + by for value in answer.logprobs))


def a_run(variant: str = "on", ones: Callable[[int], int] = lambda n: n, by: float = 0.0) -> Run:
    silent = {} if variant == "on" else {"hits": 0, "calls": 0}
    phases = (
        Phase("one token", counts(0, (11, 11)), (LONG,), 0),
        Phase("six tokens", counts(ones(LAYERS * 5), (11, 11), **silent), (moved(LONG, by),), 5),
        Phase("one-token prompt", counts(ones(LAYERS * 4), **silent), (LONG,), 4),
        Phase("batch of two", counts(0, (180, 180, 2, 2, 2, 2))),
        Phase("streaming", counts(ones(LAYERS * 4), **silent), (), 4, {"streamed": "abc", "whole": "abc", "events": 6, "tokens": 5}),
        Phase("prefix caching", counts(LAYERS * 4, **silent), (LONG, LONG), None, {"cached_tokens": 128.0}),
        Phase("priority", counts(0), (), None, {"ended": ["first", "urgent", "patient", "second"]}),
    )
    ending = {"how": "SIGTERM", "exit_code": 0, "hits": 40, "merged_hits": 40}
    return Run(variant, variant, "mission-2", LAYERS, "eager", "0.18.1+gfx936.1.cpu", 40.0, phases, ending)


def changed(run: Run, name: str, **fields: Any) -> Run:
    phases = tuple(replace(phase, **fields) if phase.name == name else phase for phase in run.phases)
    return replace(run, phases=phases)


def test_a_whole_run_has_no_problem() -> None:
    runs = [a_run(by=0.01), a_run("stock"), a_run("off"), a_run("gfx928")]
    assert [row for row in report.judge(runs) if row.problems] == []


# The three faults that the issue names: the fault, and the check that has to find it.
def test_a_gate_that_lets_two_rows_through_is_found() -> None:
    run = changed(a_run(), "batch of two", counts=counts(0, (180, 180, 2, 2, 2, 2), hits=8, calls=8))
    assert checks.counts_agree(run) == ["on, batch of two: the gate counted 8, the kernel ran 8 times, N was 1 0 times"]


def test_an_op_that_is_never_called_is_found_although_hits_are_counted() -> None:
    run = changed(a_run(), "six tokens", counts=counts(10, calls=0))
    assert checks.counts_agree(run) == ["on, six tokens: the gate counted 10, the kernel ran 0 times, N was 1 10 times"]


def test_a_gate_that_stays_shut_is_found() -> None:
    run = changed(a_run(), "six tokens", counts=counts(10, hits=0, calls=0))
    assert len(checks.counts_agree(run)) == len(checks.law_holds(run)) == 1


def test_a_counter_that_loses_a_workers_hits_is_found() -> None:
    run = changed(a_run(), "six tokens", counts=counts(10, hits=5))
    assert checks.counts_agree(run) == ["on, six tokens: the gate counted 5, the kernel ran 10 times, N was 1 10 times"]
    lost = replace(a_run(), ending={**a_run().ending, "merged_hits": 39})
    assert checks.ended_well(lost) == ["on: counters.json says 39 hits, the processes' files 40"]


# All others, one planted fault a check.
@pytest.mark.parametrize("ones", [lambda n: n - 1, lambda n: n + 1, lambda n: 0, lambda n: n // 2])
def test_a_count_that_breaks_the_law_is_found_in_every_phase_that_has_one(ones: Callable[[int], int]) -> None:
    assert len(checks.law_holds(a_run(ones=ones))) == 3


def test_a_batch_that_never_was_one_shows_nothing() -> None:
    run = changed(a_run(), "batch of two", counts=counts(8, (180, 11)))
    assert checks.batch_was_shown(run) == ["on: no step had two rows, N was [1, 11, 180]"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hits": 1, "calls": 0}, "off, six tokens: 1 hits, the kernel ran 0 times, 0 were due"),
        ({"hits": 0, "calls": 1}, "off, six tokens: 0 hits, the kernel ran 1 times, 0 were due"),
    ],
)
def test_a_control_in_which_the_kernel_ran_is_found(fields: dict[str, int], said: str) -> None:
    assert checks.silent(changed(a_run("off"), "six tokens", counts=counts(10, **fields))) == [said]


def test_a_control_whose_operator_was_never_asked_proves_nothing() -> None:
    run = changed(a_run("stock"), "six tokens", counts=counts(0))
    assert checks.silent(run) == ["stock, six tokens: N was 1 0 times, 2 x 5 were due"]


def test_one_other_digit_is_not_the_same_answer() -> None:
    run = changed(a_run("off"), "six tokens", answers=(moved(LONG, 1e-7),))
    assert checks.same_answers(run, a_run("stock")) == ["off, six tokens: another answer than stock's"]


def test_nothing_in_common_is_no_equality() -> None:
    assert checks.same_answers(replace(a_run("off"), phases=()), a_run("stock")) == ["off and stock share no answer"]


def test_a_log_probability_out_of_the_bound_is_found() -> None:
    bound = checks.LOGPROB_BOUND[LAYERS]
    assert checks.near(a_run(by=bound * 0.99), a_run("stock"))[0] == []
    found, largest = checks.near(a_run(by=bound * 1.01), a_run("stock"))
    assert len(found) == 3
    assert largest == pytest.approx(bound * 1.01)


def test_equal_answers_mean_that_the_kernels_result_was_thrown_away() -> None:
    assert "the kernel's result was not used" in checks.near(a_run(), a_run("stock"))[0][0]


@pytest.mark.parametrize(("gap", "wrong"), [(0.1, 0), (5.0, 1)])
def test_another_token_is_right_only_where_the_choice_was_close(gap: float, wrong: int) -> None:
    ours = replace(moved(LONG, 0.01), tokens=(5, 9, 9))
    theirs = replace(LONG, gaps=(0.9, gap, 0.9))
    run, stock = a_run(), changed(a_run("stock"), "six tokens", answers=(theirs,))
    assert len(checks.near(changed(run, "six tokens", answers=(ours,)), stock)[0]) == wrong


@pytest.mark.parametrize("facts", [{"streamed": "ab"}, {"events": 4}])
def test_a_stream_that_says_less_or_comes_at_once_is_found(facts: dict[str, Any]) -> None:
    run = a_run()
    broken = changed(run, "streaming", facts={**run.phase("streaming").facts, **facts})
    assert len(checks.streamed_alike(broken)) == 1


def test_a_prefix_that_is_not_cached_or_changes_the_answer_is_found() -> None:
    assert len(checks.prefix_was_reused(changed(a_run(), "prefix caching", facts={"cached_tokens": 0.0}))) == 1
    other = replace(LONG, tokens=(5, 6, 8))
    assert len(checks.prefix_was_reused(changed(a_run(), "prefix caching", answers=(LONG, other)))) == 1


def test_a_queue_that_is_served_in_order_of_arrival_is_found() -> None:
    run = changed(a_run(), "priority", facts={"ended": ["first", "patient", "urgent", "second"]})
    assert checks.priority_was_kept(run) == ["on: requests ended in the order first, patient, urgent, second"]


@pytest.mark.parametrize(
    "ending",
    [
        {"noticed": False, "hits_before": 5, "hits": 5},
        {"noticed": True, "hits_before": 5, "hits": 4},
        {"noticed": True, "hits_before": 0, "hits": 0},
    ],
)
def test_a_kill_that_is_not_noticed_or_loses_counts_is_found(ending: dict[str, Any]) -> None:
    assert len(checks.kill_was_survived(replace(a_run(), ending=ending))) == 1


def test_a_stop_with_another_exit_code_is_found() -> None:
    assert len(checks.ended_well(replace(a_run(), ending={**a_run().ending, "exit_code": -9}))) == 1


@pytest.mark.parametrize("fault", sorted(report.FAULT_FINDERS))
def test_a_planted_fault_that_is_not_found_fails_the_rehearsal(fault: str) -> None:
    (row,) = report.judge([replace(a_run(), variant=f"fault:{fault}")])
    assert row.problems == (f"the planted fault {fault} was not found",)


def test_counts_are_compared_process_by_process() -> None:
    before = Counts(2, 2, {"rows-9": (16, 1, 1)})
    after = Counts(5, 5, {"rows-10": (1,), "rows-9": (16, 1, 1, 1, 1)})
    added = after.since(before)
    assert (added.hits, added.single_rows, sorted(added.all_rows)) == (3, 3, [1, 1, 1])


def test_an_answer_is_read_from_what_the_server_sends() -> None:
    top = [{"token_id:7": -1.0, "token_id:9": -1.5}, {"token_id:1": -0.5, "token_id:8": -2.0}]
    choice = {"logprobs": {"tokens": ["token_id:7", "token_id:8"], "token_logprobs": [-1.0, -2.0], "top_logprobs": top}}
    assert answer_of(choice) == Answer((7, 8), (-1.0, -2.0), (0.5, 1.5))


def test_evidence_is_given_only_by_a_rehearsal_without_a_problem_and_never_as_hardwares() -> None:
    runs = [a_run(by=0.01), a_run("stock")]
    entries = report.evidence(report.judge(runs), runs, "2026-01-01")
    assert {entry["on_hardware"] for entry in entries} == {False}
    assert all(str(entry["claim"]).startswith("rehearsal: ") for entry in entries)
    broken = [changed(runs[0], "six tokens", counts=counts(10, hits=5)), runs[1]]
    assert report.evidence(report.judge(broken), broken, "2026-01-01") == []


STATE_LINES = {
    "plugin": "WARNING 1 [f.py:1] DCU: the platform is P of vllm-hcu 1: an out-of-tree plugin. Nothing of vLLM for gfx936 is active under it.",
    "beside": "(EngineCore pid=2) INFO 1 [g.py:1] DCU: beside P of vllm-hcu 1, the gate stands at 5 unquantized layer(s) [gfx936].",
    "after": "WARNING 1 [f.py:1] DCU: every capability is shut: a.py is not the file that was built (mark PATCHED_vllm_a_patch_0). Remedy: "
    "pip install --force-reinstall --no-deps of the wheel",
}


def in_state(variant: str, *lines: str) -> Run:
    run = a_run(by=0.01) if variant == "beside" else a_run("off")
    return replace(run, name=variant, variant=variant, said=lines, processes=1)


def test_the_four_states_are_judged_each_by_its_law() -> None:
    runs = [a_run(by=0.01), a_run("stock"), *(in_state(variant, line) for variant, line in STATE_LINES.items())]
    found = report.judge(runs)
    assert [row for row in found if row.problems] == []
    assert {row.run for row in found if "plugin is said" in row.claim} == set(STATE_LINES)
    assert {row.run for row in found if row.claim.startswith("hits = layers")} == {"on", "beside"}
    assert {row.run for row in found if row.claim.startswith("no hit")} == {"stock", "plugin", "after"}


@pytest.mark.parametrize(
    ("variant", "lines", "words"),
    [
        ("plugin", (), "0 lines say 'Nothing of"),
        ("beside", (STATE_LINES["beside"], STATE_LINES["plugin"]), "1 lines say 'Nothing of"),
        ("beside", (STATE_LINES["after"],), "0 lines say 'the gate stands at '"),
        ("after", (STATE_LINES["after"].replace("PATCHED_", ""),), "no line names a mark and the remedy"),
        ("after", (STATE_LINES["after"],) * 2, "1 processes said 2 times"),
    ],
)
def test_a_state_that_is_not_said_or_not_once_is_found(variant: str, lines: tuple[str, ...], words: str) -> None:
    assert any(words in problem for problem in checks.state_was_said(in_state(variant, *lines)))


def sharded_run(**ending: Any) -> Run:
    run = a_run("sharded")
    phases = tuple(replace(phase, counts=Counts()) for phase in run.phases[:3])
    return replace(run, phases=phases, ending={**run.ending, "workers": 2, "shards": 2 * LAYERS * 9, **ending})


def test_a_tensor_parallel_server_counts_every_slice_and_no_hit() -> None:
    assert [row for row in report.judge([sharded_run()]) if row.problems] == []


@pytest.mark.parametrize(
    ("run", "word"),
    [
        (sharded_run(shards=LAYERS * 9), "were due"),
        (sharded_run(workers=1, shards=LAYERS * 9), "1 worker counted"),
        (changed(sharded_run(), "six tokens", counts=Counts(hits=1)), "1 hits, 0 were due"),
        (sharded_run(exit_code=1), "exit code 1"),
    ],
)
def test_a_tensor_parallel_server_that_is_wrong_is_found(run: Run, word: str) -> None:
    (row,) = report.judge([run])
    assert any(word in problem for problem in row.problems), row.problems


def test_a_pipeline_whose_second_worker_counts_nothing_is_found() -> None:
    run = replace(a_run(by=0.01), ending={**a_run().ending, "workers": 1})
    assert any("1 worker counted" in problem for row in report.judge([run]) for problem in row.problems)
