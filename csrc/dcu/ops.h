// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

// out[N, M] = x[N, K] @ weight[M, K].T, bf16 or fp16, computed by the variant of that number (gemv_variants.h).
at::Tensor dcu_gemv(const at::Tensor& weight, const at::Tensor& x, int64_t variant);

// From now on the kernel counts its launches on the device of `on`, in replays of graphs that are captured from now on as well.
// Allocates, so it must not be called during a capture.
void dcu_gemv_count(const at::Tensor& on);

// One row for each (device, dtype, N, M, K, variant) that was launched and counted, and the launches; dtype as torch numbers
// them, and -1 where more kinds were launched than are told apart. Reads host memory alone: no call of the device.
at::Tensor dcu_gemv_launches();
