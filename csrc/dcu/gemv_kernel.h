// SPDX-License-Identifier: Apache-2.0
// The kernel of `_dcu_C::gemv`, alone: out[N, M] = x[N, K] @ weight[M, K].T for bf16 and fp16, sums in float32.
// One text for 64 lanes (a DCU), 32 lanes (CUDA: a rehearsal) and the host (tests/native/wave, which brings what HIP has).
//
// A wave takes R rows; the `share` waves that share them take every share-th piece of K. A lane adds its products in the
// order of K, the lanes of a wave are added in pairs 32, 16, 8, 4, 2, 1 apart, the waves in their order. So the bits of an
// output depend on K, `share` and the lanes of a wave, and on nothing else. docs/gemv.md derives the error from that.
#pragma once

#include <cstdint>

#if defined(VLLM_DCU_HOST_WAVES)
// tests/native/wave has declared Words, stream, shuffle_xor, half_to_float and the rest.
#elif defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
  #include <hip/hip_runtime.h>

  #include "../rocm/dcu_arch.h"
namespace vllm_dcu::gemv {
constexpr int kLanes = VLLM_DCU_WAVEFRONT;
using Words = std::uint32_t __attribute__((ext_vector_type(4)));
__device__ inline std::uint32_t word(const Words& v, int i) { return v[i]; }
// The weight is read once a call: it should not push the activation out of the caches.
__device__ inline Words stream(const Words* at) { return __builtin_nontemporal_load(at); }
__device__ inline float shuffle_xor(float value, int mask) { return __shfl_xor(value, mask); }
// What is the same in all lanes of a wave, said so to the compiler.
__device__ inline int uniform(int value) { return __builtin_amdgcn_readfirstlane(value); }
__device__ inline float as_float(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
__device__ inline std::uint32_t as_bits(float value) { return __builtin_bit_cast(std::uint32_t, value); }
__device__ inline float half_to_float(std::uint16_t bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }
__device__ inline std::uint16_t float_to_half(float value) { return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(value)); }
}  // namespace vllm_dcu::gemv
#else
  #include <cuda_fp16.h>
  #include <cuda_runtime.h>
namespace vllm_dcu::gemv {
constexpr int kLanes = 32;
using Words = uint4;
__device__ inline std::uint32_t word(const Words& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
__device__ inline Words stream(const Words* at) { return __ldcs(at); }
__device__ inline float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
__device__ inline int uniform(int value) { return value; }
__device__ inline float as_float(std::uint32_t bits) { return __uint_as_float(bits); }
__device__ inline std::uint32_t as_bits(float value) { return __float_as_uint(value); }
__device__ inline float half_to_float(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ inline std::uint16_t float_to_half(float value) { return __half_as_ushort(__float2half_rn(value)); }
}  // namespace vllm_dcu::gemv
#endif

namespace vllm_dcu::gemv {

constexpr int kMaxWaves = 8;                    // of a block
constexpr int kMaxThreads = kMaxWaves * kLanes;
constexpr int kElements = 8;                    // of 16 bytes
constexpr int kSlots = 8;                       // of a count as the host sees it

struct Shape {
  std::int64_t rows;        // M
  std::int64_t groups;      // ceil(M / R)
  std::int64_t group_step;  // from the first row of a group to that of the next
  std::int64_t row_step;    // from one row of a group to the next
  int vectors;              // K / 8
  int share_shift;          // log2 of the waves that share a row
  int block_groups;         // groups of a block
};

struct BFloat16 {
  static __device__ inline float low(std::uint32_t pair) { return as_float(pair << 16); }
  static __device__ inline float high(std::uint32_t pair) { return as_float(pair & 0xffff0000u); }
  // To nearest, ties to even; an infinity stays, and a NaN stays one.
  static __device__ inline std::uint16_t narrow(float value) {
    const std::uint32_t bits = as_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

struct Half {
  static __device__ inline float low(std::uint32_t pair) { return half_to_float(static_cast<std::uint16_t>(pair)); }
  static __device__ inline float high(std::uint32_t pair) { return half_to_float(static_cast<std::uint16_t>(pair >> 16)); }
  static __device__ inline std::uint16_t narrow(float value) { return float_to_half(value); }
};

// C pieces of 16 bytes of each row and of each activation: all loads first, then the sums in the order of K.
template <typename T, int N, int R, int C>
__device__ inline void add(float (&sum)[N * R], const Words* const (&rows)[R], const Words* x, int vectors, int at, int stride) {
  Words activation[C][N], weight[C][R];
#pragma unroll
  for (int c = 0; c < C; c++) {
#pragma unroll
    for (int n = 0; n < N; n++) activation[c][n] = x[static_cast<std::int64_t>(n) * vectors + at + c * stride];
#pragma unroll
    for (int r = 0; r < R; r++) weight[c][r] = stream(rows[r] + at + c * stride);
  }
#pragma unroll
  for (int c = 0; c < C; c++)
#pragma unroll
    for (int i = 0; i < kElements / 2; i++) {
      float low[N], high[N];
#pragma unroll
      for (int n = 0; n < N; n++) low[n] = T::low(word(activation[c][n], i)), high[n] = T::high(word(activation[c][n], i));
#pragma unroll
      for (int r = 0; r < R; r++) {
        const float first = T::low(word(weight[c][r], i)), second = T::high(word(weight[c][r], i));
#pragma unroll
        for (int n = 0; n < N; n++) sum[n * R + r] = fmaf(second, high[n], fmaf(first, low[n], sum[n * R + r]));
      }
    }
}

// Adds C values over the lanes of a wave: each in the order of a butterfly, lanes 32, 16, 8, 4, 2, 1 apart. A lane that has two
// values to add keeps one and gives the other away, so that C values cost little more than one.
// The sum that this lane ends with is in value[0]; returns which of the C it is, or -1 where another lane writes it.
template <int M, int C>
__device__ inline int reduce(float (&value)[C], int lane) {
  constexpr int half = C / 2, rest = C - half;
  const bool upper = (lane & M) != 0;
  float next[rest];
#pragma unroll
  for (int i = 0; i < half; i++) {
    const float give = upper ? value[i] : value[i + half];
    next[i] = (upper ? value[i + half] : value[i]) + shuffle_xor(give, M);
  }
  if constexpr (C % 2) next[half] = value[C - 1] + shuffle_xor(value[C - 1], M);
  int held = 0;
  if constexpr (M > 1) held = reduce<M / 2>(next, lane);
  value[0] = next[0];
  if (held < 0 || held < half) return held < 0 ? held : held + (upper ? half : 0);
  return upper ? -1 : C - 1;
}

template <typename T, int N, int R, int U>
__global__ void __launch_bounds__(kMaxThreads)
    dcu_gemv(const Words* __restrict__ weight, const Words* __restrict__ x, std::uint16_t* __restrict__ out, Shape shape,
             unsigned long long* count, unsigned long long* seen) {
  __shared__ float partial[kMaxWaves][N * R];
  // One thread counts the launch; nobody does where `count`, device memory, is null. A new value v goes to seen[v % kSlots], host
  // memory mapped into the device: two streams may store in either order, and the largest is still the count.
  const bool counts = count != nullptr && blockIdx.x == 0 && threadIdx.x == 0;
  unsigned long long before = 0;
  if (counts) before = atomicAdd(count, 1ull);

  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int wave = uniform(static_cast<int>(threadIdx.x) / kLanes);
  const int part = wave & ((1 << shape.share_shift) - 1);
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * shape.block_groups + (wave >> shape.share_shift);

  // A row that is not there is read as the last one and written nowhere, so that all lanes meet at every shuffle.
  const Words* rows[R];
#pragma unroll
  for (int r = 0; r < R; r++) {
    const std::int64_t row = group * shape.group_step + r * shape.row_step;
    rows[r] = weight + (row < shape.rows ? row : shape.rows - 1) * shape.vectors;
  }

  float sum[N * R] = {};
  const int stride = kLanes << shape.share_shift;
  const int first = part * kLanes;
  // How many pieces all lanes have; after them a last one that only some have.
  int full = shape.vectors < first + kLanes ? 0 : (((shape.vectors - first) / kLanes - 1) >> shape.share_shift) + 1;
  int at = first + lane;
  for (; full >= U; full -= U, at += U * stride) add<T, N, R, U>(sum, rows, x, shape.vectors, at, stride);
  if constexpr (U > 4)
    if (full >= 4) add<T, N, R, 4>(sum, rows, x, shape.vectors, at, stride), full -= 4, at += 4 * stride;
  if constexpr (U > 2)
    if (full >= 2) add<T, N, R, 2>(sum, rows, x, shape.vectors, at, stride), full -= 2, at += 2 * stride;
  if constexpr (U > 1)
    if (full >= 1) add<T, N, R, 1>(sum, rows, x, shape.vectors, at, stride), at += stride;
  if (at < shape.vectors) add<T, N, R, 1>(sum, rows, x, shape.vectors, at, stride);

  const int mine = reduce<kLanes / 2>(sum, lane);
  if (mine >= 0) partial[wave][mine] = sum[0];
  __syncthreads();
  if (part == 0 && lane < N * R) {
    float total = partial[wave][lane];
    for (int s = 1; s < 1 << shape.share_shift; s++) total += partial[wave + s][lane];
    const int n = lane / R, r = lane % R;
    const std::int64_t row = group * shape.group_step + r * shape.row_step;
    if (group < shape.groups && row < shape.rows) out[n * shape.rows + row] = T::narrow(total);
  }
  if (counts) seen[(before + 1) % kSlots] = before + 1;
}

}  // namespace vllm_dcu::gemv
