# SPDX-License-Identifier: Apache-2.0
# The one CMake statement of which devices are DCUs this project has native code for.
# The same set stands in csrc/rocm/dcu_arch.h and vllm/dcu/arch.py; a test parses all three.
set(DCU_ARCHS "gfx936")
