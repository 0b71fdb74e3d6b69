// SPDX-License-Identifier: Apache-2.0
// As much of torch as upstream's host function LLMM1 names: it is compiled as it stands, so that its checks and its grid and
// block arithmetic are upstream's own. Test-only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace c10 {
struct alignas(2) Half {
  uint16_t x;
};
struct alignas(2) BFloat16 {
  uint16_t x;
};
enum class ScalarType { Half, BFloat16, Float };
}  // namespace c10

namespace at {
struct Device {};
struct Tensor {
  void* data = nullptr;
  int64_t sizes[2] = {0, 0};
  c10::ScalarType type = c10::ScalarType::Half;

  int64_t size(int dimension) const { return sizes[dimension]; }
  c10::ScalarType dtype() const { return type; }
  c10::ScalarType scalar_type() const { return type; }
  Device device() const { return {}; }
  template <typename T>
  T* data_ptr() const {
    return static_cast<T*>(data);
  }
};
inline Device device_of(const Tensor& tensor) { return tensor.device(); }
namespace cuda {
struct OptionalCUDAGuard {
  explicit OptionalCUDAGuard(Device) {}
};
inline const void* getCurrentCUDAStream() { return nullptr; }
}  // namespace cuda
}  // namespace at
using cudaStream_t = const void*;

namespace torch {
using at::Tensor;
inline constexpr auto kFloat16 = c10::ScalarType::Half;
inline constexpr auto kBFloat16 = c10::ScalarType::BFloat16;
struct TensorOptions {
  c10::ScalarType type = kFloat16;
  TensorOptions dtype(c10::ScalarType wanted) const { return {wanted}; }
  TensorOptions device(at::Device) const { return *this; }
};
// The next torch::empty() hands out this memory: the caller owns it, sized exactly, unwritten.
inline Tensor& next_empty() {
  static thread_local Tensor tensor;
  return tensor;
}
inline Tensor empty(std::initializer_list<int64_t> sizes, TensorOptions options) {
  Tensor tensor = next_empty();
  if (sizes.size() != 2 || sizes.begin()[0] != tensor.sizes[0] || sizes.begin()[1] != tensor.sizes[1] ||
      options.type != tensor.type)
    throw std::runtime_error("LLMM1 asks for an output of another shape or dtype than (N, M) of the activation's dtype");
  return tensor;
}
}  // namespace torch

using at::device_of;
using std::max;

#define TORCH_CHECK(condition, ...) \
  if (!(condition)) throw std::runtime_error(std::string("TORCH_CHECK(" #condition "): " __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...)   \
  if ((TYPE) == c10::ScalarType::Half) {                      \
    using scalar_t = c10::Half;                               \
    (__VA_ARGS__)();                                          \
  } else if ((TYPE) == c10::ScalarType::BFloat16) {           \
    using scalar_t = c10::BFloat16;                           \
    (__VA_ARGS__)();                                          \
  } else                                                      \
    throw std::runtime_error(NAME " is not implemented for this dtype")
