// SPDX-License-Identifier: Apache-2.0
#pragma once

// Not <torch/all.h>: the bindings of a DCU build need this one declaration, and parsing all of torch is their whole cost.
#include <ATen/core/Tensor.h>

// LLMM1 for a module that has code for a DCU: on a DCU the arguments are checked and the selected kernel is launched; on
// any other device upstream's LLMM1 runs untouched, where the build holds it. Shapes: in_a (M, K), in_b (1, K), result
// (1, M), all bf16 or all fp16.
at::Tensor dcu_LLMM1(at::Tensor& in_a, at::Tensor& in_b,
                        const int64_t rows_per_block);
