// SPDX-License-Identifier: Apache-2.0
// Declarations only, for the audit: what a HIP torch declares here and the audited units use.
#pragma once

#include <c10/core/Device.h>
#include <hip/hip_runtime.h>

#include <optional>

namespace c10::hip {
struct OptionalHIPGuardMasqueradingAsCUDA {
  explicit OptionalHIPGuardMasqueradingAsCUDA(std::optional<c10::Device>);
  ~OptionalHIPGuardMasqueradingAsCUDA();
};
struct HIPStreamMasqueradingAsCUDA {
  operator hipStream_t() const;
};
HIPStreamMasqueradingAsCUDA getCurrentHIPStreamMasqueradingAsCUDA(
    c10::DeviceIndex device_index = -1);
}  // namespace c10::hip

namespace at::hip {
using namespace c10::hip;
}  // namespace at::hip
