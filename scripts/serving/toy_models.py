"""Small model folders made on the spot: nothing is downloaded, and what is in them is known.

The tokenizer is a byte-level BPE without merges: one token a byte, so that a prompt's length in tokens can be read off its
text ("a" is one token). Weights are written with a fixed seed.

Run `<serving python> -m scripts.serving.toy_models KIND FOLDER`: the weights need its torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KINDS", "Kind", "config", "main", "tokenizer", "write_folder"]

SEED = 936
_END = "<|end|>"


@dataclass(frozen=True)
class Kind:
    """A model folder.

    Attributes:
        layers: decoder layers.
        hidden, intermediate: the MLP's gate/up matrix is (2 * intermediate, hidden).
        heads, kv_heads, head_dim: attention.
        family: `qwen3`, or `qwen3_5` with full attention only (Gated DeltaNet does not run on a CPU).
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    family: str = "qwen3"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What `vllm serve` needs for it.

        Upstream 0.18.1 expects DeltaNet layers of a Qwen3.5 as soon as prefix caching is on, and asserts without them.
        """
        return ("--language-model-only", "--no-enable-prefix-caching") if self.family == "qwen3_5" else ()

    @property
    def compiled_arguments(self) -> tuple[str, ...]:
        """What torch.compile needs for it on a CPU.

        PyTorch 2.10 writes C++ that does not compile for the bounds check of Qwen3.5's three-part rotary positions.
        """
        without = {"inductor_compile_config": {"assert_indirect_indexing": False}}
        return ("--compilation-config", json.dumps(without)) if self.family == "qwen3_5" else ()


KINDS: dict[str, Kind] = {
    # Small enough for a first service; its shapes are nobody's.
    "tiny": Kind(layers=2, hidden=256, intermediate=512, heads=4, kv_heads=2, head_dim=64),
    # Qwen3.5-27B's and Qwen3-14B's gate/up, (34816, 5120), exactly.
    "mission-1": Kind(layers=1, hidden=5120, intermediate=17408, heads=40, kv_heads=8),
    "mission-2": Kind(layers=2, hidden=5120, intermediate=17408, heads=40, kv_heads=8),
    # Qwen3.5-27B's attention as well: 24 heads of 256 with an output gate.
    "mission-3.5": Kind(layers=1, hidden=5120, intermediate=17408, heads=24, kv_heads=4, head_dim=256, family="qwen3_5"),
}


def _byte_names() -> list[str]:
    """A printable character for each byte, as every byte-level BPE names them: itself, or one from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + rest.index(byte)) for byte in range(256)]


def tokenizer() -> dict[str, object]:
    """tokenizer.json: token id = byte, and 256 ends a text."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"id": 256, "content": _END, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    bpe = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"), None)
    vocabulary = {name: byte for byte, name in enumerate(_byte_names())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**end, **flags}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", **bpe, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []},
    }


def config(kind: Kind) -> dict[str, object]:
    """config.json of a Qwen3 or Qwen3.5 with this kind's shapes."""
    text: dict[str, object] = {
        "vocab_size": 512,
        "hidden_size": kind.hidden,
        "intermediate_size": kind.intermediate,
        "num_hidden_layers": kind.layers,
        "num_attention_heads": kind.heads,
        "num_key_value_heads": kind.kv_heads,
        "head_dim": kind.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": 256,
        "bos_token_id": None,
    }
    if kind.family == "qwen3":
        rope: dict[str, object] = {"rope_theta": 1000000.0, "torch_dtype": "bfloat16"}
        return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **text, **rope}
    rope = {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    }
    layers = {"layer_types": ["full_attention"] * kind.layers, "full_attention_interval": 1}
    vision = {"model_type": "qwen3_5", "depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            **text,
            **layers,
            "model_type": "qwen3_5_text",
            "attn_output_gate": True,
            "dtype": "bfloat16",
            "rope_parameters": rope,
        },
        "vision_config": {**vision, "out_hidden_size": kind.hidden, "num_position_embeddings": 64},
        "image_token_id": 300,
        "video_token_id": 301,
        "vision_start_token_id": 302,
        "vision_end_token_id": 303,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def shapes(kind: Kind) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight, as the family's checkpoints name them."""
    model = "model" if kind.family == "qwen3" else "model.language_model"
    gated = 1 if kind.family == "qwen3" else 2
    found: dict[str, tuple[int, ...]] = {f"{model}.embed_tokens.weight": (512, kind.hidden)}
    for number in range(kind.layers):
        layer = f"{model}.layers.{number}"
        attention = {
            "q_proj": (kind.heads * kind.head_dim * gated, kind.hidden),
            "k_proj": (kind.kv_heads * kind.head_dim, kind.hidden),
            "v_proj": (kind.kv_heads * kind.head_dim, kind.hidden),
            "o_proj": (kind.hidden, kind.heads * kind.head_dim),
            "q_norm": (kind.head_dim,),
            "k_norm": (kind.head_dim,),
        }
        mlp = {
            "gate_proj": (kind.intermediate, kind.hidden),
            "up_proj": (kind.intermediate, kind.hidden),
            "down_proj": (kind.hidden, kind.intermediate),
        }
        found |= {f"{layer}.self_attn.{name}.weight": shape for name, shape in attention.items()}
        found |= {f"{layer}.mlp.{name}.weight": shape for name, shape in mlp.items()}
        found |= {f"{layer}.{name}.weight": (kind.hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
    return found | {f"{model}.norm.weight": (kind.hidden,), "lm_head.weight": (512, kind.hidden)}


def write_weights(kind: Kind, path: Path) -> None:
    """Write a bf16 checkpoint: norms are one, matrices are normal with variance 1/fan-in, so that logits spread.

    vLLM's dummy loader draws from +-0.001, norms included: all logits come out alike there, and a wrong product in the
    middle would not change a single token.
    """
    import torch  # type: ignore[import-not-found,unused-ignore]  # only the serving environment has it
    from safetensors.torch import save_file  # type: ignore[import-not-found,unused-ignore]

    generator = torch.Generator().manual_seed(SEED)
    tensors = {}
    for name, shape in shapes(kind).items():
        if len(shape) == 1:
            # Qwen3.5 stores a norm's weight less one.
            tensors[name] = torch.full(shape, 1.0 if kind.family == "qwen3" else 0.0, dtype=torch.bfloat16)
        else:
            # Embeddings are looked up, not summed over: unit variance there.
            scale = 1.0 if "embed" in name else shape[1] ** -0.5
            tensors[name] = (torch.randn(shape, generator=generator) * scale).to(torch.bfloat16)
    save_file(tensors, path)


def write_folder(kind: Kind, folder: Path) -> None:
    """Write all but the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    texts: Mapping[str, object] = {
        "config.json": config(kind),
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": _END,
            "model_max_length": 2048,
        },
        "generation_config.json": {"eos_token_id": 256},
    }
    for name, value in texts.items():
        (folder / name).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Write the model folder KIND to FOLDER, weights included."""
    parser = argparse.ArgumentParser(prog="models", description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    kind = KINDS[args.kind]
    write_folder(kind, args.folder)
    write_weights(kind, args.folder / "model.safetensors")
    print(args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
