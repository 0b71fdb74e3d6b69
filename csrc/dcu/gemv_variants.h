// SPDX-License-Identifier: Apache-2.0
// The one C++ statement of what `_dcu_C::gemv` can be asked for. The same facts stand in vllm/dcu/records/gemv.py; a test parses
// both. Records keep the numbers: a variant may be added or withdrawn, never renumbered or changed.
#pragma once

// One kernel for each dtype and each N from 1 to the last number: X(rows a wave, loads of 16 bytes in flight a row, most N).
// Beyond that N the compiler would spill.
#define VLLM_DCU_GEMV_BODIES(X) X(1, 3, 5) X(1, 4, 3) X(2, 1, 5) X(2, 3, 5) X(4, 1, 5) X(4, 2, 5)

// X(number, rows a wave, loads in flight a row, waves that share a row, waves a block, spread). Where spread is 1 the rows of a
// wave lie ceil(M / rows) apart, where it is 0 they are neighbours.
#define VLLM_DCU_GEMV_VARIANTS(X) \
  X(0, 2, 1, 4, 4, 0)             \
  X(1, 2, 3, 4, 4, 1)             \
  X(2, 1, 3, 8, 8, 0)             \
  X(3, 1, 4, 8, 8, 0)             \
  X(4, 1, 4, 2, 4, 0)             \
  X(5, 4, 1, 4, 4, 1)             \
  X(6, 4, 1, 4, 4, 0)             \
  X(7, 4, 1, 1, 4, 1)             \
  X(8, 4, 1, 2, 4, 0)             \
  X(9, 4, 2, 1, 4, 0)             \
  X(10, 4, 2, 1, 4, 1)            \
  X(11, 4, 2, 2, 4, 0)            \
  X(12, 4, 2, 2, 4, 1)            \
  X(13, 2, 1, 1, 4, 0)            \
  X(14, 4, 2, 8, 8, 0)            \
  X(15, 2, 1, 2, 8, 0)

#define VLLM_DCU_GEMV_MAX_N 5
