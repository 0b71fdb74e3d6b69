# SPDX-License-Identifier: Apache-2.0
# Stand-in for torch's CMake package, for the audit only. The torch installed on a machine without ROCm is a CPU or CUDA
# build whose own package demands CUDA or describes no HIP. Headers come from that torch; the four HIP headers it lacks
# from the folder beside this file. A module linked this way is for inspection: it does not load.
set(Torch_FOUND TRUE)
set(Torch_VERSION "${AUDIT_TORCH_VERSION}")
add_library(torch INTERFACE IMPORTED)
set_target_properties(torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES
    "${CMAKE_CURRENT_LIST_DIR}/include;${AUDIT_TORCH_INCLUDE};${AUDIT_TORCH_INCLUDE}/torch/csrc/api/include;${AUDIT_HIP_INCLUDE}"
  INTERFACE_COMPILE_DEFINITIONS
    "C10_CUDA_NO_CMAKE_CONFIGURE_FILE;__HIP_PLATFORM_AMD__=1;USE_ROCM")
set(TORCH_LIBRARIES torch)
