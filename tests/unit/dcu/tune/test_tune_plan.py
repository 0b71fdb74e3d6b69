"""What `tune` measures, by a model's configuration and the arguments that it is served with; and how its table reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm.dcu.ask.model_config import ModelError
from vllm.dcu.evidence.ladder import Measure
from vllm.dcu.records.typed import dump, load
from vllm.dcu.tune.found import Contender, Found
from vllm.dcu.tune.plan import Choice, Item, choices, make_plan, read_served
from vllm.dcu.tune.report import Report, as_json, as_markdown, as_text, draw, rows, saved

from tests.unit.dcu.ask.test_dcu_survey import QWEN3_14B, QWEN35_27B


@pytest.mark.parametrize(
    ("words", "rows", "tp"),
    [
        ("", (1, 2, 4), 1),
        ("--max-model-len 32768 --port 8000", (1, 2, 4), 1),
        ("--max_num_seqs=1 --enforce-eager", (1,), 1),
        ("--max-num-seqs 1", (1, 2), 1),
        ("--enforce-eager --max-num-seqs 2 -tp 2", (1, 2), 2),
        ("--cudagraph-capture-sizes 1 3 8 --tensor_parallel_size 4", (1, 3), 4),
        ('--compilation-config {"cudagraph_capture_sizes":[2,16]}', (1, 2), 1),
        ('--max-num-seqs 1 --enforce-eager --speculative-config {"method":"qwen3_5_mtp","num_speculative_tokens":1}', (1, 2), 1),
        ('--max-num-seqs 1 --speculative-config {"method":"mtp","num_speculative_tokens":4}', (1, 2, 4, 5), 1),
        ('--max-num-seqs 1 --speculative-config {"method":"mtp","num_speculative_tokens":7}', (1, 2, 4), 1),
    ],
)
def test_the_serve_arguments_say_which_rows_decode_has(words: str, rows: tuple[int, ...], tp: int) -> None:
    served = read_served(words.split())
    assert (served.rows, served.tp) == (rows, tp)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--config serve.yaml", "not read here"),
        ("--speculative-config {", "JSON that cannot be read"),
        ("--speculative-config [1]", "a JSON object belongs"),
        ('--speculative-config {"num_speculative_tokens":"2"}', "no whole numbers"),
        ("--tensor-parallel-size two", "cannot be read"),
    ],
)
def test_arguments_that_cannot_be_read_are_refused_in_one_sentence(words: str, why: str) -> None:
    with pytest.raises(ModelError, match=why) as refused:
        read_served(words.split())
    assert "\n" not in str(refused.value)


def test_the_27b_has_seven_shapes_and_each_stands_once_for_each_n() -> None:
    plan = make_plan(QWEN35_27B, read_served([]))
    assert {(i.m, i.k, i.calls) for i in plan.items} == {
        (34816, 5120, 64), (16384, 5120, 48), (14336, 5120, 16), (96, 5120, 48), (5120, 6144, 64), (5120, 17408, 64), (248320, 5120, 1),
    }  # fmt: skip
    assert len(plan.items) == 21
    assert [i.n for i in plan.items[:3]] == [1, 2, 4]


def test_speculative_decoding_brings_the_draft_layers_linears() -> None:
    config = QWEN35_27B | {"text_config": QWEN35_27B["text_config"] | {"mtp_num_hidden_layers": 1}}
    words = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":2}', "--max-num-seqs", "1", "--enforce-eager", "-tp", "2"]
    plan = make_plan(config, read_served(words))
    calls = {(i.m, i.k): i.calls for i in plan.items}
    assert calls[2560, 10240] == 2, "fc, once a guess"
    assert calls[17408, 5120] == 64 + 2
    assert calls[124160, 5120] == 1 + 2
    assert {i.n for i in plan.items} == {1, 2, 3}
    assert not plan.notes
    other = make_plan(QWEN3_14B, read_served(["--speculative-config", '{"model":"x","num_speculative_tokens":2}']))
    assert "draft model's own Linears are left out" in other.notes[0]


def test_what_no_kernel_takes_is_left_out_by_name() -> None:
    qwen2 = make_plan(QWEN3_14B | {"architectures": ["Qwen2ForCausalLM"]}, read_served([]))
    assert "attention qkv (7168 x 5120) has a bias" in qwen2.notes[0]
    assert not [i for i in qwen2.items if i.m == 7168]
    assert not make_plan(QWEN3_14B, read_served(["--dtype", "float32"])).items


@pytest.mark.parametrize(
    ("m", "k", "n", "llmm1", "count"),
    [
        (34816, 5120, 1, True, 18),
        (34816, 5120, 2, False, 17),
        (5120, 17408, 1, False, 17),
        (34816, 5120, 4, False, 15),
        (10, 5124, 1, False, 1),
    ],
)
def test_a_choice_is_measured_where_its_limits_allow(m: int, k: int, n: int, llmm1: bool, count: int) -> None:
    found = choices(Item("x", "bfloat16", m, k, n, 1))
    assert found[0].name == "F.linear"
    assert (Choice("LLMM1", 4) in found) is llmm1
    assert len(found) == count


def us(median: float, spread: float = 0.1) -> Measure:
    return Measure(median, median - spread, median + spread, 15, "us", "lower")


def found(item: Item, linear: float, *mine: tuple[Choice, float, str], spread: float = 0.1) -> Found:
    last = tuple(Contender(c, us(t, spread), 1.6e-3, fault) for c, t, fault in mine)
    return Found(item, Contender(Choice(), us(linear, spread), 1.7e-3), last, {"F.linear": linear}, 0.5)


UP = Item("MLP gate/up", "bfloat16", 34816, 5120, 1, 64)
NINE, THREE = Choice("GEMV", 9), Choice("GEMV", 3)


@pytest.mark.parametrize(
    ("mine", "spread", "winners", "why"),
    [
        (((NINE, 80.0, ""), (THREE, 81.0, "")), 0.1, [NINE, THREE], ""),
        (((NINE, 80.0, ""),), 6.0, [], "the ranges touch"),
        (((NINE, 98.0, ""),), 0.1, [], "1.03 is what a record needs"),
        (((NINE, 80.0, "one output is wrong"), (THREE, 81.0, "")), 0.1, [THREE], ""),
        (((NINE, 80.0, "one output is wrong"),), 0.1, [], "GEMV 9 is wrong: one output"),
        ((), 0.1, [], "nothing else may compute it"),
    ],
)
def test_a_choice_wins_only_beyond_the_noise_and_where_it_is_right(
    mine: tuple[tuple[Choice, float, str], ...], spread: float, winners: list[Choice], why: str
) -> None:
    seen = found(UP, 90.0 if spread > 1 else 100.0, *mine, spread=spread)
    assert [c.choice for c in seen.winners] == winners
    assert why in seen.why
    assert bool(seen.why) is not bool(winners)
    assert load(Found, dump(seen)) == seen


def test_the_report_says_what_a_token_saves_and_why_linear_stays(tmp_path: Path) -> None:
    down = Item("MLP down", "bfloat16", 5120, 17408, 1, 64)
    read = Measure(1000.0, 990.0, 1010.0, 15, "GB/s", "higher")
    report = Report("a device", read, (found(UP, 500.0, (NINE, 400.0, "")), found(down, 200.0, (THREE, 199.0, ""))), {UP.label: "opened"})
    first, second = rows(report)
    assert first.saved == pytest.approx(6.4)
    assert second.saved == 0
    assert first.rate == pytest.approx(UP.bytes / 400e3)
    assert first.share == pytest.approx(first.floor / 400)
    assert saved(rows(report)) == {1: pytest.approx(6.4)}
    for text in (as_text(report), as_markdown(report)):
        assert "Predicted for a step of N=1: 6.400 ms less." in text
        assert "34816 x 5120, N=1: opened" in text
        assert "5120 x 17408, N=1: GEMV 3 is 1.005 times as fast" in text
    assert as_json(report)["saved_ms"] == {"1": pytest.approx(6.4)}
    assert draw(report, tmp_path) == ("tune.svg", "tune.png")
    assert "the winner" in (tmp_path / "tune.svg").read_text()
