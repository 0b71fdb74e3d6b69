// SPDX-License-Identifier: Apache-2.0
// `_dcu_C::gemv` and its counter of launches: checks, output, launch on the current stream. The kernel is in gemv_kernel.h.
#include "gemv_launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

// Compiled as it stands, not through hipify: the same file for HIP and, in a rehearsal, for CUDA.
#if defined(USE_ROCM)
  #include <ATen/hip/HIPContext.h>
  #include <ATen/hip/impl/HIPGuardImplMasqueradingAsCUDA.h>
  #define GPU(name) hip##name
using DeviceGuard = c10::hip::OptionalHIPGuardMasqueradingAsCUDA;
#else
  #include <ATen/cuda/CUDAContext.h>
  #include <c10/cuda/CUDAGuard.h>
  #define GPU(name) cuda##name
using DeviceGuard = c10::cuda::OptionalCUDAGuard;
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "../rocm/dcu_operand.h"
#include "ops.h"

#if defined(__HIP_DEVICE_COMPILE__) && __HIP_DEVICE_COMPILE__
  // VLLM_DCU_STAND_IN is for the audit, which compiles this unit for a public relative of the DCU.
  #if !defined(VLLM_DCU_DEVICE_CODE) && !defined(VLLM_DCU_STAND_IN)
    #error "gemv.cu is being compiled for a device that is not a DCU (VLLM_DCU_ARCHS of dcu_arch.h). Build through CMake with PYTORCH_ROCM_ARCH=gfx936."
  #endif
  #if defined(__AMDGCN_WAVEFRONT_SIZE__)
static_assert(__AMDGCN_WAVEFRONT_SIZE__ == VLLM_DCU_WAVEFRONT,
              "The compiler generates code for a wavefront other than 64 lanes, and the lanes of gemv are added 64 at a time. "
              "Remove -mno-wavefrontsize64 from the HIP flags.");
  #endif
#endif

namespace {

using namespace vllm_dcu;

constexpr int kDevices = 16;
constexpr int kCells = 256;  // of a device: one for each (dtype, N, M, K, variant) that is launched; the last takes what is left over

struct Key {
  std::int64_t device, dtype, n, m, k, variant;
  bool operator==(const Key& o) const {
    return device == o.device && dtype == o.dtype && n == o.n && m == o.m && k == o.k && variant == o.variant;
  }
};

// Filled once and never moved: a captured launch keeps the addresses of its cell.
struct Counter {
  unsigned long long* count = nullptr;             // device memory
  volatile unsigned long long* seen = nullptr;     // host memory
  unsigned long long* mapped = nullptr;            // the same as the device sees it
  std::atomic<int> used{0};
  std::array<Key, kCells> keys;
};

struct Cell {
  unsigned long long* count;
  unsigned long long* mapped;
};

std::array<Counter, kDevices> counters;
std::mutex filling;

Cell cell_of(const Key& key) {
  if (key.device >= kDevices) return {nullptr, nullptr};
  Counter& c = counters[key.device];
  if (!c.count) return {nullptr, nullptr};
  int i = 0, used = c.used.load(std::memory_order_acquire);
  while (i < used && !(c.keys[i] == key)) i++;
  if (i == used) {
    std::lock_guard<std::mutex> lock(filling);
    used = c.used.load(std::memory_order_acquire);
    while (i < used && !(c.keys[i] == key)) i++;
    if (i == used) {
      if (used == kCells) return {c.count + kCells - 1, c.mapped + (kCells - 1) * gemv::kSlots};
      c.keys[i] = used == kCells - 1 ? Key{key.device, -1, -1, -1, -1, -1} : key;
      c.used.store(used + 1, std::memory_order_release);
    }
  }
  return {c.count + i, c.mapped + i * gemv::kSlots};
}

#define DCU_CHECK(call)                                                                     \
  do {                                                                                      \
    const GPU(Error_t) error = (call);                                                      \
    TORCH_CHECK(error == GPU(Success), "gemv: ", #call, ": ", GPU(GetErrorString)(error), "."); \
  } while (0)

}  // namespace

void dcu_gemv_count(const at::Tensor& on) {
  const int device = on.device().index();
  TORCH_CHECK(on.is_cuda() && device < kDevices, "gemv: launches are counted on GPUs 0 to ", kDevices - 1, ", not on ", on.device(), ".");
  std::lock_guard<std::mutex> lock(filling);
  Counter& c = counters[device];
  if (c.count) return;
  const DeviceGuard guard(on.device());
  constexpr size_t seen = sizeof(unsigned long long) * kCells * gemv::kSlots;
  void *host = nullptr, *mapped = nullptr, *count = nullptr;
  DCU_CHECK(GPU(HostAlloc)(&host, seen, GPU(HostAllocMapped)));
  std::fill_n(static_cast<unsigned char*>(host), seen, 0);
  DCU_CHECK(GPU(HostGetDevicePointer)(&mapped, host, 0));
  DCU_CHECK(GPU(Malloc)(&count, sizeof(unsigned long long) * kCells));
  DCU_CHECK(GPU(Memset)(count, 0, sizeof(unsigned long long) * kCells));
  DCU_CHECK(GPU(DeviceSynchronize)());
  c.seen = static_cast<unsigned long long*>(host);
  c.mapped = static_cast<unsigned long long*>(mapped);
  c.count = static_cast<unsigned long long*>(count);
}

at::Tensor dcu_gemv_launches() {
  std::vector<int64_t> rows;
  for (const Counter& c : counters)
    for (int i = 0, used = c.used.load(std::memory_order_acquire); i < used; i++) {
      unsigned long long most = 0;
      for (int s = 0; s < gemv::kSlots; s++) {
        const unsigned long long seen = c.seen[i * gemv::kSlots + s];
        most = std::max(most, seen);
      }
      const Key& k = c.keys[i];
      for (const int64_t value : {k.device, k.dtype, k.n, k.m, k.k, k.variant, static_cast<int64_t>(most)}) rows.push_back(value);
    }
  at::Tensor out = at::empty({static_cast<int64_t>(rows.size()) / 7, 7}, at::TensorOptions().dtype(at::kLong));
  std::copy(rows.begin(), rows.end(), out.data_ptr<int64_t>());
  return out;
}

at::Tensor dcu_gemv(const at::Tensor& weight, const at::Tensor& x, int64_t variant) {
  const at::Device device = x.is_cuda() ? x.device() : weight.device();
  const auto* properties = at::cuda::getDeviceProperties(device.index());
#if defined(USE_ROCM)
  TORCH_CHECK(is_dcu_arch(properties->gcnArchName), "gemv: ", device, " is ", properties->gcnArchName,
              ", and _dcu_C holds code for " VLLM_DCU_ARCHS " only.");
#endif
  GemvCall call;
  call.weight = operand("weight", weight);
  call.x = operand("x", x);
  call.variant = variant;
  call.wavefront = properties->warpSize;
  call.lanes = gemv::kLanes;
  const std::string refusal = gemv_refusal(call);
  TORCH_CHECK(refusal.empty(), "gemv: ", refusal, ".");

  const int64_t n = call.x.rows, m = call.weight.rows, k = call.weight.cols;
  // A grid of no blocks is a launch error, and an empty sum is zero.
  if (m == 0 || k == 0) return at::zeros({n, m}, x.options());
  const DeviceGuard guard(device);
  at::Tensor out = at::empty({n, m}, x.options());
  const GemvVariant& chosen = *gemv_variant(variant);
  const bool bf16 = x.scalar_type() == at::kBFloat16;
  const gemv::Kernel kernel = bf16 ? gemv::kernel_of<gemv::BFloat16>(chosen, n) : gemv::kernel_of<gemv::Half>(chosen, n);
  const gemv::Shape shape = gemv::shape_of(chosen, m, k);
  const Cell cell = cell_of({device.index(), static_cast<int64_t>(x.scalar_type()), n, m, k, variant});
  const dim3 grid(gemv::blocks_of(shape)), block(chosen.waves * gemv::kLanes);
#if defined(USE_ROCM)
  const hipStream_t stream = at::hip::getCurrentHIPStreamMasqueradingAsCUDA();
#else
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
#endif
  kernel<<<grid, block, 0, stream>>>(
      static_cast<const gemv::Words*>(weight.data_ptr()), static_cast<const gemv::Words*>(x.data_ptr()),
      static_cast<std::uint16_t*>(out.data_ptr()), shape, cell.count, cell.mapped);
  DCU_CHECK(GPU(GetLastError)());
  return out;
}
