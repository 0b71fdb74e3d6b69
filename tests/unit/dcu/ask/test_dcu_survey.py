"""The survey: a model's Linear shapes from its configuration, held against the published facts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm.dcu.ask import survey as verb
from vllm.dcu.ask.explain import context_for
from vllm.dcu.ask.model_config import FAMILIES, ModelError, linears, model_dtype
from vllm.dcu.ask.survey import main, survey, weights_dtype
from vllm.dcu.records.catalog import MISSION

ID = MISSION.id

QWEN35_27B = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attn_output_gate": True,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "vocab_size": 248320,
    },
}
QWEN3_14B = {
    "architectures": ["Qwen3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "attention_bias": False,
}


def shapes(config: dict, tp: int = 1) -> set[tuple[int, int, int]]:
    return {(linear.m, linear.k, linear.calls) for linear in linears(config, tp)}


def test_qwen35_27b_has_the_seven_published_decode_shapes() -> None:
    """FACTS.md: M x K and calls per token; its row "attention/GDN out" is two Linears here, 16 + 48 = 64 calls."""
    assert shapes(QWEN35_27B) == {
        (34816, 5120, 64), (16384, 5120, 48), (14336, 5120, 16), (96, 5120, 48), (5120, 6144, 16), (5120, 6144, 48), (5120, 17408, 64),
        (248320, 5120, 1),
    }  # fmt: skip


def test_qwen3_14b_has_the_same_gate_up_matrix() -> None:
    assert shapes(QWEN3_14B) == {(7168, 5120, 40), (5120, 5120, 40), (34816, 5120, 40), (5120, 17408, 40), (151936, 5120, 1)}


@pytest.mark.parametrize("config", [QWEN35_27B, QWEN3_14B], ids=["Qwen3.5-27B", "Qwen3-14B"])
def test_at_tp_1_gate_up_hits_at_decode_and_nothing_else_does(config: dict) -> None:
    rows = survey(config, context_for("gfx936"), tp=1)
    assert {row.linear.name: row.decode for row in rows if row.decode} == {"MLP gate/up": ID}
    assert not any(row.prefill for row in rows)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("config", [QWEN35_27B, QWEN3_14B], ids=["Qwen3.5-27B", "Qwen3-14B"])
def test_with_tensor_parallelism_nothing_hits(config: dict, tp: int) -> None:
    rows = survey(config, context_for("gfx936"), tp)
    assert rows
    assert not any(row.decode or row.prefill for row in rows)


def test_tensor_parallelism_splits_rows_of_gate_up_and_columns_of_down() -> None:
    found = {linear.name: (linear.m, linear.k) for linear in linears(QWEN35_27B, 2)}
    assert found["MLP gate/up"] == (17408, 5120)
    assert found["MLP down"] == (5120, 8704)
    assert found["attention qkv and gate"] == (7168, 5120)
    assert found["Gated DeltaNet q, k, v, z"] == (8192, 5120)
    assert found["Gated DeltaNet b, a"] == (48, 5120)
    assert found["attention out"] == (5120, 3072)
    assert found["lm_head"] == (124160, 5120)


def test_more_ranks_than_key_value_heads_keep_one_head_each() -> None:
    found = {linear.name: linear.m for linear in linears(QWEN35_27B | {"text_config": QWEN35_27B["text_config"] | {"vocab_size": 64}}, 8)}
    assert found["attention qkv and gate"] == (3 * 2 + 2) * 256


def test_on_another_arch_nothing_hits() -> None:
    assert not any(row.decode for row in survey(QWEN35_27B, context_for("gfx928")))


def test_each_shape_stands_once_and_tune_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN35_27B))
    assert main([str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.count("5120 x 6144") == 1
    assert "attention out + Gated DeltaNet out" in text
    assert text.count("python -m vllm.dcu ") == 1
    assert "python -m vllm.dcu tune --model MODEL" in text
    assert all(row.tune for row in survey(QWEN35_27B, context_for("gfx936")))


def test_a_layer_with_a_bias_is_never_suggested() -> None:
    qwen2 = QWEN3_14B | {"architectures": ["Qwen2ForCausalLM"]}
    (row,) = [row for row in survey(qwen2, context_for("gfx936")) if row.linear.name == "attention qkv"]
    assert row.linear.bias
    assert not row.tune
    assert not [row for row in survey(QWEN3_14B, context_for("gfx936")) if row.linear.bias]


@pytest.mark.parametrize(
    ("config", "asked", "weights", "served"),
    [
        ({"torch_dtype": "float32"}, "auto", "", "bfloat16"),
        ({"dtype": "float64"}, "auto", "", "bfloat16"),
        ({}, "auto", "", "bfloat16"),
        ({}, "auto", "float16", "float16"),
        ({}, "auto", "float32", "bfloat16"),
        ({"dtype": "bfloat16"}, "auto", "float16", "bfloat16"),
        ({"dtype": "float16", "text_config": {"dtype": "bfloat16"}}, "auto", "", "float16"),
        ({"text_config": {"dtype": "float16"}}, "auto", "", "float16"),
        ({"vision_config": {"dtype": "float16"}}, "auto", "", "float16"),
        ({"dtype": "bfloat16"}, "half", "", "float16"),
        ({"dtype": "float16"}, "bfloat16", "", "bfloat16"),
        ({"dtype": "bfloat16"}, "float", "", "float32"),
    ],
)
def test_the_dtype_is_what_upstream_serves_in(config: dict, asked: str, weights: str, served: str) -> None:
    assert model_dtype(config, asked, weights) == served


def test_a_float32_checkpoint_is_surveyed_as_it_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_14B | {"torch_dtype": "float32"}))
    assert main([str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "weights in bfloat16" in text
    assert "llmm1-gfx936-bf16-n1-m34816-k5120" in text
    assert "speculative decoding" in text, "said where hits are promised"
    assert main([str(tmp_path), "--dtype", "float32", "--json"]) == 0
    assert not any(row["decode"] for row in json.loads(capsys.readouterr().out)["rows"])
    with pytest.raises(ModelError, match="none of auto, half"):
        main([str(tmp_path), "--dtype", "int4"])


def test_without_a_word_in_the_configuration_the_files_say_the_dtype(tmp_path: Path) -> None:
    head = json.dumps({"__metadata__": {}, "w": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"00")
    assert weights_dtype(tmp_path) == "float16"
    (tmp_path / "b.safetensors").write_bytes(b"cut")
    assert weights_dtype(tmp_path) == ""


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda p: p.symlink_to("/dev/zero"), lambda p: p.symlink_to(p)])
def test_what_is_no_file_among_the_weights_is_not_waited_for(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "a.safetensors")
    assert weights_dtype(tmp_path) == ""


def test_weights_whose_header_says_a_key_twice_say_nothing(tmp_path: Path) -> None:
    head = b'{"w": {"dtype": "F16", "dtype": "F16"}}'
    (tmp_path / "a.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    assert weights_dtype(tmp_path) == ""


def test_a_model_that_says_compression_config_is_quantized() -> None:
    with pytest.raises(ModelError, match="quantized"):
        linears(QWEN3_14B | {"compression_config": {"quant_method": "compressed-tensors"}})


def test_the_dtype_is_the_models_own() -> None:
    assert model_dtype(QWEN35_27B) == "bfloat16"
    assert model_dtype({"torch_dtype": "torch.float16"}) == "float16"
    assert not any(row.decode for row in survey(QWEN3_14B | {"torch_dtype": "float16"}, context_for("gfx936")))


@pytest.mark.parametrize(
    ("config", "tp", "why"),
    [
        ({"architectures": ["MambaForCausalLM"]}, 1, "the shapes of MambaForCausalLM are not known here"),
        ({}, 1, r"the shapes of \(none\) are not known here"),
        (QWEN3_14B | {"quantization_config": {"bits": 4}}, 1, "quantized"),
        (QWEN3_14B, 0, "tensor-parallel size of 0"),
        (QWEN3_14B, 3, "does not divide by the tensor-parallel size 3"),
        (QWEN3_14B | {"hidden_size": None}, 1, "no usable 'hidden_size'"),
        (QWEN3_14B | {"hidden_size": True}, 1, "no usable 'hidden_size'"),
        (QWEN35_27B | {"text_config": QWEN35_27B["text_config"] | {"layer_types": ["full_attention", "mamba"]}}, 1, "names 1 known layers"),
    ],
)
def test_a_model_whose_shapes_are_not_certain_is_refused(config: dict, tp: int, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        linears(config, tp)


def test_every_family_is_surveyed_by_a_test() -> None:
    assert set(FAMILIES) == {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3_5ForConditionalGeneration"}
    llama = QWEN3_14B | {"architectures": ["LlamaForCausalLM"], "head_dim": None, "mlp_bias": True}
    assert {(linear.m, linear.k) for linear in linears(llama)} == {(linear.m, linear.k) for linear in linears(QWEN3_14B)}
    assert {linear.name for linear in linears(llama) if linear.bias} == {"MLP gate/up", "MLP down"}


def test_the_command_line_reads_a_model_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN35_27B))
    assert verb.main([str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["linear"]["name"] for row in data["rows"] if row["decode"]] == ["MLP gate/up"]
    assert "assumed" in data["simulated"]
    assert verb.main([str(tmp_path / "config.json"), "--tp", "2"]) == 0
    text = capsys.readouterr().out
    assert "tensor parallel 2" in text
    assert "assumed" in text


@pytest.mark.parametrize(("content", "why"), [(None, "cannot be read"), ("{", "is not JSON"), ("[]", "does not hold a JSON object")])
def test_an_unreadable_configuration_is_one_clear_sentence(tmp_path: Path, content: str | None, why: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=why):
        verb.read_config(tmp_path)
