// SPDX-License-Identifier: Apache-2.0
// What must hold before LLMM1 may be launched on a DCU: everything upstream's host function leaves open.
// Plain C++ without torch or HIP, so that a test can compile and run it with any host compiler.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "dcu_arch.h"

namespace vllm_dcu {

// One tensor as LLMM1 sees it. `name` is the argument's name in the op's schema.
struct Operand {
  std::string name;
  std::int64_t dim = 0;
  std::int64_t rows = 0;  // size(0), size(1): meaningful where dim == 2
  std::int64_t cols = 0;
  std::string dtype;  // "BFloat16", "Half", ...
  bool reduced_float = false;  // bf16 or fp16
  bool strided = false;        // dense layout with real storage (not sparse, not meta)
  bool contiguous = false;
  std::string device;          // "cuda:0", "cpu", ...
  bool on_gpu = false;
  std::uint64_t address = 0;
  bool wants_grad = false;  // grad mode is on and the tensor requires grad
};

struct Llmm1Call {
  Operand a;  // in_a: the weight, (M, K)
  Operand b;  // in_b: the activation, (1, K)
  std::int64_t rows_per_block = 0;
  int wavefront = 0;  // as the HIP runtime reports it for the device
};

// The last reduction stage reads 16 partial sums, one of each wavefront; a wavefront covers 64 * 8 elements of K.
constexpr std::int64_t kReducedWavefronts = 16;
constexpr std::int64_t kElementsPerLane = 8;
constexpr std::int64_t kMaxK =
    kReducedWavefronts * VLLM_DCU_WAVEFRONT * kElementsPerLane;
// The kernel computes its row offset, and the host its grid, in 32-bit ints.
constexpr std::int64_t kMaxElements = std::numeric_limits<std::int32_t>::max();
// float4 loads.
constexpr std::uint64_t kAlignment = 16;

inline std::string operand_refusal(const Operand& t, const std::string& op = "LLMM1") {
  const std::string is = t.name + " is ";
  if (!t.on_gpu) return is + "on " + t.device + "; " + op + " needs a GPU tensor";
  if (!t.strided) return is + "not a strided tensor; " + op + " reads dense memory";
  if (t.dim != 2)
    return is + std::to_string(t.dim) + "-dimensional; " + op + " needs 2 dimensions";
  if (!t.reduced_float)
    return is + t.dtype + "; " + op + " needs BFloat16 or Half";
  if (t.wants_grad)
    return t.name +
           " requires grad; " + op + " has no backward: use it under "
           "torch.no_grad() or torch.inference_mode()";
  if (!t.contiguous)
    return is + "not contiguous; " + op + " ignores strides: pass " + t.name +
           ".contiguous()";
  return "";
}

// Why this call must not reach the kernel, as one sentence that names the argument and its value; "" if it may.
inline std::string llmm1_refusal(const Llmm1Call& c) {
  const auto num = [](std::int64_t v) { return std::to_string(v); };
  for (const Operand* t : {&c.a, &c.b}) {
    const std::string why = operand_refusal(*t);
    if (!why.empty()) return why;
  }
  if (c.a.device != c.b.device)
    return "in_a is on " + c.a.device + " and in_b on " + c.b.device +
           "; LLMM1 needs both on one device";
  if (c.a.dtype != c.b.dtype)
    return "in_a is " + c.a.dtype + " and in_b " + c.b.dtype +
           "; LLMM1 needs equal dtypes";
  if (c.b.rows != 1)
    return "in_b has " + num(c.b.rows) + " rows; LLMM1 takes exactly 1";
  if (c.a.cols != c.b.cols)
    return "in_a has K=" + num(c.a.cols) + " and in_b K=" + num(c.b.cols) +
           "; LLMM1 needs equal K";
  const std::int64_t rows = c.rows_per_block;
  if (rows != 2 && rows != 4 && rows != 8 && rows != 16)
    return "rows_per_block is " + num(rows) + "; LLMM1 has 2, 4, 8 and 16";
  if (c.a.rows % rows != 0)
    return "in_a has M=" + num(c.a.rows) +
           " rows, not a multiple of rows_per_block=" + num(rows) +
           "; LLMM1 would leave the last rows uninitialised";
  if (c.wavefront != VLLM_DCU_WAVEFRONT)
    return "the device has " + num(c.wavefront) +
           " lanes a wavefront; LLMM1 was verified for " +
           num(VLLM_DCU_WAVEFRONT);
  if (c.a.cols % kElementsPerLane != 0)
    return "in_a has K=" + num(c.a.cols) +
           ", not a multiple of 8; LLMM1 loads 8 elements at a time";
  if (c.a.cols > kMaxK)
    return "in_a has K=" + num(c.a.cols) + "; LLMM1 sums at most " +
           num(kMaxK) + " at " + num(VLLM_DCU_WAVEFRONT) +
           " lanes a wavefront and drops the rest";
  if (c.a.cols != 0 && c.a.rows > kMaxElements / c.a.cols)
    return "in_a has M*K=" + num(c.a.rows) + "*" + num(c.a.cols) +
           " elements; LLMM1 addresses fewer than 2^31";
  const bool empty = c.a.rows == 0 || c.a.cols == 0;
  for (const Operand* t : {&c.a, &c.b})
    if (!empty && t->address % kAlignment != 0)
      return t->name + " starts at an address " +
             num(static_cast<std::int64_t>(t->address % kAlignment)) +
             " bytes past a multiple of 16; LLMM1 loads 16 bytes at a time";
  return "";
}

}  // namespace vllm_dcu
