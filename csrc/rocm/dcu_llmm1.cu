// SPDX-License-Identifier: Apache-2.0
// The DCU unit of _rocm_C: upstream's LLMM1, selected from skinny_gemms.cu at configure time, behind checks.
#include "dcu_llmm1_region.cuh"

#include <ATen/cuda/CUDAContext.h>

#include <string>

#include "dcu_arch.h"
#include "dcu_contract.h"
#include "dcu_operand.h"
#include "dcu_ops.h"

#if defined(VLLM_DCU_BESIDE_UPSTREAM)
// As upstream's rocm/ops.h has it, which would bring all of torch with it. With another signature the symbol is missing when
// the module is linked or loaded.
torch::Tensor LLMM1(at::Tensor& in_a, at::Tensor& in_b,
                    const int64_t rows_per_block);
#endif

#if defined(__HIP_DEVICE_COMPILE__) && __HIP_DEVICE_COMPILE__
  // VLLM_DCU_STAND_IN is for the audit, which compiles this unit for a public relative of the DCU.
  #if !defined(VLLM_DCU_DEVICE_CODE) && !defined(VLLM_DCU_STAND_IN)
    #error "dcu_llmm1.cu is being compiled for a device that is not a DCU (VLLM_DCU_ARCHS of dcu_arch.h). The split of _rocm_C in cmake/dcu.cmake has been bypassed; build through CMake with PYTORCH_ROCM_ARCH=gfx936."
  #endif

namespace vllm_dcu {
// What LLGemm1_kernel believes (WARP_SIZE, from upstream's cuda_compat.h) against what was verified and what the compiler
// generates. At 32 the kernel sums 16 * 32 * 8 = 4096 elements of K and drops the rest without a fault.
[[maybe_unused]] static __device__ void check_wavefront() {
  static_assert(WARP_SIZE == VLLM_DCU_WAVEFRONT,
                "WARP_SIZE in device code is not the 64 lanes LLMM1 was verified for on a DCU: it would sum K only up to "
                "4096 and return wrong numbers. Upstream derives it from __GFX9__; this compiler does not define that "
                "macro for the target. Use a DTK whose compiler does (check: clang++ -x hip --offload-arch=gfx936 "
                "--cuda-device-only -dM -E), and do not define WARP_SIZE yourself.");
  #if defined(__AMDGCN_WAVEFRONT_SIZE__)
  static_assert(__AMDGCN_WAVEFRONT_SIZE__ == VLLM_DCU_WAVEFRONT,
                "The compiler generates code for a wavefront other than 64 lanes; LLMM1 was verified for 64. Remove "
                "-mno-wavefrontsize64 from the HIP flags.");
  #endif
}
}  // namespace vllm_dcu
#endif

torch::Tensor dcu_LLMM1(at::Tensor& in_a, at::Tensor& in_b,
                        const int64_t rows_per_block) {
  // The dispatcher brings us here when either argument is on a GPU; upstream's own function follows in_b.
  const at::Device device = in_b.is_cuda() ? in_b.device() : in_a.device();
  const auto* properties = at::cuda::getDeviceProperties(device.index());

  if (!vllm_dcu::is_dcu_arch(properties->gcnArchName)) {
#if defined(VLLM_DCU_BESIDE_UPSTREAM)
    return ::LLMM1(in_a, in_b, rows_per_block);
#else
    TORCH_CHECK(false, "LLMM1: ", device, " is ", properties->gcnArchName,
                ", and this _rocm_C holds code for " VLLM_DCU_ARCHS
                " only; rebuild with PYTORCH_ROCM_ARCH naming that device.");
#endif
  }

  vllm_dcu::Llmm1Call call;
  call.a = vllm_dcu::operand("in_a", in_a);
  call.b = vllm_dcu::operand("in_b", in_b);
  call.rows_per_block = rows_per_block;
  call.wavefront = properties->warpSize;
  const std::string refusal = vllm_dcu::llmm1_refusal(call);
  TORCH_CHECK(refusal.empty(), "LLMM1: ", refusal, ".");

  // A grid of no blocks is a launch error, and an empty sum is zero.
  if (call.a.rows == 0 || call.a.cols == 0)
    return at::zeros({1, call.a.rows}, in_b.options());
  return vllm_dcu::selected::LLMM1(in_a, in_b, rows_per_block);
}
