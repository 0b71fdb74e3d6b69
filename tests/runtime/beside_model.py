"""Runs in a scenario's process: a stand-in device and operator, and a model that is loaded as vLLM loads one. Imported by children too."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

M, K = 34816, 5120
ID = "llmm1-gfx936-bf16-n1-m34816-k5120"
kept: list[Any] = []
native: list[int] = []


def device() -> None:
    """The operator, its code object and the version of HIP: what only a DCU has."""
    torch.set_num_threads(1)
    torch.version.hip = "6.2.41133"
    library = torch.library.Library("_rocm_C", "DEF")
    library.define("LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor")

    def llmm1(a: torch.Tensor, b: torch.Tensor, rows_per_block: int) -> torch.Tensor:
        native.append(rows_per_block)
        return torch.nn.functional.linear(b, a)

    library.impl("LLMM1", llmm1, "CPU")
    kept.append(library)
    import vllm.dcu.dispatch.context as context

    context._extension_targets = lambda *_: frozenset({"gfx936"})  # type: ignore[attr-defined]


class Layer(torch.nn.Module):
    """A Linear as vLLM's are, without their machinery for several devices."""

    def __init__(self, m: int = M, k: int = K, transposed: bool = False, **sizes: int) -> None:
        from vllm.model_executor.layers import linear

        super().__init__()
        shape = (k, m) if transposed else (m, k)
        self.weight = torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False)
        self.input_size_per_partition = k
        self.quant_method = linear.UnquantizedLinearMethod()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.quant_method.apply(self, x)
        return out


def loaded(*layers: Any) -> Any:
    """The layers after vLLM's own function for loaded weights."""
    from vllm.model_executor.model_loader import utils

    class Config:
        dtype = torch.bfloat16
        quantization = None

    model = torch.nn.ModuleList(layers)
    utils.process_weights_after_loading(model, Config(), torch.device("cpu"))
    return model


def asked(*rows: int) -> dict[str, Any]:
    """Load a model of one mission layer, ask it once for each number of rows, and say what was seen."""
    device()
    from vllm.dcu import gate
    from vllm.model_executor.layers import linear

    (layer,) = loaded(Layer())
    for n in rows:
        layer(torch.zeros(n, K, dtype=torch.bfloat16))
    active = gate.active()
    counts: dict[str, int] = {}
    for count in active.tally.snapshot() if active else ():
        counts[count.key.reason or "hit"] = counts.get(count.key.reason or "hit", 0) + count.value
    return {
        "native": len(native),
        "counts": counts,
        "standing": [r.value for r in active.standing[ID]] if active else None,
        "the plugin's": getattr(linear.UnquantizedLinearMethod, "calls", 0),
        "beside": active.context.beside if active else None,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asked(*map(int, sys.argv[1:]))) + "\n")
    os._exit(0) if os.environ.get("LEAVE_AT_ONCE") else None
