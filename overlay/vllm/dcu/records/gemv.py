# SPDX-License-Identifier: Apache-2.0
"""What `_dcu_C::gemv` can be asked for.  Standard library only.

The same facts stand in csrc/dcu/gemv_variants.h; a test parses both. Records keep the numbers: a variant may be added or withdrawn, never
renumbered or changed. docs/gemv.md says what the words mean.
"""

from dataclasses import dataclass

__all__ = ["MAX_N", "MOST_N", "VARIANTS", "Variant", "float32_roundings"]

MAX_N = 5
"""Activation rows that any variant takes."""

MOST_N = {(1, 3): 5, (1, 4): 3, (2, 1): 5, (2, 3): 5, (4, 1): 5, (4, 2): 5}
"""(rows a wave, loads in flight) -> activation rows up to which it is compiled: beyond them the compiler would spill."""

_ELEMENTS = 8
_LANES = 64


@dataclass(frozen=True)
class Variant:
    """One way to compute the same product.

    Attributes:
        number: what records and the op call it.
        rows: of the weight, that a wave takes.
        loads: of 16 bytes, in flight at a time for each row.
        share: waves that share a row; with K it decides the order of the sums, and so the bits.
        waves: of a block.
        spread: whether the rows of a wave lie ceil(M / rows) apart instead of side by side.
    """

    number: int
    rows: int
    loads: int
    share: int
    waves: int
    spread: bool

    @property
    def most_n(self) -> int:
        """Activation rows that it takes, from 1."""
        return MOST_N[self.rows, self.loads]


VARIANTS: dict[int, Variant] = {
    number: Variant(number, rows, loads, share, waves, spread)
    for number, rows, loads, share, waves, spread in (
        (0, 2, 1, 4, 4, False),
        (1, 2, 3, 4, 4, True),
        (2, 1, 3, 8, 8, False),
        (3, 1, 4, 8, 8, False),
        (4, 1, 4, 2, 4, False),
        (5, 4, 1, 4, 4, True),
        (6, 4, 1, 4, 4, False),
        (7, 4, 1, 1, 4, True),
        (8, 4, 1, 2, 4, False),
        (9, 4, 2, 1, 4, False),
        (10, 4, 2, 1, 4, True),
        (11, 4, 2, 2, 4, False),
        (12, 4, 2, 2, 4, True),
        (13, 2, 1, 1, 4, False),
        (14, 4, 2, 8, 8, False),
        (15, 2, 1, 2, 8, False),
    )
}


def float32_roundings(k: int, share: int, lanes: int = _LANES) -> int:
    """How many roundings in float32 one product passes through at most: its lane's sums, the steps in the wave, the waves' sums."""
    pieces = -(-k // (_ELEMENTS * lanes * share))
    return _ELEMENTS * pieces + (lanes.bit_length() - 1) + (share - 1)
