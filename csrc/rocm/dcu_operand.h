// SPDX-License-Identifier: Apache-2.0
// A tensor as the checks of dcu_contract.h see it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "dcu_contract.h"

namespace vllm_dcu {

inline Operand operand(const char* name, const at::Tensor& tensor) {
  Operand t;
  t.name = name;
  t.dim = tensor.dim();
  if (t.dim == 2) {
    t.rows = tensor.size(0);
    t.cols = tensor.size(1);
  }
  t.dtype = c10::toString(tensor.scalar_type());
  t.reduced_float = tensor.scalar_type() == at::kBFloat16 ||
                    tensor.scalar_type() == at::kHalf;
  t.device = tensor.device().str();
  t.on_gpu = tensor.is_cuda();
  t.strided = tensor.layout() == at::kStrided;
  t.contiguous = t.strided && tensor.is_contiguous();
  if (t.strided && t.on_gpu)
    t.address = reinterpret_cast<std::uint64_t>(tensor.data_ptr());
  t.wants_grad = at::GradMode::is_enabled() && tensor.requires_grad();
  return t;
}

}  // namespace vllm_dcu
