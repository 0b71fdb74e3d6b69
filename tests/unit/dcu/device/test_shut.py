"""What stays shut on a DCU, and what a user who asks for it is told."""

from __future__ import annotations

import pytest
from vllm.dcu.device import shut


@pytest.mark.parametrize(
    ("variable", "value", "off", "capability"),
    [
        ("VLLM_ROCM_USE_AITER", "1", "0", "AITER"),
        ("VLLM_ROCM_USE_AITER", "True", "0", "AITER"),
        ("VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", "1", "0", "AITER"),
        ("VLLM_ROCM_USE_AITER_A_SWITCH_OF_TOMORROW", "1", "0", "AITER"),
        ("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "1", "0", "AITER"),
        ("VLLM_ROCM_CUSTOM_PAGED_ATTN", "1", "0", "custom paged attention"),
        ("VLLM_ROCM_FP8_MFMA_PAGE_ATTN", "1", "0", "fp8"),
        *[("VLLM_ROCM_FP8_MFMA_PAGE_ATTN", number, "0", "fp8") for number in ("2", "01", " 1 ", "-1", "1_0", "\uff12")],
        ("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "FP", "NONE", "quick all-reduce"),
        ("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "INT4", "NONE", "quick all-reduce"),
    ],
)
def test_a_request_by_environment_is_turned_off_and_said(variable: str, value: str, off: str, capability: str) -> None:
    environ = {variable: value}
    said = shut.withdraw(environ)
    assert environ[variable] == off
    assert len(said) == 1
    for part in (f"{variable}={value}", capability, "gfx936", shut.CAPABILITIES[capability]):
        assert part in said[0]
    assert shut.withdraw(environ) == (), "a child process, which inherits the corrected value, says nothing again"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"VLLM_ROCM_USE_AITER": "0"},
        {"VLLM_ROCM_USE_AITER": ""},
        {"VLLM_ROCM_FP8_MFMA_PAGE_ATTN": "00"},
        {"VLLM_ROCM_FP8_MFMA_PAGE_ATTN": "9" * 5000},
        {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "NONE"},
        {"VLLM_ROCM_CUSTOM_PAGED_ATTN": "0"},
        {"VLLM_ROCM_USE_SKINNY_GEMM": "1"},
    ],
)
def test_who_asks_for_nothing_hears_nothing(environ: dict[str, str]) -> None:
    before = dict(environ)
    assert shut.withdraw(environ) == ()
    assert environ == {"VLLM_ROCM_CUSTOM_PAGED_ATTN": "0", **before}


@pytest.mark.parametrize("backend", ["ROCM_AITER_FA", "ROCM_AITER_MLA_SPARSE", "FLASH_ATTN", "FLASHINFER", "A_BACKEND_OF_TOMORROW"])
def test_an_attention_backend_that_is_not_listed_as_open_is_refused(backend: str) -> None:
    refusal = shut.attention_refusal(backend)
    assert refusal is not None
    assert backend in refusal
    assert "TRITON_ATTN" in refusal, "the refusal says what to choose"


@pytest.mark.parametrize(("backend", "vit"), [("TRITON_ATTN", False), ("ROCM_ATTN", False), ("CUSTOM", False), ("TORCH_SDPA", True)])
def test_generic_attention_is_open(backend: str, vit: bool) -> None:
    assert shut.attention_refusal(backend, vit) is None


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "fp8"},
        {"quant_method": "mxfp4"},
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 4}}}},
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}},
        {"quant_method": "quark", "layer_quant_config": [{"weight": {"dtype": "fp4"}}]},
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8WeightOnlyConfig"}}},
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "FPXWeightOnlyConfig"}}},
        {
            "quant_method": "torchao",
            "quant_type": {"default": {"_type": "X", "_data": {"t": {"_type": "torch.dtype", "_data": "float8_e4m3fn"}}}},
        },
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "X", "_data": {"weight_dtype": "torch.float8_e5m2"}}}},
        {"quant_method": "FP8", "activation_scheme": "dynamic"},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"type": "FLOAT", "num_bits": "8"}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"input_activations": {"type": "float", "num_bits": 8.0}}}},
        {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
        {"quant_method": "auto-round", "data_type": "int", "act_data_type": "mx_fp8"},
    ],
)
def test_an_fp8_or_mx_checkpoint_is_refused_whatever_its_format(config: dict[str, object]) -> None:
    refusal = shut.checkpoint_refusal(config)
    assert refusal is not None
    assert "shut on gfx936" in refusal


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "gptq", "modules_to_not_convert": ["fp8_proj"]},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 8}}}},
        {"quant_method": "compressed-tensors", "kv_cache_scheme": {"type": "float", "num_bits": 8}},
    ],
)
def test_other_checkpoints_are_left_to_upstream(config: dict[str, object] | None) -> None:
    assert shut.checkpoint_refusal(config) is None


@pytest.mark.parametrize("scheme", [{}, {"type": "int", "num_bits": 8}, [], "fp8"])
def test_whatever_a_scheme_of_the_kv_cache_says_it_is_refused(scheme: object) -> None:
    """Upstream's attention layer asks only whether it is None."""
    assert "kv_cache_scheme" in (shut.kv_scheme_refusal(scheme) or "")
    assert shut.kv_scheme_refusal(None) is None


def test_an_fp8_kv_cache_is_refused() -> None:
    assert "fp8" in (shut.kv_cache_refusal("fp8_e4m3") or "")
    assert shut.kv_cache_refusal("auto") is None


def test_every_reason_can_be_read() -> None:
    for capability, why in shut.CAPABILITIES.items():
        assert capability
        assert len(why) > 20
