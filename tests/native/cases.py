"""Data, runs and the float64 reference for LLMM1 in its narrow dtypes; arrays of 16-bit patterns stand for tensors."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from vllm.dcu.evidence import numerics

from scripts.rehearsal.wave.host_llmm1 import Raw

__all__ = ["CODES", "Bits", "Watched", "exact", "from_bits", "magnitude", "make", "numerics", "relative", "run", "to_bits", "watch"]

Bits = NDArray[np.uint16]
CODES = {"float16": 0, "bfloat16": 1}


def to_bits(values: NDArray[np.float32], dtype: str) -> Bits:
    """Round to nearest even into the narrow dtype. No NaN in `values`."""
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    u = values.view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bits(bits: Bits, dtype: str) -> NDArray[np.float64]:
    """The exact values."""
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def make(m: int, k: int, dtype: str, seed: int = 0) -> tuple[Bits, Bits]:
    """A weight [m, k] and an activation [1, k], zero-centred as a model's.

    The weight is drawn from 65536 normal values: 178 million normal draws would take longer than all runs of the kernel on them.
    """
    rng = np.random.default_rng(seed)
    values = to_bits(rng.standard_normal(1 << 16, dtype=np.float32) * np.float32(0.02), dtype)
    weight = values[rng.integers(0, 1 << 16, (m, k), np.uint16)]
    return weight, to_bits(rng.standard_normal((1, k), dtype=np.float32), dtype)


def exact(a: Bits, x: Bits, dtype: str) -> NDArray[np.float64]:
    """[m] in float64, a block of rows at a time."""
    row = from_bits(x, dtype)[0]
    return np.concatenate([from_bits(part, dtype) @ row for part in np.array_split(a, max(1, a.size // 10_000_000))])


def magnitude(a: Bits, x: Bits, dtype: str) -> NDArray[np.float64]:
    """sum(|a| |x|) of each row: what the bound of every single output is relative to."""
    return exact(a & np.uint16(0x7FFF), x & np.uint16(0x7FFF), dtype)


def relative(out: Bits, reference: NDArray[np.float64], dtype: str) -> float:
    """Norm-wise relative error."""
    return float(np.linalg.norm(from_bits(out, dtype) - reference) / np.linalg.norm(reference))


def run(raw: Raw, a: Bits, x: Bits, dtype: str, rows: int) -> Bits:
    """One call of the fast host build; the output starts as a NaN pattern."""
    out = np.full(a.shape[0], 0x7FFF, np.uint16)
    raw(a.ctypes.data, x.ctypes.data, out.ctypes.data, a.shape[0], a.shape[1], x.shape[0], CODES[dtype], rows)
    return out


@dataclass(frozen=True)
class Watched:
    """What a run under sanitizers came to."""

    code: int
    out: Bits | None
    said: str


def watch(program: Path, folder: Path, a: Bits, x: Bits, dtype: str, rows: int) -> Watched:
    """One call of a program built with sanitizers, on buffers exactly as large as the tensors."""
    a_file, x_file, out_file = folder / "a", folder / "x", folder / "out"
    a.tofile(a_file)
    x.tofile(x_file)
    out_file.unlink(missing_ok=True)
    sizes = [str(v) for v in (a.shape[0], a.shape[1], x.shape[0], CODES[dtype], rows)]
    done = subprocess.run([program, a_file, x_file, out_file, *sizes], capture_output=True, text=True, check=False, timeout=300)
    out = np.fromfile(out_file, np.uint16) if done.returncode == 0 else None
    return Watched(done.returncode, out, done.stderr)
