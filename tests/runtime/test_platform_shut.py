"""Every native path that nobody verified on gfx936 is shut in the running vLLM, whoever asks for it."""

from __future__ import annotations

import pytest

from tests.runtime.platform_scenarios import DCU, Ask

PREDICATES = """
    from vllm.platforms import current_platform as p, rocm
    from vllm._aiter_ops import rocm_aiter_ops
    import torch
    result = {
        "on_gfx9": rocm.on_gfx9(), "on_mi3xx": rocm.on_mi3xx(), "on_gfx1x": rocm.on_gfx1x(), "on_gfx942": rocm.on_gfx942(),
        "on_gfx950": rocm.on_gfx950(), "fp8": p.supports_fp8(), "fnuz": p.is_fp8_fnuz(), "mx": p.supports_mx(),
        "custom all-reduce": p.use_custom_allreduce(), "navi": p.is_navi(), "aiter": bool(rocm_aiter_ops.is_enabled()),
        "custom paged attention": rocm.use_rocm_custom_paged_attention(torch.bfloat16, 128, 16, 4, 4096, 0, "auto"),
    }
"""


@pytest.mark.parametrize("arch", ["gfx936", "gfx936:sramecc+:xnack-", "gfx928", "gfx999"])
def test_no_broad_predicate_holds_on_a_dcu_or_an_unknown_gfx9(ask: Ask, arch: str) -> None:
    """An `aiter` package is present and every switch is on: only the arch says no."""
    answer = ask(PREDICATES, amdsmi=arch, env={"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_CUSTOM_PAGED_ATTN": "1"})
    assert set(answer.values()) == {False}, answer


def test_the_same_questions_are_answered_with_yes_on_mi300(ask: Ask) -> None:
    """The control: the questions above can be answered with yes."""
    answer = ask(PREDICATES, amdsmi="gfx942", env={"VLLM_ROCM_USE_AITER": "1"})
    assert {name for name, value in answer.items() if not value} == {"on_gfx1x", "on_gfx950", "mx", "navi"}


def test_a_family_test_of_tomorrow_does_not_open_gfx936(ask: Ask) -> None:
    """Upstream 0.27.1 has `_ON_CDNA = any(a in _GCN_ARCH for a in ["gfx9", ...])`, in code where no patch of ours is."""
    code = 'from vllm.platforms import rocm; exec(\'x = any(a in _GCN_ARCH for a in ["gfx9", "gfx1250"])\', vars(rocm)); result = rocm.x'
    assert ask(code, kfd=ask.sysfs(DCU)) is False
    assert ask(code, amdsmi="gfx942") is True


def test_compiled_code_can_ask_the_platform(ask: Ask) -> None:
    code = """
        import torch
        from vllm.platforms import current_platform as p, rocm

        def forward(x):
            closed = p.supports_fp8() or p.is_fp8_fnuz() or p.supports_mx() or p.use_custom_allreduce() or rocm.on_gfx9()
            return x + (2 if closed else 1) if rocm.on_gfx936() else x

        result = torch.compile(forward, fullgraph=True, backend="eager")(torch.zeros(1)).item()
    """
    assert ask(code, kfd=ask.sysfs(DCU)) == 1


@pytest.mark.parametrize(
    ("variable", "value", "capability"),
    [
        ("VLLM_ROCM_USE_AITER", "1", "AITER"),
        ("VLLM_ROCM_CUSTOM_PAGED_ATTN", "1", "custom paged attention"),
        ("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "INT8", "quick all-reduce"),
        ("VLLM_ROCM_FP8_MFMA_PAGE_ATTN", "1", "fp8"),
    ],
)
def test_a_request_by_environment_is_warned_of_and_without_effect(ask: Ask, variable: str, value: str, capability: str) -> None:
    code = f"""
        from vllm.platforms import current_platform
        current_platform.get_device_capability()
        import vllm.envs as envs
        result = envs.{variable}
    """
    answer = ask.answer(code, kfd=ask.sysfs(DCU), env={variable: value})
    assert answer.value in (False, "NONE"), answer.error
    assert answer.log.count(f"{variable}={value} asks for {capability}, which is shut on gfx936") == 1
    other = ask.answer(code, amdsmi="gfx942", env={variable: value})
    assert other.value in (True, value)
    assert "shut on" not in other.log


CHOOSE = """
    import torch
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum as Backends
    from vllm.v1.attention.selector import AttentionSelectorConfig

    def choose(name=None, **changes):
        given = dict(head_size=128, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=16, use_mla=False, has_sink=False,
                     use_sparse=False)
        try:
            backend = Backends[name] if name else None
            return current_platform.get_attn_backend_cls(backend, AttentionSelectorConfig(**(given | changes))).rsplit(".", 1)[1]
        except ValueError as error:
            return str(error)
"""


def test_attention_is_generic_also_with_every_aiter_switch_on(ask: Ask) -> None:
    env = {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION": "1", "VLLM_ROCM_USE_AITER_MHA": "1"}
    code = CHOOSE + "    result = [choose(), choose(use_mla=True), choose('ROCM_ATTN')]"
    generic = ["TritonAttentionBackend", "TritonMLABackend", "RocmAttentionBackend"]
    assert ask(code, amdsmi="gfx936", env=env) == generic
    assert ask(code, amdsmi="gfx942", env=env) != generic, "the control: on MI300 these switches choose AITER"


@pytest.mark.parametrize("name", ["ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN", "FLASH_ATTN"])
def test_an_attention_backend_asked_for_by_name_is_refused_with_the_reason(ask: Ask, name: str) -> None:
    refusal = ask(CHOOSE + f"    result = choose({name!r})", kfd=ask.sysfs(DCU))
    assert f"Attention backend {name} asks for" in refusal
    assert "shut on gfx936" in refusal


def test_a_model_whose_only_attention_is_aiter_is_refused(ask: Ask) -> None:
    refusal = ask(CHOOSE + "    result = choose(use_mla=True, use_sparse=True)", kfd=ask.sysfs(DCU))
    assert "ROCM_AITER_MLA_SPARSE asks for AITER" in refusal


def test_a_vision_encoder_gets_generic_attention(ask: Ask) -> None:
    code = """
        import torch
        from vllm.platforms import current_platform as p
        from vllm.v1.attention.backends.registry import AttentionBackendEnum as Backends
        result = [p.get_vit_attn_backend(128, torch.bfloat16).name]
        for name in ("TRITON_ATTN", "FLASH_ATTN", "ROCM_AITER_FA"):
            try:
                result.append(p.get_vit_attn_backend(128, torch.bfloat16, Backends[name]).name)
            except ValueError as error:
                result.append("refused" if "shut on gfx936" in str(error) else str(error))
    """
    assert ask(code, kfd=ask.sysfs(DCU)) == ["TORCH_SDPA", "TRITON_ATTN", "refused", "refused"]


CONFIG = """
    import os
    from vllm.config import CacheConfig, ParallelConfig, VllmConfig
"""


def test_custom_all_reduce_is_off_with_two_devices_whoever_asks(ask: Ask) -> None:
    code = (
        CONFIG
        + """
    parallel = ParallelConfig(tensor_parallel_size=2, distributed_executor_backend="mp", disable_custom_all_reduce=False)
    first = parallel.disable_custom_all_reduce
    parallel.disable_custom_all_reduce = False  # what a plugin could do in between
    result = [first, VllmConfig(parallel_config=parallel).parallel_config.disable_custom_all_reduce]
    """
    )
    assert ask(code, kfd=ask.sysfs(DCU, DCU)) == [True, True]
    assert ask(code, amdsmi="gfx942") == [False, False], "the control: it is on by default on MI300"


def test_an_fp8_kv_cache_is_refused(ask: Ask) -> None:
    code = CONFIG + "    VllmConfig(cache_config=CacheConfig(cache_dtype='fp8'))"
    assert "fp8, which is shut on gfx936" in (ask.answer(code, kfd=ask.sysfs(DCU)).error or "")
    assert ask.answer(code, amdsmi="gfx942").error is None


def test_an_fp8_checkpoint_is_refused(ask: Ask) -> None:
    code = """
        from types import SimpleNamespace as Some
        from vllm.platforms import current_platform as p
        weights = {"config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}}}
        model = Some(hf_config=Some(quantization_config={"quant_method": "compressed-tensors", **weights}))
        config = Some(cache_config=None, model_config=model, parallel_config=Some(
            worker_cls="", decode_context_parallel_size=1, prefill_context_parallel_size=1),
            compilation_config=Some(cudagraph_mode=Some(has_full_cudagraphs=lambda: False)))
        p.check_and_update_config(config)
    """
    assert "The checkpoint's quantization asks for fp8" in (ask.answer(code, kfd=ask.sysfs(DCU)).error or "")
    assert ask.answer(code, amdsmi="gfx942").error is None


@pytest.mark.parametrize("method", ["fp8", "ptpc_fp8", "mxfp4"])
def test_quantization_by_name_is_refused_and_the_rest_is_upstreams(ask: Ask, method: str) -> None:
    code = f"from vllm.platforms import current_platform as p; p.verify_quantization({method!r})"
    assert "shut on gfx936" in (ask.answer(code, kfd=ask.sysfs(DCU)).error or "")
    rest = "from vllm.platforms import current_platform as p; p.verify_quantization('awq'); p.verify_quantization('gptq')"
    assert ask.answer(rest, kfd=ask.sysfs(DCU)).error is None
