// SPDX-License-Identifier: Apache-2.0
// The bindings of _dcu_C, this project's own kernels.
#include <torch/library.h>

#include "core/registration.h"
#include "dcu/ops.h"

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("gemv(Tensor weight, Tensor x, int variant) -> Tensor");
  ops.impl("gemv", c10::kCUDA, &dcu_gemv);
  ops.def("gemv_count(Tensor on) -> ()");
  ops.impl("gemv_count", c10::kCUDA, &dcu_gemv_count);
  ops.def("gemv_launches() -> Tensor", &dcu_gemv_launches);
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
