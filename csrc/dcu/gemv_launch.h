// SPDX-License-Identifier: Apache-2.0
// Which kernel a variant launches, and how: the host side without torch, for HIP, CUDA and the host alike.
#pragma once

#include "gemv_contract.h"
#include "gemv_kernel.h"

namespace vllm_dcu::gemv {

using Kernel = void (*)(const Words*, const Words*, std::uint16_t*, Shape, unsigned long long*, unsigned long long*);

template <typename T, int N>
inline Kernel kernel_of(int rows, int loads) {
#define VLLM_DCU_PICK(R, U, MOST) \
  if constexpr (N <= MOST)        \
    if (rows == R && loads == U) return dcu_gemv<T, N, R, U>;
  VLLM_DCU_GEMV_BODIES(VLLM_DCU_PICK)
#undef VLLM_DCU_PICK
  return nullptr;
}

template <typename T>
inline Kernel kernel_of(const GemvVariant& v, std::int64_t n) {
  static_assert(VLLM_DCU_GEMV_MAX_N == 5, "one case for each N");
  switch (n) {
    case 1: return kernel_of<T, 1>(v.rows, v.loads);
    case 2: return kernel_of<T, 2>(v.rows, v.loads);
    case 3: return kernel_of<T, 3>(v.rows, v.loads);
    case 4: return kernel_of<T, 4>(v.rows, v.loads);
    case 5: return kernel_of<T, 5>(v.rows, v.loads);
  }
  return nullptr;
}

inline Shape shape_of(const GemvVariant& v, std::int64_t m, std::int64_t k) {
  Shape s;
  s.rows = m;
  s.groups = (m + v.rows - 1) / v.rows;
  s.group_step = v.spread ? 1 : v.rows;
  s.row_step = v.spread ? s.groups : 1;
  s.vectors = static_cast<int>(k / kElements);
  s.share_shift = v.share == 8 ? 3 : v.share == 4 ? 2 : v.share == 2 ? 1 : 0;
  s.block_groups = v.waves / v.share;
  return s;
}

inline unsigned blocks_of(const Shape& s) { return static_cast<unsigned>((s.groups + s.block_groups - 1) / s.block_groups); }

}  // namespace vllm_dcu::gemv
