# SPDX-License-Identifier: Apache-2.0
"""Whether a configuration, as upstream settled it, opens what is shut on a DCU.  Standard library only.

Asked of what upstream made of every checkpoint, file, flag, variable and override, not of what a user wrote: the objects that the layers
will be built from. `platform.py` asks when a configuration is made, again in each worker before the device is set up, and in each
attention layer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from vllm.dcu.device.shut import checkpoint_refusal, kv_cache_refusal, kv_scheme_refusal, quantization_refusal

__all__ = ["models", "plain", "refusal"]

_KEYS = ("quantization_config", "compression_config")
_DEPTH = 12


def refusal(config: Any) -> str | None:
    """Why a server of `config` (a VllmConfig) may not start; None where nothing that is shut is opened by it."""
    cache = getattr(config, "cache_config", None)
    found = kv_cache_refusal(str(cache.cache_dtype)) if cache is not None else None
    found = found or quantization_object_refusal(getattr(config, "quant_config", None))
    for model in models(config):
        found = found or quantization_refusal(str(getattr(model, "quantization", None)))
        for description in _descriptions(model):
            found = found or checkpoint_refusal(description) or kv_scheme_refusal(description.get("kv_cache_scheme"))
    return found


def quantization_object_refusal(quantization: Any) -> str | None:
    """The same of a QuantizationConfig, the object that chooses each layer's method; None for None."""
    if quantization is None:
        return None
    return checkpoint_refusal(plain(quantization)) or kv_scheme_refusal(getattr(quantization, "kv_cache_scheme", None))


def models(config: Any) -> Iterator[Any]:
    """Every model's configuration in `config`: the served one and those that guess for it."""
    speculative = getattr(config, "speculative_config", None)
    for owner, name in ((config, "model_config"), (speculative, "draft_model_config"), (speculative, "target_model_config")):
        model = getattr(owner, name, None)
        if model is not None:
            yield model


def _descriptions(model: Any) -> Iterator[Mapping[str, Any]]:
    """What a model's checkpoint and overrides say about its quantization, wherever they say it: upstream's normalised answer first."""
    normalised = getattr(getattr(model, "model_arch_config", None), "quantization_config", None)
    if isinstance(normalised, Mapping):
        yield normalised
    yield from _found(plain(getattr(model, "hf_config", None)))
    overrides = getattr(model, "hf_overrides", None)
    if isinstance(overrides, Mapping):
        yield from _found(plain(overrides))


def _found(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key in _KEYS and isinstance(value, Mapping):
                yield value
            yield from _found(value)
    elif isinstance(node, list):
        for value in node:
            yield from _found(value)


def plain(node: Any, depth: int = _DEPTH) -> Any:
    """`node` as mappings, lists, numbers and texts. An object becomes the mapping of its attributes, with the name of its class as `_type`."""
    if node is None or isinstance(node, bool | int | float):
        return node
    if isinstance(node, Enum):
        return plain(node.value, depth)
    if isinstance(node, str):
        return str(node)
    if not depth:
        return None
    if isinstance(node, Mapping):
        return {str(key): plain(value, depth - 1) for key, value in node.items()}
    if isinstance(node, list | tuple | set | frozenset):
        return [plain(value, depth - 1) for value in node]
    if type(node).__module__ == "torch" or isinstance(node, type):
        return str(node).removeprefix("torch.")
    attributes = {f.name: getattr(node, f.name, None) for f in fields(node)} if is_dataclass(node) else dict(getattr(node, "__dict__", {}))
    attributes = {key: value for key, value in attributes.items() if not callable(value) or isinstance(value, type)}
    return {"_type": type(node).__name__, **{str(key): plain(value, depth - 1) for key, value in attributes.items()}}
