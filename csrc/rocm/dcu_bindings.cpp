// SPDX-License-Identifier: Apache-2.0
// The bindings of a _rocm_C built for DCUs alone. Only LLMM1 is bound: any other op of torch.ops._rocm_C has no code for
// this device, and a call to it fails by name in Python instead of aborting in a kernel.
#include <torch/library.h>

#include "core/registration.h"
#include "rocm/dcu_ops.h"

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, rocm_ops) {
// Upstream's own declaration of the op, selected by cmake/dcu.cmake from csrc/rocm/torch_bindings.cpp.
#include "rocm/dcu_llmm1_schema.inc"
  rocm_ops.impl("LLMM1", c10::kCUDA, &dcu_LLMM1);
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
