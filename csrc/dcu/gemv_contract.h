// SPDX-License-Identifier: Apache-2.0
// What must hold before `_dcu_C::gemv` may launch. Plain C++ without torch or HIP, so that a test can run it on any host.
#pragma once

#include <string>

#include "../rocm/dcu_contract.h"
#include "gemv_variants.h"

namespace vllm_dcu {

struct GemvVariant {
  int number, rows, loads, share, waves, spread;
  int most_n;
};

// The variant of that number, or null.
inline const GemvVariant* gemv_variant(std::int64_t number) {
  const auto most_n = [](int rows, int loads) {
#define VLLM_DCU_MOST(R, U, MOST) \
  if (rows == R && loads == U) return MOST;
    VLLM_DCU_GEMV_BODIES(VLLM_DCU_MOST)
#undef VLLM_DCU_MOST
    return 0;
  };
#define VLLM_DCU_ROW(NUMBER, ROWS, LOADS, SHARE, WAVES, SPREAD) {NUMBER, ROWS, LOADS, SHARE, WAVES, SPREAD, most_n(ROWS, LOADS)},
  static const GemvVariant variants[] = {VLLM_DCU_GEMV_VARIANTS(VLLM_DCU_ROW)};
#undef VLLM_DCU_ROW
  for (const GemvVariant& v : variants)
    if (v.number == number) return &v;
  return nullptr;
}

struct GemvCall {
  Operand weight;  // (M, K)
  Operand x;       // (N, K)
  std::int64_t variant = 0;
  int wavefront = 0;  // as the runtime reports it for the device
  int lanes = 0;      // what the kernel was compiled for
};

// A launch has fewer than 2^32 threads, 512 of them a row at most; pieces of 16 bytes are counted in 32 bits.
constexpr std::int64_t kGemvMaxM = (1 << 23) - 1;
constexpr std::int64_t kGemvMaxK = (std::int64_t{1} << 31) - 8;

// Why this call must not reach the kernel, as one sentence that names the argument and its value; "" if it may.
inline std::string gemv_refusal(const GemvCall& c) {
  const auto num = [](std::int64_t v) { return std::to_string(v); };
  for (const Operand* t : {&c.weight, &c.x}) {
    const std::string why = operand_refusal(*t, "gemv");
    if (!why.empty()) return why;
  }
  if (c.weight.device != c.x.device)
    return "weight is on " + c.weight.device + " and x on " + c.x.device + "; gemv needs both on one device";
  if (c.weight.dtype != c.x.dtype) return "weight is " + c.weight.dtype + " and x " + c.x.dtype + "; gemv needs equal dtypes";
  if (c.weight.cols != c.x.cols)
    return "weight has K=" + num(c.weight.cols) + " and x K=" + num(c.x.cols) + "; gemv needs equal K";
  const GemvVariant* variant = gemv_variant(c.variant);
  if (!variant) return "variant is " + num(c.variant) + "; there is none of that number (vllm/dcu/records/gemv.py lists them)";
  if (c.x.rows < 1 || c.x.rows > variant->most_n)
    return "x has " + num(c.x.rows) + " rows; variant " + num(c.variant) + " takes 1 to " + num(variant->most_n);
  if (c.wavefront != c.lanes)
    return "the device has " + num(c.wavefront) + " lanes a wavefront; this build of gemv is for " + num(c.lanes);
  if (c.weight.cols % kElementsPerLane != 0)
    return "weight has K=" + num(c.weight.cols) + ", not a multiple of 8; gemv loads 8 elements at a time";
  if (c.weight.cols > kGemvMaxK)
    return "weight has K=" + num(c.weight.cols) + "; gemv takes at most " + num(kGemvMaxK);
  if (c.weight.rows > kGemvMaxM)
    return "weight has M=" + num(c.weight.rows) + " rows; gemv takes at most " + num(kGemvMaxM);
  const bool empty = c.weight.rows == 0 || c.weight.cols == 0;
  for (const Operand* t : {&c.weight, &c.x})
    if (!empty && t->address % kAlignment != 0)
      return t->name + " starts at an address " + num(static_cast<std::int64_t>(t->address % kAlignment)) +
             " bytes past a multiple of 16; gemv loads 16 bytes at a time";
  return "";
}

}  // namespace vllm_dcu
