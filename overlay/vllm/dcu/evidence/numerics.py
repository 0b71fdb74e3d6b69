# SPDX-License-Identifier: Apache-2.0
"""What the sums of LLMM1 and of GEMV cost, derived from their sources.  Standard library only.

docs/llmm1-numerics.md and docs/gemv.md derive every constant here; nothing is fitted to a measurement. `u` is the unit roundoff of the
dtype: 2**-8 for bfloat16, 2**-11 for float16.
"""

from dataclasses import dataclass
from math import sqrt

__all__ = ["LLMM1", "SMALLEST_LOST", "SMALLEST_NORMAL", "UNIT_ROUNDOFF", "Sums", "ceiling", "element_factor", "expected"]

UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
SMALLEST_NORMAL = {"bfloat16": 2.0**-126, "float16": 2.0**-14}
# What one operation loses at most near zero: a device may flush float32, whose exponents bfloat16 has, and keeps float16's subnormal numbers.
SMALLEST_LOST = {"bfloat16": 2.0**-126, "float16": 2.0**-24}

_FLOAT32_UNIT = 2.0**-24
# Mean square of one relative rounding error, in units of u**2: errors uniform over an ulp, mantissas log-uniform in [1, 2)...
_MEAN_SQUARE = (1 - 0.25) / (2 * 0.6931471805599453) / 3
# ...and at its very worst, all mantissas at 1.
_WORST_SQUARE = 1 / 3


@dataclass(frozen=True)
class Sums:
    """How a kernel adds up one output.

    Attributes:
        narrow: roundings to the tensors' dtype that one product passes through at most.
        variance: what the narrow roundings cost on zero-centred data, in roundings of the whole result.
        wide: roundings to float32 that one product passes through at most.
    """

    narrow: int
    variance: float
    wide: int


# A lane adds four products in the narrow dtype, so the roundings see sums of 1, 2, 3 and 4 products: (1+2+3+4) / 4 = 2.5
# roundings' worth of variance for each product. The output is rounded once more. In float32: three fused multiply-adds, x + y, six
# steps in the wave, four across waves.
LLMM1 = Sums(narrow=5, variance=2.5 + 1.0, wide=14)


def expected(dtype: str, sums: Sums = LLMM1) -> float:
    """Norm-wise relative error on zero-centred data, for any K: 0.79 u for LLMM1 (3.1e-3 for bfloat16), 0.42 u for GEMV.

    Raises:
        KeyError: `dtype` is not one of the kernels'.
    """
    return sqrt(sums.variance * _MEAN_SQUARE) * UNIT_ROUNDOFF[dtype]


def ceiling(dtype: str, outputs: int, sums: Sums = LLMM1) -> float:
    """Above this, a norm-wise relative error over `outputs` is a fault and not rounding: all mantissas at their worst, six sigma of sampling,
    and every rounding in float32 in the same direction (LLMM1's fourteen vanish beside the rest and are left out).

    Raises:
        KeyError: `dtype` is not one of the kernels'.
    """
    narrow = sqrt(sums.variance * _WORST_SQUARE) * UNIT_ROUNDOFF[dtype] * (1 + 6 / sqrt(2 * max(outputs, 1)))
    return narrow if sums is LLMM1 else narrow + sums.wide * _FLOAT32_UNIT


def element_factor(dtype: str, sums: Sums = LLMM1) -> float:
    """|out - exact| <= this * sum(|weight| * |x|) for every single output, whatever the data, short of over- and underflow.

    Raises:
        KeyError: `dtype` is not one of the kernels'.
    """
    return float((1 + UNIT_ROUNDOFF[dtype]) ** sums.narrow * (1 + _FLOAT32_UNIT) ** sums.wide - 1)
