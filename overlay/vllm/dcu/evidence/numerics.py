# SPDX-License-Identifier: Apache-2.0
"""What LLMM1's bf16 or fp16 partial sums cost, derived from its source.  Standard library only.

docs/llmm1-numerics.md derives every constant here; nothing is fitted to a measurement. `u` is the unit roundoff of the
dtype: 2**-8 for bfloat16, 2**-11 for float16.
"""

from math import sqrt

__all__ = ["SMALLEST_NORMAL", "UNIT_ROUNDOFF", "ceiling", "element_factor", "expected"]

UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
SMALLEST_NORMAL = {"bfloat16": 2.0**-126, "float16": 2.0**-14}

# A lane adds four products in the narrow dtype, so the roundings see sums of 1, 2, 3 and 4 products: (1+2+3+4) / 4 = 2.5
# roundings' worth of variance for each product. The output is rounded once more.
_ROUNDINGS = 2.5 + 1.0
# Mean square of one relative rounding error, in units of u**2: errors uniform over an ulp, mantissas log-uniform in [1, 2)...
_MEAN_SQUARE = (1 - 0.25) / (2 * 0.6931471805599453) / 3
# ...and at its very worst, all mantissas at 1.
_WORST_SQUARE = 1 / 3
# Roundings in float32 on the way of one product: three fused multiply-adds, x + y, six steps in the wave, four across waves.
_FLOAT32_ROUNDINGS = 14
_FLOAT32_UNIT = 2.0**-24


def expected(dtype: str) -> float:
    """Norm-wise relative error of LLMM1 on zero-centred data, for any K: 0.79 u (3.1e-3 for bfloat16).

    Raises:
        KeyError: `dtype` is not one of LLMM1's.
    """
    return sqrt(_ROUNDINGS * _MEAN_SQUARE) * UNIT_ROUNDOFF[dtype]


def ceiling(dtype: str, m: int) -> float:
    """Above this, a norm-wise relative error over `m` outputs is a fault and not rounding: 1.08 u, and six sigma of sampling.

    Raises:
        KeyError: `dtype` is not one of LLMM1's.
    """
    return sqrt(_ROUNDINGS * _WORST_SQUARE) * UNIT_ROUNDOFF[dtype] * (1 + 6 / sqrt(2 * max(m, 1)))


def element_factor(dtype: str) -> float:
    """|out - exact| <= this * sum(|weight| * |x|) for every single output, whatever the data, short of over- and underflow.

    Raises:
        KeyError: `dtype` is not one of LLMM1's.
    """
    return float((1 + UNIT_ROUNDOFF[dtype]) ** 5 * (1 + _FLOAT32_UNIT) ** _FLOAT32_ROUNDINGS - 1)
