# SPDX-License-Identifier: Apache-2.0
"""Capture of every distinct call signature of a real model run, for `verify`'s V3.

Off, and without cost, unless VLLM_DCU_SIGNATURES names a folder: then the gate's function is wrapped by one that writes a line of JSON for
each signature the first time it comes up: what the tensors were, whether the native kernel took the call, and, for a call that it took,
how far the result is from float64 on these very tensors. It costs a look-up a call, and is no part of a served model.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.dcu.dispatch.aside import say
from vllm.dcu.dispatch.rules import Call
from vllm.dcu.env import signatures_dir
from vllm.dcu.records.strict import StrictError, parse_json, read_bytes
from vllm.dcu.records.typed import load

__all__ = ["Seen", "read_signatures", "recorded"]

Gemm = Callable[..., Any]
_MOST_BYTES = 64 << 20

logger = logging.getLogger("vllm.dcu")


@dataclass(frozen=True)
class Seen:
    """One distinct signature: the call as `rules` describes it, and what happened.

    `took`: the native kernel ran. `error`: norm-wise against float64, where it was computed. `fault`: why that result is refused.
    """

    call: Call
    took: bool
    error: float | None
    fault: str


def recorded(gemm: Gemm, hits: Callable[[], int], environ: Mapping[str, str] | None = None) -> Gemm:
    """`gemm` itself, or a function that also records signatures where VLLM_DCU_SIGNATURES names a folder.

    Args:
        hits: how many calls the native kernel has taken so far.
    """
    folder = signatures_dir(environ)
    if folder is None:
        return gemm
    known: set[Call] = set()

    def recording(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        call = _describe(x, weight, bias)
        if call in known:
            return gemm(x, weight, bias)
        known.add(call)
        before = hits()
        out = gemm(x, weight, bias)
        took = hits() > before
        try:
            error, fault = _against_float64(x, weight, out) if took else (None, "")
            _append(folder, Seen(call, took, error, fault))
        except Exception as problem:  # `verify` misses the line; the model misses nothing
            say(logger.warning, "DCU signatures: a call could not be recorded: %s", problem)
        return out

    return recording


def _describe(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Call:
    k = int(weight.shape[-1])
    return Call(
        dtype=str(weight.dtype).removeprefix("torch."),
        n=x.numel() // k if k else 0,
        m=int(weight.shape[0]),
        k=k,
        bias=bias is not None,
        x_dtype=str(x.dtype).removeprefix("torch."),
        x_k=int(x.shape[-1]),
        strided=x.layout is torch.strided and weight.layout is torch.strided,
        x_contiguous=x.is_contiguous(),
        weight_contiguous=weight.is_contiguous(),
        x_offset=x.data_ptr() % 16,
        weight_offset=weight.data_ptr() % 16,
        device_type=x.device.type if x.device == weight.device else "mixed",
    )


def _against_float64(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> tuple[float | None, str]:
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return None, "seen during a capture, where nothing may be copied"
    from vllm.dcu.evidence.compare import check, float64

    exact, size = float64(weight, x)
    # The tolerance for zero-centred data does not apply: a model's activations need not be.
    found = check(out.reshape(exact.shape), exact, size, str(weight.dtype).removeprefix("torch."), weight.shape[1], zero_centred=False)
    return found.error if math.isfinite(found.error) else None, found.fault


def _append(folder: Path, seen: Seen) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"signatures-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({**asdict(seen), "call": asdict(seen.call)}) + "\n")


def read_signatures(folder: Path) -> tuple[Seen, ...]:
    """Every signature that the processes of a run recorded, each once.

    Raises:
        StrictError: a file is damaged.
    """
    found: dict[Seen, None] = {}
    for path in sorted(folder.glob("signatures-*.jsonl")):
        try:
            for line in read_bytes(path, _MOST_BYTES).splitlines():
                found[load(Seen, parse_json(line))] = None
        except StrictError as error:
            raise error.within(path) from None
    return tuple(found)
