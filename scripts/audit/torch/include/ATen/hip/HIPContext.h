// SPDX-License-Identifier: Apache-2.0
// Declarations only, for the audit: what a HIP torch declares here and the audited units use.
#pragma once

#include <c10/core/Device.h>
#include <hip/hip_runtime.h>

namespace at::cuda {
hipDeviceProp_t* getCurrentDeviceProperties();
hipDeviceProp_t* getDeviceProperties(c10::DeviceIndex device);
}  // namespace at::cuda
