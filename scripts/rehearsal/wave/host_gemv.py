"""Our own kernel on the host: `load()` gives a callable that runs csrc/dcu/gemv_kernel.h at wave 64 on addresses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.rehearsal.wave import build
from scripts.rehearsal.wave.host_llmm1 import HostFault, HostRefusal

__all__ = ["Gemv", "load"]

# (weight, x, out, M, K, N, dtype, variant, counted): addresses and sizes. dtype 0 is fp16, 1 is bf16; counted: 9 words of 64 bits, or 0.
Gemv = Callable[[int, int, int, int, int, int, int, int, int], None]


def load(
    wave: int = 64, files: Mapping[str, str] | None = None, clang: Path | None = None, threads: int | None = None, cache: Path | None = None
) -> Gemv:
    """`_dcu_C::gemv` for waves of `wave` lanes, of `files` (build.gemv_text's, or changed ones).

    Raises build.BuildError; the result raises HostRefusal (the contract's own sentence) or HostFault.
    """
    library = build.build_gemv(files or build.gemv_text(), kind="fast", wave=wave, clang=clang, cache=cache)
    entry = ctypes.CDLL(str(library)).wave_gemv
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    entry.argtypes = [pointer, pointer, pointer, i64, i64, i64, ctypes.c_int, i64, ctypes.c_int, pointer, pointer, i64]
    workers = threads or os.cpu_count() or 1

    def run(weight: int, x: int, out: int, m: int, k: int, n: int, dtype: int, variant: int, counted: int = 0) -> None:
        message = ctypes.create_string_buffer(256)
        status = entry(weight, x, out, m, k, n, dtype, variant, workers, counted or None, message, len(message))
        if status:
            raise (HostRefusal if status == 1 else HostFault)(message.value.decode())

    return run
