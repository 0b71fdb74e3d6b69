"""What is shut stays shut where upstream finally decides, whichever way it was asked for: real engine configurations, real layers' questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm.dcu.ask.model_config import model_dtype

from scripts.serving import toy_models
from tests.runtime.platform_scenarios import DCU, Ask

MODEL: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 512,
    "torch_dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
WEIGHTS = {"strategy": "channel", "symmetric": True, "dynamic": False}


def group(kind: str, bits: int) -> dict[str, Any]:
    activations = {"type": kind, "num_bits": bits, "strategy": "token", "symmetric": True, "dynamic": True}
    return {"targets": ["Linear"], "weights": {"type": kind, "num_bits": bits, **WEIGHTS}, "input_activations": activations}


def within_text(**changes: Any) -> dict[str, Any]:
    """A model of pictures and texts, whose language model alone says something."""
    whole: dict[str, Any] = toy_models.config(toy_models.KINDS["mission-3.5"])
    return {**whole, "text_config": {**whole["text_config"], **changes}}


INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": group("int", 8)},
    "ignore": ["lm_head"],
}
FP8 = {**INT8, "format": "float-quantized", "config_groups": {"group_0": group("float", 8)}}
PER_LAYER = {**INT8, "config_groups": {"group_0": group("int", 8), "group_1": {**group("float", 8), "targets": ["re:.*down_proj"]}}}
SCHEME = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True, "dynamic": False}

ENGINE = """
    import sys
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    args = parser.parse_args({argv!r})
    config = EngineArgs.from_cli_args(args).create_engine_config()
    result = [str(config.cache_config.cache_dtype), str(config.model_config.dtype)]
"""


def model(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**MODEL, **changes}))
    return folder


def engine(ask: Ask, folder: Path, *arguments: str, **given: Any) -> Any:
    argv = ["--model", str(folder), "--skip-tokenizer-init", "--enforce-eager", *arguments]
    return ask.answer(ENGINE.format(argv=argv), **({"kfd": ask.sysfs(DCU)} | given))


def test_a_plain_and_an_int8_model_start(ask: Ask, tmp_path: Path) -> None:
    """The control: what is refused below is refused for what was added."""
    for changes in ({}, {"quantization_config": INT8}, {"torch_dtype": "float32"}):
        answer = engine(ask, model(tmp_path / "model", **changes))
        assert answer.error is None, answer.traceback
        assert answer.value[0] in ("auto", "bfloat16")
        assert answer.value[1] == f"torch.{model_dtype({**MODEL, **changes})}", "`survey` and upstream disagree on the dtype"


@pytest.mark.parametrize(
    ("changes", "arguments", "word"),
    [
        ({"quantization_config": FP8}, (), "fp8"),
        ({"compression_config": FP8}, (), "fp8"),
        (within_text(quantization_config=FP8), ("--language-model-only",), "fp8"),
        ({"quantization_config": PER_LAYER}, (), "fp8"),
        ({"quantization_config": {**INT8, "kv_cache_scheme": SCHEME}}, (), "kv_cache_scheme"),
        ({"quantization_config": {**INT8, "kv_cache_scheme": SCHEME}}, ("--kv-cache-dtype", "bfloat16"), "kv_cache_scheme"),
        ({"compression_config": {**INT8, "kv_cache_scheme": SCHEME}}, (), "kv_cache_scheme"),
        ({}, ("--kv-cache-dtype", "fp8"), "fp8"),
        ({}, ("--quantization", "fp8"), "fp8"),
        ({}, ("--hf-overrides", json.dumps({"quantization_config": FP8})), "fp8"),
        ({}, ("--hf-overrides", json.dumps({"quantization_config": {**INT8, "kv_cache_scheme": SCHEME}})), "kv_cache_scheme"),
    ],
    ids=lambda value: None if isinstance(value, str) else json.dumps(value)[:60],
)
def test_an_engine_that_would_open_it_does_not_start(
    ask: Ask, tmp_path: Path, changes: dict[str, Any], arguments: tuple[str, ...], word: str
) -> None:
    """By checkpoint, by flag, by override, and the flags once more by a configuration file."""
    ways = [arguments]
    if len(arguments) == 2:
        file = tmp_path / "serve.yaml"
        file.write_text(f"{arguments[0].removeprefix('--')}: {json.dumps(arguments[1])}\n")
        ways.append(("--config", str(file)))
    for way in ways:
        answer = engine(ask, model(tmp_path / "model", **changes), *way)
        assert "shut on gfx936" in (answer.error or ""), f"{answer.error}\n{answer.traceback}"
        assert word in (answer.error or "")


LAYERS = """
    import torch
    from types import SimpleNamespace as Some
    from vllm.config import set_current_vllm_config, VllmConfig, CacheConfig
    from vllm.platforms import current_platform as p
    from vllm.v1.attention.selector import AttentionSelectorConfig
    config = VllmConfig(cache_config=CacheConfig())
    {change}
    selector = AttentionSelectorConfig(head_size=128, dtype=torch.bfloat16, kv_cache_dtype={dtype!r}, block_size=16, use_mla={mla},
                                       has_sink=False, use_sparse=False)
    with set_current_vllm_config(config):
        result = p.get_attn_backend_cls(None, selector)
"""


@pytest.mark.parametrize(("dtype", "mla"), [("fp8", False), ("fp8_e5m2", False), ("fp8_ds_mla", True)])
def test_an_attention_layer_whose_cache_became_fp8_is_not_built(ask: Ask, dtype: str, mla: bool) -> None:
    """Upstream's layer sets fp8 by itself where its quantization has a kv_cache_scheme, after every check of the configuration."""
    error = ask.answer(LAYERS.format(change="", dtype=dtype, mla=mla), kfd=ask.sysfs(DCU)).error or ""
    assert f"An attention layer with a KV cache of {dtype} asks for fp8, which is shut on gfx936" in error
    assert ask.answer(LAYERS.format(change="", dtype="auto", mla=mla), kfd=ask.sysfs(DCU)).error is None


def test_an_attention_layer_whose_quantization_has_a_scheme_is_not_built(ask: Ask) -> None:
    change = "config.quant_config = Some(kv_cache_scheme={'type': 'float', 'num_bits': 8})"
    error = ask.answer(LAYERS.format(change=change, dtype="auto", mla=False), kfd=ask.sysfs(DCU)).error or ""
    assert "kv_cache_scheme asks for fp8" in error


WORKER = """
    import torch
    from types import SimpleNamespace as Some
    from vllm.config import set_current_vllm_config, VllmConfig, CacheConfig
    from vllm.platforms import current_platform as p, rocm
    rocm.RocmPlatform.check_if_supports_dtype = classmethod(lambda cls, dtype: None)  # it asks a device, as what follows it does
    config = VllmConfig(cache_config=CacheConfig())
    {change}
    with set_current_vllm_config(config):
        p.check_if_supports_dtype(torch.bfloat16)
"""


@pytest.mark.parametrize(
    "change",
    [
        "config.cache_config.cache_dtype = 'fp8'",
        "config.quant_config = Some(weights=Some(type='float', num_bits=8))",
        "config.quant_config = Some(layers={'a': Some(weight_dtype=torch.float8_e4m3fn)})",
        "config.speculative_config = Some(draft_model_config=Some(quantization='fp8'))",
        "config.speculative_config = Some(draft_model_config=Some(hf_config=Some(quantization_config={'quant_method': 'mxfp4'})))",
        "config.speculative_config = Some(draft_model_config=Some(hf_overrides={'quantization_config': {'quant_method': 'fp8'}}))",
    ],
)
def test_a_worker_looks_at_its_whole_configuration_again(ask: Ask, change: str) -> None:
    """Whatever a plugin or a per-model override changed after the configuration was made."""
    error = ask.answer(WORKER.format(change=change), kfd=ask.sysfs(DCU)).error or ""
    assert "shut on gfx936" in error, error
    assert "shut on" not in (ask.answer(WORKER.format(change=""), kfd=ask.sysfs(DCU)).error or "")


def test_custom_all_reduce_is_off_where_the_communicator_decides(ask: Ask) -> None:
    code = """
        from vllm.distributed import parallel_state
        from vllm.platforms import current_platform as p
        parallel_state.set_custom_all_reduce(True)
        name = p.get_device_communicator_cls()
        result = [parallel_state._ENABLE_CUSTOM_ALL_REDUCE, name.rsplit(".", 1)[1]]
    """
    assert ask(code, kfd=ask.sysfs(DCU)) == [False, "CudaCommunicator"]
    assert ask(code, amdsmi="gfx942") == [True, "CudaCommunicator"], "the control"
