"""Every arch-dependent answer of `vllm/platforms/rocm.py` and of what asks it, for the device this process believes in.

Run by the zygote as a scenario; leaves `result`: row name -> cell. Rows that exist in one tree only are simply absent in the
other. The predicates and the argument-less methods are found by looking, so that a new one of upstream's is a new row.
"""

import hashlib
import inspect
import itertools
import os
from typing import Any

import torch

Rows = dict[str, str]

# Not asked: they act on a device, or their answer is no decision.
_SKIP = {
    "empty_cache", "get_current_memory_usage", "get_pass_manager_cls", "import_kernels", "seed_everything", "set_device",
    "synchronize", "manual_seed_all", "mem_get_info", "pre_register_and_update", "get_cpu_architecture", "make_synced_weight_loader",
    "get_global_graph_pool", "graph_capture", "inference_mode", "set_additional_forward_context", "get_punica_wrapper",
    "get_device_total_memory", "device_count", "is_pin_memory_available", "import_ir_kernels", "is_sleep_mode_available", "get_default_ir_op_priority",
}  # fmt: skip


def cell(call: Any, *args: Any, **kwargs: Any) -> str:
    """The answer in words that compare: a name, a value, or the kind of refusal."""
    try:
        value = call(*args, **kwargs)
    except Exception as error:
        return f"raises {type(error).__name__}"
    if isinstance(value, str) and "." in value and " " not in value:
        return value.rsplit(".", 1)[-1]
    if hasattr(value, "as_version_str"):
        return f"({value.major}, {value.minor})"
    if hasattr(value, "name"):
        return str(value.name)
    if isinstance(value, (list, tuple)):
        return ", ".join(getattr(v, "name", str(v)) for v in value) or "none"
    return str(value)


def _argless(function: Any) -> bool:
    return all(
        p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in inspect.signature(function).parameters.values()
    )


def predicates(rocm: Any) -> Rows:
    """`_ON_*` constants and the public functions without arguments of rocm.py."""
    rows = {f"rocm.{name}": cell(lambda v=value: v) for name, value in vars(rocm).items() if name.startswith("_ON_")}
    for name, function in vars(rocm).items():
        if inspect.isfunction(function) and function.__module__ == rocm.__name__ and not name.startswith("_") and _argless(function):
            rows[f"rocm.{name}()"] = cell(function)
    return rows


def methods(platform: Any) -> Rows:
    """The platform's methods without required arguments."""
    rows = {}
    for name in sorted(dir(type(platform))):
        method = getattr(platform, name)
        if not name.startswith("_") and name not in _SKIP and callable(method) and not isinstance(method, type) and _argless(method):
            rows[f"platform.{name}()"] = cell(method)
    return rows


def paged_attention(rocm: Any) -> Rows:
    """How many of a grid of inputs custom paged attention is opened for, and a digest of which."""
    grid = itertools.product(
        (torch.half, torch.bfloat16), (64, 128, 256), (16, 32), (1, 4, 16), (4096, 1 << 18), (0, (-1, -1)), ("auto", "fp8")
    )
    answers = [bool(rocm.use_rocm_custom_paged_attention(q, h, b, g, s, w, k)) for q, h, b, g, s, w, k in grid]
    digest = hashlib.sha256(bytes(answers)).hexdigest()[:6]
    return {"rocm.use_rocm_custom_paged_attention(grid)": f"{sum(answers)} of {len(answers)} ({digest})"}


def attention(platform: Any) -> Rows:
    """Chosen attention backend: by default, for MLA, and for each backend asked for by name."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum as Backends
    from vllm.v1.attention.selector import AttentionSelectorConfig

    def config(**changes: Any) -> Any:
        given = {
            "head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16, "use_mla": False,
            "has_sink": False, "use_sparse": False,
        }  # fmt: skip
        return AttentionSelectorConfig(**(given | changes))

    def choose(name: str | None, **changes: Any) -> str:
        return cell(platform.get_attn_backend_cls, name and Backends[name], config(**changes))

    rows = {"attention": choose(None), "attention, MLA": choose(None, use_mla=True)}
    rows["attention, sparse MLA"] = choose(None, use_mla=True, use_sparse=True)
    for name in ("TRITON_ATTN", "ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN", "FLEX_ATTENTION"):
        rows[f"attention, asked for {name}"] = choose(name)
    for name in ("TRITON_MLA", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA"):
        rows[f"attention, MLA, asked for {name}"] = choose(name, use_mla=True)
    rows["attention of a vision encoder"] = cell(platform.get_vit_attn_backend, 128, torch.bfloat16)
    for name in ("FLASH_ATTN", "ROCM_AITER_FA", "TRITON_ATTN", "TORCH_SDPA"):
        rows[f"attention of a vision encoder, asked for {name}"] = cell(platform.get_vit_attn_backend, 128, torch.bfloat16, Backends[name])
    return rows


def aiter() -> Rows:
    """Every switch of rocm_aiter_ops."""
    from vllm._aiter_ops import is_aiter_found_and_supported, rocm_aiter_ops

    rows = {"is_aiter_found_and_supported()": cell(is_aiter_found_and_supported)}
    for name in sorted(n for n in dir(rocm_aiter_ops) if n.startswith("is_") and n.endswith("_enabled")):
        rows[f"rocm_aiter_ops.{name}()"] = cell(lambda n=name: bool(getattr(rocm_aiter_ops, n)()))
    return rows


def quantization(platform: Any) -> Rows:
    """Whether each method may be named."""
    names = ("awq", "gptq", "compressed-tensors", "gguf", "fp8", "fbgemm_fp8", "ptpc_fp8", "mxfp4", "petit_nvfp4", "quark")
    return {f"quantization {n}": cell(lambda n=n: platform.verify_quantization(n) or "accepted") for n in names}


def others() -> Rows:
    """Places outside the platform class that ask for an arch."""
    from vllm.distributed.device_communicators.quick_all_reduce import QuickAllReduce
    from vllm.model_executor.kernels.linear.scaled_mm import pytorch, rocm
    from vllm.model_executor.layers.quantization.mxfp4 import get_mxfp4_backend

    rows = {"QuickAllReduce._rocm_arch_available()": cell(QuickAllReduce._rocm_arch_available, None)}
    for module in (rocm, pytorch):
        for name, kind in sorted(vars(module).items()):
            if inspect.isclass(kind) and kind.__module__ == module.__name__ and hasattr(kind, "is_supported"):
                rows[f"{name}.is_supported()"] = cell(lambda k=kind: k.is_supported()[0])
    rows["get_mxfp4_backend()"] = cell(get_mxfp4_backend, False)
    return rows


def gemm() -> Rows:
    """Which kernel the unquantized GEMM op takes, on meta tensors, with the native ops replaced by their names."""
    import vllm._custom_ops as ops
    from vllm.model_executor.layers import utils

    class Taken(Exception):
        pass

    def named(name: str) -> Any:
        def stub(*_args: Any, **_kwargs: Any) -> None:
            raise Taken(name)

        return stub

    for name in [n for n in dir(ops) if n.startswith(("wvSplitK", "LLMM"))]:
        setattr(ops, name, named(name))

    def taken(n: int, m: int, k: int, dtype: torch.dtype = torch.bfloat16) -> str:
        x, w = (torch.empty(rows, k, dtype=dtype, device="meta") for rows in (n, m))
        try:
            utils.rocm_unquantized_gemm_impl(x, w, None)
        except Taken as name:
            return str(name)
        return "generic (F.linear)"

    shapes = [(1, 4096, 4096), (1, 4, 4096), (4, 4096, 4096), (5, 4096, 4096), (1, 34816, 5120), (16, 128, 4096), (1, 4096, 16384)]
    return {f"unquantized GEMM, N={n} M={m} K={k}": cell(taken, n, m, k) for n, m, k in shapes}


def switched(platform: Any, rocm: Any) -> Rows:
    """What the environment can open, with every switch on."""
    import vllm.envs as envs

    rows = paged_attention(rocm) | aiter()
    rows |= {row: value for row, value in attention(platform).items() if "asked for" not in row}
    for name in ("VLLM_ROCM_FP8_MFMA_PAGE_ATTN", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"):
        rows[f"envs.{name}"] = cell(getattr, envs, name)
    return {f"{row} (switches on)": value for row, value in rows.items()}


def switch_off(rocm: Any) -> None:
    """Back to upstream's defaults; what the platform itself has turned off stays as it is."""
    from vllm._aiter_ops import rocm_aiter_ops

    for name in [n for n, value in os.environ.items() if n.startswith("VLLM_ROCM_") and value in ("1", "FP")]:
        del os.environ[name]
    rocm_aiter_ops.refresh_env_variables()
    rocm.use_rocm_custom_paged_attention.cache_clear()


def collect() -> Rows:
    """All rows for the device that amdsmi (or KFD) names to this process."""
    from vllm.platforms import current_platform, rocm

    rows = {"platform class": type(current_platform).__qualname__, "rocm._GCN_ARCH": str(rocm._GCN_ARCH)}
    with_switches = switched(current_platform, rocm)
    switch_off(rocm)
    rows |= predicates(rocm) | methods(current_platform) | paged_attention(rocm)
    rows |= attention(current_platform) | aiter() | quantization(current_platform) | others() | gemm()
    return rows | with_switches


result = collect()
