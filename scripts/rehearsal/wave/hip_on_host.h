// SPDX-License-Identifier: Apache-2.0
// The few HIP types and intrinsics that LLGemm1 uses, for the host, bit for bit as HIP defines them (test-only):
//   bf16  hip/amd_detail/amd_hip_bf16.h (6.4): each operation in float32 (an fma is fused), then rounded to nearest even;
//         an inf stays, a NaN keeps its upper half and gets its lowest bit set where only lower bits were
//   fp16  one rounding per operation (v_pk_mul_f16, v_pk_fma_f16), subnormals kept
// Every conversion is free of branches: a lane beyond K computes on registers it never loaded and throws the result away,
// which is fine, while a branch on such a value would not be; MemorySanitizer tells the two apart only then.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__F16C__) && !defined(WAVE_MSAN)
  #include <immintrin.h>
#endif

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace wave {
inline uint32_t bits(float value) {
  uint32_t u;
  std::memcpy(&u, &value, 4);
  return u;
}
inline float from_bits(uint32_t u) {
  float value;
  std::memcpy(&value, &u, 4);
  return value;
}
inline uint32_t all_ones_if(bool condition) { return 0u - static_cast<uint32_t>(condition); }

inline float bf16_to_float(uint16_t h) { return from_bits(static_cast<uint32_t>(h) << 16); }
inline uint16_t float_to_bf16(float value) {
  const uint32_t u = bits(value);
  const uint32_t finite = all_ones_if((~u & 0x7f800000u) != 0);
  const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
  const uint32_t special = u | (all_ones_if((u & 0xffffu) != 0) & 0x10000u);
  return static_cast<uint16_t>(((rounded & finite) | (special & ~finite)) >> 16);
}

inline float half_to_float(uint16_t h) {
#if defined(__F16C__) && !defined(WAVE_MSAN)
  return _cvtsh_ss(h);
#else
  const uint32_t magnitude = (h & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & (0x7c00u << 13);
  const uint32_t normal = magnitude + ((127u - 15u) << 23);
  const uint32_t special = normal + ((128u - 16u) << 23);
  const uint32_t small = bits(from_bits(normal + (1u << 23)) - from_bits(113u << 23));
  const uint32_t is_special = all_ones_if(exponent == (0x7c00u << 13)), is_small = all_ones_if(exponent == 0);
  const uint32_t u = (special & is_special) | (small & is_small) | (normal & ~is_special & ~is_small);
  return from_bits(u | (static_cast<uint32_t>(h & 0x8000u) << 16));
#endif
}
inline uint16_t float_to_half(float value) {
#if defined(__F16C__) && !defined(WAVE_MSAN)
  return _cvtss_sh(value, 0);
#else
  const uint32_t u = bits(value), magnitude = u & 0x7fffffffu;
  const uint32_t is_nan = all_ones_if(magnitude > 0x7f800000u), is_inf = all_ones_if(magnitude >= (127u + 16u) << 23);
  const uint32_t is_small = all_ones_if(magnitude < (127u - 14u) << 23);
  const uint32_t denormal_magic = ((127u - 15u) + (23u - 10u) + 1u) << 23;
  const uint32_t small = bits(from_bits(magnitude & is_small) + from_bits(denormal_magic)) - denormal_magic;
  const uint32_t normal = (magnitude + ((15u - 127u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t special = 0x7c00u | (is_nan & (0x200u | ((magnitude >> 13) & 0x3ffu)));
  const uint32_t h = (special & is_inf) | (small & is_small) | (normal & ~is_inf & ~is_small);
  return static_cast<uint16_t>(h | ((u >> 16) & 0x8000u));
#endif
}
// One rounding: the product of two halves is exact in float32 and its sum with a third, taken in float64, is either exact
// or far from any midpoint of halves; rounding it to odd on the way keeps the second rounding honest.
inline uint16_t half_fma(uint16_t a, uint16_t b, uint16_t c) {
  const double exact = static_cast<double>(half_to_float(a) * half_to_float(b)) + static_cast<double>(half_to_float(c));
  const float near = static_cast<float>(exact);
  const double back = static_cast<double>(near);
  const uint32_t inexact = all_ones_if(back != exact) & all_ones_if(std::fabs(back) < INFINITY);
  const uint32_t beyond = all_ones_if(std::fabs(back) > std::fabs(exact)) & inexact;
  return float_to_half(from_bits((bits(near) - (beyond & 1u)) | (inexact & 1u)));
}
}  // namespace wave

struct alignas(2) half {
  uint16_t x;
};
struct alignas(4) __half2 {
  uint16_t x, y;
};
struct alignas(2) __hip_bfloat16 {
  uint16_t x;
};
struct alignas(4) __hip_bfloat162 {
  uint16_t x, y;
};

inline half __float2half(float v) { return {wave::float_to_half(v)}; }
inline float2 __half22float2(__half2 v) { return {wave::half_to_float(v.x), wave::half_to_float(v.y)}; }
inline __half2 __float22half2_rn(float2 v) { return {wave::float_to_half(v.x), wave::float_to_half(v.y)}; }
inline __half2 __hmul2(__half2 a, __half2 b) {
  return {wave::float_to_half(wave::half_to_float(a.x) * wave::half_to_float(b.x)),
          wave::float_to_half(wave::half_to_float(a.y) * wave::half_to_float(b.y))};
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {wave::half_fma(a.x, b.x, c.x), wave::half_fma(a.y, b.y, c.y)};
}

inline __hip_bfloat16 __float2bfloat16(float v) { return {wave::float_to_bf16(v)}; }
inline float2 __bfloat1622float2(__hip_bfloat162 v) { return {wave::bf16_to_float(v.x), wave::bf16_to_float(v.y)}; }
inline __hip_bfloat162 __float22bfloat162_rn(float2 v) { return {wave::float_to_bf16(v.x), wave::float_to_bf16(v.y)}; }
inline __hip_bfloat162 __hmul2(__hip_bfloat162 a, __hip_bfloat162 b) {
  return {wave::float_to_bf16(wave::bf16_to_float(a.x) * wave::bf16_to_float(b.x)),
          wave::float_to_bf16(wave::bf16_to_float(a.y) * wave::bf16_to_float(b.y))};
}
inline __hip_bfloat162 __hfma2(__hip_bfloat162 a, __hip_bfloat162 b, __hip_bfloat162 c) {
  using wave::bf16_to_float;
  return {wave::float_to_bf16(std::fmaf(bf16_to_float(a.x), bf16_to_float(b.x), bf16_to_float(c.x))),
          wave::float_to_bf16(std::fmaf(bf16_to_float(a.y), bf16_to_float(b.y), bf16_to_float(c.y)))};
}

#if !defined(__clang__)
// clang has it, GCC does not; where the data goes in the cache changes no bit.
template <typename T>
inline T __builtin_nontemporal_load(const T* address) {
  return *address;
}
#endif
