// SPDX-License-Identifier: Apache-2.0
// The one C++ statement of which devices are DCUs this project has native code for.
// The same set stands in cmake/dcu.cmake and vllm/dcu/arch.py; a test parses all three.
#pragma once

#include <cstddef>
#include <string>

// Semicolon-separated, exact base names: a suffix such as ":sramecc+:xnack-" is not part of the name.
#define VLLM_DCU_ARCHS "gfx936"

// Lanes of a wavefront on every arch named above. LLMM1's last stage sums at most 16 wavefronts, so
// this number decides which K is computed in full: 16 * 64 * 8 = 8192.
#define VLLM_DCU_WAVEFRONT 64

// Defined while a compiler makes device code for one of those archs.
#if defined(__gfx936__)
  #define VLLM_DCU_DEVICE_CODE 1
#endif

namespace vllm_dcu {

// True for "gfx936" and "gfx936:sramecc+:xnack-"; false for "gfx9360", "gfx93", "GFX936" and "".
inline bool is_dcu_arch(const std::string& gcn_arch_name) {
  const std::string base = gcn_arch_name.substr(0, gcn_arch_name.find(':'));
  if (base.empty()) return false;
  const std::string archs = VLLM_DCU_ARCHS;
  for (std::size_t begin = 0; begin <= archs.size();) {
    std::size_t end = archs.find(';', begin);
    if (end == std::string::npos) end = archs.size();
    if (archs.compare(begin, end - begin, base) == 0) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace vllm_dcu
