# SPDX-License-Identifier: Apache-2.0
"""What stays shut on a DCU, why, and what happens to a user who asks for it.  Standard library only.

Most of it is shut because gfx936 is in none of upstream's arch sets. This module covers what a user
can open past those sets: environment variables, attention backends by name, quantization by name.
"""

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

__all__ = [
    "ATTENTION_OPEN",
    "CAPABILITIES",
    "VIT_ATTENTION_OPEN",
    "attention_refusal",
    "checkpoint_refusal",
    "kv_cache_refusal",
    "kv_scheme_refusal",
    "layer_refusal",
    "left_on",
    "quantization_refusal",
    "withdraw",
]

CAPABILITIES: dict[str, str] = {
    "AITER": "its kernels are built for MI300-class matrix instructions, which a DCU does not have",
    "custom paged attention": "its kernel uses MFMA instructions; on other targets it is a stub that aborts",
    "quick all-reduce": "custom all-reduce kernels have hard-locked gfx936 hosts over PCIe with TP=2",
    "fp8": "no fp8 path has been verified on this device",
    "mx": "no mxfp4 or nvfp4 path has been verified on this device",
    "this attention backend": "it assumes instructions that nobody has verified on this device",
}
"""Each capability that can be asked for, with the reason why it is shut on gfx936."""

ATTENTION_OPEN = frozenset({"TRITON_ATTN", "ROCM_ATTN", "TRITON_MLA", "FLEX_ATTENTION", "NO_ATTENTION", "CUSTOM"})
"""Attention backends that may run: generic Triton or PyTorch code, or what the user registered.

ROCM_ATTN is Triton as well while custom paged attention is shut.
"""

VIT_ATTENTION_OPEN = frozenset({"TRITON_ATTN", "TORCH_SDPA"})
"""The same for the attention of vision encoders."""

_QUANTIZATION_SHUT = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "ptpc_fp8": "fp8",
    "modelopt": "fp8",
    "modelopt_mixed": "fp8",
    "mxfp4": "mx",
    "petit_nvfp4": "mx",
    "modelopt_fp4": "mx",
    "modelopt_mxfp8": "mx",
    "fp_quant": "mx",
}

_FORMAT = re.compile(r"(?i)(?:torch\.)?(?:(fp8|float8|ptpc_fp8|fbgemm_fp8)|mxfp|mx_|mx\d|nvfp|fp4|fp6|fpx|petit_nvfp4|float4)")
_FORMAT_KEYS = frozenset(
    {"quant_method", "quant_algo", "_data", "kv_cache_quant_algo", "quant_type", "quant_format", "dtype", "format", "weight_dtype", "_type"}
    | {"activation_dtype", "forward_dtype", "data_type", "act_data_type"}
)

_TRUE = frozenset({"1", "true"})
_AITER_PREFIX = "VLLM_ROCM_USE_AITER"


@dataclass(frozen=True)
class _Switch:
    variable: str
    capability: str
    off: str


_SWITCHES = (
    _Switch("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "AITER", "0"),
    _Switch("VLLM_ROCM_CUSTOM_PAGED_ATTN", "custom paged attention", "0"),
    _Switch("VLLM_ROCM_FP8_MFMA_PAGE_ATTN", "fp8", "0"),
    _Switch("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "quick all-reduce", "NONE"),
)


def _asks(switch: _Switch, value: str) -> bool:
    """Upstream's reading of the variable, which differs: a choice other than its `off`, one of its true values, or any number but 0."""
    if switch.off == "NONE":
        return value not in ("", "NONE")
    try:
        return bool(int(value))
    except ValueError:
        return value.strip().lower() in _TRUE


def _sentence(subject: str, capability: str, outcome: str) -> str:
    return f"{subject} asks for {capability}, which is shut on gfx936: {CAPABILITIES[capability]}. {outcome}"


def withdraw(environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """Turn every request in `environ` off; returns one sentence for each.

    Child processes inherit the corrected value. VLLM_ROCM_CUSTOM_PAGED_ATTN is on by default
    upstream, hence it is turned off here without a request as well, then without a sentence.
    """
    aiter = tuple(_Switch(name, "AITER", "0") for name in sorted(environ) if name.startswith(_AITER_PREFIX))
    said = []
    for switch in aiter + _SWITCHES:
        value = environ.get(switch.variable)
        if value is not None and _asks(switch, value):
            environ[switch.variable] = switch.off
            outcome = f"It is treated as {switch.off}; unset it to silence this."
            said.append(_sentence(f"{switch.variable}={value}", switch.capability, outcome))
    environ.setdefault("VLLM_ROCM_CUSTOM_PAGED_ATTN", "0")
    return tuple(said)


_ASKED = {"custom all-reduce": "use_custom_allreduce", "fp8": "supports_fp8", "mx": "supports_mx"}


def left_on(platform: object) -> tuple[str, ...]:
    """What another package's platform leaves on and ours keeps shut, each with the reason."""
    found = []
    for capability, question in _ASKED.items():
        try:
            if getattr(platform, question)():
                found.append(f"{capability} ({CAPABILITIES.get(capability, CAPABILITIES['quick all-reduce'])})")
        except Exception:  # noqa: S112  (a platform that cannot answer leaves nothing on that we could name)
            continue
    return tuple(found)


def attention_refusal(backend: str, vit: bool = False) -> str | None:
    """Why attention backend `backend` (its enum name) may not run; None where it may."""
    allowed = VIT_ATTENTION_OPEN if vit else ATTENTION_OPEN
    if backend in allowed:
        return None
    capability = "AITER" if "AITER" in backend else "this attention backend"
    choices = ", ".join(sorted(allowed))
    return _sentence(f"Attention backend {backend}", capability, f"Choose one of {choices}, or leave the choice to vLLM.")


def quantization_refusal(method: str) -> str | None:
    """Why quantization `method` may not run; None where upstream's own checks decide."""
    capability = _QUANTIZATION_SHUT.get(method)
    if capability is None:
        return None
    return _sentence(f"Quantization {method}", capability, "Use unquantized bf16 or fp16 weights.")


def kv_cache_refusal(dtype: str) -> str | None:
    """Why a KV cache of `dtype` (`--kv-cache-dtype`) may not be used; None where it may."""
    return _kv_cache(f"--kv-cache-dtype {dtype}", dtype, "Use auto.")


def layer_refusal(dtype: str) -> str | None:
    """Why an attention layer may not keep its KV cache in `dtype`, whoever chose that; None where it may."""
    return _kv_cache(
        f"An attention layer with a KV cache of {dtype}", dtype, "The checkpoint or an override of it chose that; use another."
    )


def _kv_cache(subject: str, dtype: str, outcome: str) -> str | None:
    found = _FORMAT.match(dtype)
    return _sentence(subject, "fp8" if found.group(1) else "mx", outcome) if found else None


def kv_scheme_refusal(scheme: object) -> str | None:
    """Why a checkpoint with this `kv_cache_scheme` may not run: whatever it says, upstream's attention layer makes an fp8 cache of it."""
    if scheme is None:
        return None
    outcome = "Take kv_cache_scheme out of the quantization that its config.json describes: the weights stay as they are."
    return _sentence("The checkpoint's kv_cache_scheme", "fp8", outcome)


def checkpoint_refusal(config: object) -> str | None:
    """Why a checkpoint with this `quantization_config` may not run; None where upstream decides.

    Looks for the format itself, since compressed-tensors, quark and torchao carry fp8 and mx
    under names of their own: `{"type": "float", "num_bits": 8}`, `{"dtype": "fp8_e4m3"}`.
    """
    capability = _shut_format(config)
    if capability is None:
        return None
    return _sentence("The checkpoint's quantization", capability, "Use unquantized bf16 or fp16 weights.")


def _shut_format(node: object) -> str | None:
    if isinstance(node, Mapping):
        if str(node.get("type")).lower() == "float" and (bits := str(node.get("num_bits")).removesuffix(".0").strip()) in ("4", "8"):
            return "fp8" if bits == "8" else "mx"
        named = (_FORMAT.match(value) for key, value in node.items() if key in _FORMAT_KEYS and isinstance(value, str))
        hit = next((match for match in named if match), None)
        if hit:
            return "fp8" if hit.group(1) else "mx"
        return next((found for key, v in node.items() if key != "kv_cache_scheme" and (found := _shut_format(v))), None)
    if isinstance(node, list | tuple):
        return next((found for value in node if (found := _shut_format(value))), None)
    return None
