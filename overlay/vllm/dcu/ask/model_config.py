# SPDX-License-Identifier: Apache-2.0
"""The unquantized Linear shapes of a model, from its configuration alone.  Standard library only.

The shapes are those of vLLM's own layers (merged q/k/v, merged gate/up, tensor-parallel shards), as its models build them. A model
family that is not listed is refused: a guessed shape is worse than none.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm.dcu.records.strict import plain

__all__ = ["FAMILIES", "Linear", "ModelError", "draft_linears", "linears", "model_dtype", "shapes_once"]


class ModelError(ValueError):
    """A configuration whose shapes cannot be stated. The message says why."""


@dataclass(frozen=True)
class Linear:
    """One Linear of a tensor-parallel shard: `weight[M, K]`, and how many calls of it one decode step makes."""

    name: str
    m: int
    k: int
    calls: int
    bias: bool = False


_DTYPES = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}


def model_dtype(config: Mapping[str, Any], asked: str = "auto", weights: str = "") -> str:
    """The dtype that vLLM serves the weights in, by upstream's rule for a model that generates text.

    Args:
        config: the contents of the model's `config.json`.
        asked: `--dtype`. With `auto` the configuration's own counts, but float32, or one that is not served, becomes bfloat16.
        weights: the dtype in the model's files, which counts where the configuration names none.

    Raises:
        ModelError: `asked` is none of upstream's words.
    """
    if asked != "auto":
        if asked not in _DTYPES:
            raise ModelError(f"--dtype {plain(asked, 40)} is none of auto, {', '.join(_DTYPES)}")
        return _DTYPES[asked]
    parts = (config, _text(config), config.get("vision_config"), config.get("encoder_config"))
    named = (part.get(name) for part in parts if isinstance(part, Mapping) for name in ("dtype", "torch_dtype"))
    own = next((plain(str(value), 40).removeprefix("torch.") for value in named if value), weights)
    return "float16" if _DTYPES.get(own) == "float16" else "bfloat16"


def linears(config: Mapping[str, Any], tp: int = 1) -> tuple[Linear, ...]:
    """Every unquantized Linear that one rank of `tp` runs in a decode step, in the model's order.

    Args:
        config: the contents of the model's `config.json`.
        tp: tensor-parallel size.

    Raises:
        ModelError: the family is unknown, the model is quantized, a number is missing, or `tp` does not divide it.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else "(none)"
    family = FAMILIES.get(name)
    if family is None:
        raise ModelError(f"the shapes of {plain(name, 80)} are not known here; known: {', '.join(sorted(FAMILIES))}")
    text = _text(config)
    if any(part.get(name) for part in (config, text) for name in ("quantization_config", "compression_config")):
        raise ModelError("the model is quantized: its Linear layers do not use the unquantized GEMM")
    if tp < 1:
        raise ModelError(f"a tensor-parallel size of {tp} is none")
    return tuple(linear for linear in family(text, tp) if linear.calls)


def draft_linears(config: Mapping[str, Any], tp: int = 1) -> tuple[Linear, ...]:
    """The Linears of the model's own multi-token-prediction layers on one rank of `tp`; `calls` for one guess. () where it has none.

    Raises:
        ModelError: a number is missing, or `tp` does not divide it.
    """
    text = _text(config)
    if "mtp_num_hidden_layers" not in text or config.get("architectures") != ["Qwen3_5ForConditionalGeneration"]:
        return ()
    hidden = _number(text, "hidden_size")
    attention = _attention(text, tp, 1, _flag(text, "attn_output_gate", True), qkv_bias=_flag(text, "qkv_bias"), out_bias=False)
    found = [
        Linear("fc", _split("a hidden size", hidden, tp), 2 * hidden, 1),
        *attention,
        *_mlp(text, tp, 1, bias=False),
        _lm_head(text, tp),
    ]
    return tuple(replace(linear, name=f"draft {linear.name}") for linear in found)


def shapes_once(found: Iterable[Linear]) -> tuple[Linear, ...]:
    """Each shape once, its names joined and its calls added up, in the order of the first."""
    seen: dict[tuple[int, int, bool], Linear] = {}
    for linear in found:
        key = (linear.m, linear.k, linear.bias)
        old = seen.get(key)
        seen[key] = replace(old, name=f"{old.name} + {linear.name}", calls=old.calls + linear.calls) if old else linear
    return tuple(seen.values())


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or not 0 < value < 2**31:
        raise ModelError(f"the configuration has no usable {name!r}: {plain(repr(value), 80)}")
    return value


def _flag(config: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = config.get(name)
    if value is not None and type(value) is not bool:
        raise ModelError(f"the configuration's {name!r} is neither true nor false: {plain(repr(value), 80)}")
    return default if value is None else value


def _split(what: str, value: int, tp: int) -> int:
    if value % tp:
        raise ModelError(f"{what} of {value} does not divide by the tensor-parallel size {tp}")
    return value // tp


def _head_dim(config: Mapping[str, Any]) -> int:
    if config.get("head_dim") is not None:
        return _number(config, "head_dim")
    return _number(config, "hidden_size") // _number(config, "num_attention_heads")


def _attention(config: Mapping[str, Any], tp: int, calls: int, gate: bool, qkv_bias: bool, out_bias: bool) -> list[Linear]:
    hidden, head_dim = _number(config, "hidden_size"), _head_dim(config)
    heads = _split("a number of attention heads", _number(config, "num_attention_heads"), tp)
    kv = _number(config, "num_key_value_heads")
    # Fewer key/value heads than ranks: each rank keeps a copy of one.
    kv = _split("a number of key/value heads", kv, tp) if kv >= tp else 1
    rows = (heads * (2 if gate else 1) + 2 * kv) * head_dim
    name = "attention qkv and gate" if gate else "attention qkv"
    return [
        Linear(name, rows, hidden, calls, qkv_bias),
        Linear("attention out", hidden, heads * head_dim, calls, out_bias),
    ]


def _mlp(config: Mapping[str, Any], tp: int, calls: int, bias: bool) -> list[Linear]:
    hidden = _number(config, "hidden_size")
    inner = _split("an intermediate size", _number(config, "intermediate_size"), tp)
    return [
        Linear("MLP gate/up", 2 * inner, hidden, calls, bias),
        Linear("MLP down", hidden, inner, calls, bias),
    ]


def _lm_head(config: Mapping[str, Any], tp: int) -> Linear:
    vocabulary = -(-_number(config, "vocab_size") // 64) * 64
    return Linear("lm_head", _split("a padded vocabulary", vocabulary, tp), _number(config, "hidden_size"), 1)


def _dense(config: Mapping[str, Any], tp: int, qkv_bias: bool, out_bias: bool, mlp_bias: bool) -> list[Linear]:
    layers = _number(config, "num_hidden_layers")
    attention = _attention(config, tp, layers, gate=False, qkv_bias=qkv_bias, out_bias=out_bias)
    return [*attention, *_mlp(config, tp, layers, mlp_bias), _lm_head(config, tp)]


def _llama(config: Mapping[str, Any], tp: int) -> list[Linear]:
    bias = _flag(config, "attention_bias") or _flag(config, "bias")
    return _dense(config, tp, _flag(config, "qkv_bias", bias), bias, _flag(config, "mlp_bias"))


def _qwen2(config: Mapping[str, Any], tp: int) -> list[Linear]:
    return _dense(config, tp, qkv_bias=True, out_bias=False, mlp_bias=False)


def _qwen3(config: Mapping[str, Any], tp: int) -> list[Linear]:
    return _dense(config, tp, qkv_bias=_flag(config, "attention_bias"), out_bias=False, mlp_bias=False)


def _qwen3_5(config: Mapping[str, Any], tp: int) -> list[Linear]:
    layers = _number(config, "num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        interval = _number({"full_attention_interval": 4, **config}, "full_attention_interval")
        types = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
    if not isinstance(types, list):
        raise ModelError(f"the configuration's 'layer_types' is no list: {plain(repr(types), 80)}")
    full = types.count("full_attention")
    delta = types.count("linear_attention")
    if full + delta != layers:
        raise ModelError(f"layer_types names {full + delta} known layers, the model has {layers}")
    gate = _flag(config, "attn_output_gate", True)
    attention = _attention(config, tp, full, gate, qkv_bias=_flag(config, "qkv_bias"), out_bias=False)
    return [*attention, *_delta_net(config, tp, delta), *_mlp(config, tp, layers, bias=False), _lm_head(config, tp)]


def _delta_net(config: Mapping[str, Any], tp: int, calls: int) -> list[Linear]:
    hidden = _number(config, "hidden_size")
    key_heads = _split("a number of key heads", _number(config, "linear_num_key_heads"), tp)
    value_heads = _split("a number of value heads", _number(config, "linear_num_value_heads"), tp)
    keys = key_heads * _number(config, "linear_key_head_dim")
    values = value_heads * _number(config, "linear_value_head_dim")
    return [
        Linear("Gated DeltaNet q, k, v, z", 2 * keys + 2 * values, hidden, calls),
        Linear("Gated DeltaNet b, a", 2 * value_heads, hidden, calls),
        Linear("Gated DeltaNet out", hidden, values, calls),
    ]


FAMILIES: dict[str, Callable[[Mapping[str, Any], int], list[Linear]]] = {
    "LlamaForCausalLM": _llama,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3_5ForConditionalGeneration": _qwen3_5,
}
