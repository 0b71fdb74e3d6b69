"""Upstream's LLMM1 on the host: `load(tree)` gives a callable that runs the real source at wave 64.

A 34816 x 5120 call costs about 0.9 s of CPU time built with clang++ and 1.5 to 1.9 s with g++, spread over all cores.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.rehearsal.wave import build, region

__all__ = ["HostFault", "HostRefusal", "Raw", "load", "load_raw"]

# (a, x, out, M, K, x_rows, dtype, rows_per_block): addresses and sizes. dtype 0 is fp16, 1 is bf16, 2 is fp32.
Raw = Callable[[int, int, int, int, int, int, int, int], None]


class HostRefusal(RuntimeError):
    """Upstream's own TORCH_CHECK refused the call."""


class HostFault(RuntimeError):
    """The modelled hardware cannot do what the kernel asks of it."""


def load_raw(
    tree: Path | str,
    wave: int = 64,
    *,
    believed: int | None = None,
    threads: int | None = None,
    text: str | None = None,
    clang: Path | None = None,
    cache: Path | None = None,
) -> Raw:
    """LLMM1 of `tree` (or of `text`, its file's changed text) on raw addresses, exactly as the C entry takes them.

    Raises region.RegionError or build.BuildError; the result raises HostRefusal or HostFault.
    """
    source = text if text is not None else region.skinny_source(Path(tree)).read_text()
    library = build.build(source, kind="fast", wave=wave, believed=believed, clang=clang, cache=cache)
    entry = ctypes.CDLL(str(library)).wave_llmm1
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    entry.argtypes = [pointer, pointer, pointer, i64, i64, i64, ctypes.c_int, i64, ctypes.c_int, pointer, i64]
    workers = threads or os.cpu_count() or 1

    def run(a: int, x: int, out: int, m: int, k: int, x_rows: int, dtype: int, rows_per_block: int) -> None:
        message = ctypes.create_string_buffer(256)
        status = entry(a, x, out, m, k, x_rows, dtype, rows_per_block, workers, message, len(message))
        if status:
            raise (HostRefusal if status == 1 else HostFault)(message.value.decode())

    return run


def load(tree: Path | str, wave: int = 64, **options: Any) -> Callable[[Any, Any, int], Any]:
    """`_rocm_C::LLMM1` for CPU tensors: (weight[M, K], x[1, K], rows_per_block) -> out[1, M], fp16 or bf16.

    `options` are load_raw's. Tensors must be contiguous: upstream reads them densely and does not check.
    Raises region.RegionError or build.BuildError here; HostRefusal, HostFault or ValueError when called.
    """
    raw = load_raw(tree, wave, **options)
    import torch  # the library itself does not need it

    codes = {torch.float16: 0, torch.bfloat16: 1}

    def llmm1(weight: Any, x: Any, rows_per_block: int) -> Any:
        if not (weight.is_contiguous() and x.is_contiguous()):
            raise ValueError("LLMM1 on the host takes contiguous tensors: the kernel would read other rows")
        if weight.dtype != x.dtype or weight.shape[1] != x.shape[1]:
            raise ValueError("LLMM1 on the host takes a weight and an activation of one dtype and one K")
        out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)
        m, k = weight.shape
        code = codes.get(x.dtype, 2)
        raw(weight.data_ptr(), x.data_ptr(), out.data_ptr(), m, k, x.shape[0], code, rows_per_block)
        return out

    return llmm1
