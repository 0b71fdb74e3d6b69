# SPDX-License-Identifier: Apache-2.0
# Native code for Hygon DCUs: which archs there are, which lists are refused, and the split of _rocm_C.
#
# Of upstream's _rocm_C only the LLMM1 path is compiled for a DCU: the other kernels either contain instructions a DCU
# lacks (v_dot2c_f32_f16, MFMA) or compile to shells that abort on the device. So for a DCU
#   * upstream's LLMM1 text is selected, not copied: its region of csrc/rocm/skinny_gemms.cu is cut out at configure
#     time into the build tree and compiled through csrc/rocm/dcu_llmm1.cu, for the DCU archs alone;
#   * every other device unit of _rocm_C is compiled for the other archs alone, unchanged, or not at all.
# An arch list without a DCU leaves upstream's targets, sources and flags exactly as they are.

# The one CMake statement of the DCU archs. The same set stands in csrc/rocm/dcu_arch.h and vllm/dcu/arch.py; a test
# parses all three.
set(DCU_ARCHS "gfx936")

# For the audit only, which has no compiler for a DCU: -DVLLM_DCU_STAND_IN=gfx906 treats a public arch as if it were the
# DCU. What such a build shows is about the stand-in; its run-time check (dcu_arch.h) still knows the real DCUs alone.
if(VLLM_DCU_STAND_IN)
  message(WARNING "DCU: ${VLLM_DCU_STAND_IN} stands in for a DCU; this build is for inspection, not for use.")
  set(DCU_ARCHS ${VLLM_DCU_STAND_IN})
endif()

# sha256 of the region selected from skinny_gemms.cu, as reviewed and audited. It was the same in 0.17.1 to 0.33.0.
set(VLLM_DCU_REGION_SHA256 "7a9a17f7bb4d05a3bbb40d0a36dc5b1ab7c70768783ab9b14a0cc0f753e2b6b3")

# C++ standards that our unit's own text has been compiled as (tests/native/test_contract.py). Upstream's standard is every unit's.
set(VLLM_DCU_CXX_STANDARDS 17 20)

list(APPEND HIP_SUPPORTED_ARCHS ${DCU_ARCHS})

# Sources that a DCU adds to _rocm_C; empty for every list without one.
set(VLLM_DCU_ROCM_SRC)

#
# Upstream intersects PYTORCH_ROCM_ARCH with its own list and drops the rest without a word, so that a typo, a comma
# or a feature suffix silently removes a device from the build. Here every name must be known.
#
function(dcu_check_arch_list OUT_HAS_DCU)
  set(${OUT_HAS_DCU} FALSE PARENT_SCOPE)
  if(NOT DEFINED ENV{PYTORCH_ROCM_ARCH})
    return()
  endif()
  set(_list "$ENV{PYTORCH_ROCM_ARCH}")
  string(JOIN " " _known ${HIP_SUPPORTED_ARCHS})
  if(_list STREQUAL "")
    message(FATAL_ERROR
      "PYTORCH_ROCM_ARCH is set but empty, so nothing would be built for any device. "
      "Unset it or name the archs, separated by semicolons: PYTORCH_ROCM_ARCH=\"gfx936\".")
  endif()
  if(_list MATCHES "[, \t]")
    message(FATAL_ERROR
      "PYTORCH_ROCM_ARCH=\"${_list}\" has a comma or a blank in it; CMake would take the whole for one unknown arch and "
      "drop it. Separate archs by semicolons: PYTORCH_ROCM_ARCH=\"gfx906;gfx936\".")
  endif()
  foreach(_arch IN LISTS _list)
    if(_arch IN_LIST HIP_SUPPORTED_ARCHS)
      if(_arch IN_LIST DCU_ARCHS)
        set(${OUT_HAS_DCU} TRUE PARENT_SCOPE)
      endif()
    elseif(_arch MATCHES ":")
      message(FATAL_ERROR
        "PYTORCH_ROCM_ARCH=\"${_list}\" names '${_arch}' with a feature suffix, which would be dropped as unknown. "
        "Write the bare name, for example gfx936 for gfx936:sramecc+:xnack-.")
    else()
      message(FATAL_ERROR
        "PYTORCH_ROCM_ARCH=\"${_list}\" names '${_arch}', which this build does not know; it would be dropped and the "
        "device left without kernels. Remove it. Known archs: ${_known}.")
    endif()
  endforeach()
endfunction()

#
# One toolchain for the whole build. The environment's ROCM_PATH (what /opt/dtk/env.sh sets) wins over the built-in
# default; -DROCM_PATH=... on the command line wins over both. A macro: it sets the caller's ROCM_PATH.
#
macro(dcu_respect_toolchain_path)
  if(DEFINED ENV{ROCM_PATH} AND ROCM_PATH STREQUAL "/opt/rocm")
    set(ROCM_PATH "$ENV{ROCM_PATH}" CACHE PATH "ROCm installation prefix" FORCE)
    set(ROCM_PATH "$ENV{ROCM_PATH}")
  endif()
  if(NOT IS_DIRECTORY "${ROCM_PATH}")
    message(FATAL_ERROR
      "ROCM_PATH is '${ROCM_PATH}', which is not a folder, so the DCU toolchain cannot be found. "
      "Run 'source /opt/dtk/env.sh' first, or pass -DROCM_PATH=/path/to/dtk.")
  endif()
  message(STATUS "DCU toolchain: ROCM_PATH=${ROCM_PATH}")
endmacro()

#
# Hipified files of another tree. In the source tree they are refused, since hipify skips its own output and would
# pass them on as they are. In the build tree a file whose content changed without a newer time (an unpacked older or
# newer release) is invisible to ninja: there everything made from the former tree is removed.
#
function(dcu_refuse_stale_hipify)
  set(_csrc "${CMAKE_CURRENT_SOURCE_DIR}/csrc")
  file(GLOB_RECURSE _files LIST_DIRECTORIES false "${_csrc}/*")
  set(_manifest "${CMAKE_CURRENT_BINARY_DIR}/dcu_csrc_manifest.txt")
  set(_old "")
  if(EXISTS "${_manifest}")
    file(READ "${_manifest}" _old)
  endif()
  set(_new "")
  set(_stale FALSE)
  foreach(_file IN LISTS _files)
    if(_file MATCHES "\\.(hip|cu|cuh|cpp|h|hpp)$")
      file(READ "${_file}" _head LIMIT 64)
      if(_file MATCHES "\\.hip$" OR _head MATCHES "automatically generated by hipify")
        message(FATAL_ERROR
          "${_file} is hipify's output, left inside the sources by an earlier build; it would be compiled in place of "
          "today's source. Delete it, or start from a clean tree.")
      endif()
    endif()
    file(SHA256 "${_file}" _sum)
    file(RELATIVE_PATH _name "${_csrc}" "${_file}")
    string(APPEND _new "${_sum} ${_name}\n")
    string(FIND "${_old}" "${_sum} ${_name}\n" _same)
    if(_same EQUAL -1 AND NOT _old STREQUAL "" AND NOT "${_file}" IS_NEWER_THAN "${_manifest}")
      set(_stale TRUE)
    endif()
  endforeach()
  string(REGEX MATCHALL "[^\n]+" _old_lines "${_old}")
  foreach(_line IN LISTS _old_lines)
    string(SUBSTRING "${_line}" 65 -1 _name)
    if(NOT EXISTS "${_csrc}/${_name}")
      set(_stale TRUE)
    endif()
  endforeach()
  if(_stale OR (_old STREQUAL "" AND EXISTS "${CMAKE_CURRENT_BINARY_DIR}/csrc"))
    message(STATUS "DCU: the build tree was made from other sources; its hipified files and objects are removed")
    file(GLOB _objects "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/*.dir/csrc")
    file(REMOVE_RECURSE "${CMAKE_CURRENT_BINARY_DIR}/csrc" ${_objects})
  endif()
  if(NOT _old STREQUAL _new)
    file(WRITE "${_manifest}" "${_new}")
  endif()
endfunction()

# The text of `FILE` from the first occurrence of `BEGIN` to the end of the first `END` after `THEN`. Refuses when an
# anchor is missing or not unique: then upstream has moved the code and a person must look.
function(dcu_cut OUT_TEXT OUT_LINE FILE BEGIN THEN END)
  file(READ "${FILE}" _text)
  foreach(_anchor IN ITEMS "${BEGIN}" "${THEN}")
    string(FIND "${_text}" "${_anchor}" _first)
    string(FIND "${_text}" "${_anchor}" _last REVERSE)
    if(_first EQUAL -1 OR NOT _first EQUAL _last)
      message(FATAL_ERROR
        "DCU: ${FILE} does not hold '${_anchor}' exactly once, so LLMM1 cannot be selected from it: upstream has "
        "reorganised the file. Adapt the anchors in cmake/dcu.cmake to the new text and run the audit.")
    endif()
  endforeach()
  string(FIND "${_text}" "${BEGIN}" _start)
  string(FIND "${_text}" "${THEN}" _then)
  string(SUBSTRING "${_text}" ${_then} -1 _tail)
  string(FIND "${_tail}" "${END}" _end)
  if(_then LESS _start OR _end EQUAL -1)
    message(FATAL_ERROR
      "DCU: in ${FILE} '${THEN}' is not followed by its end or stands before '${BEGIN}'; upstream has reorganised the "
      "file. Adapt the anchors in cmake/dcu.cmake to the new text and run the audit.")
  endif()
  string(LENGTH "${END}" _length)
  math(EXPR _size "${_then} - ${_start} + ${_end} + ${_length}")
  string(SUBSTRING "${_text}" ${_start} ${_size} _cut)
  string(SUBSTRING "${_text}" 0 ${_start} _before)
  string(REGEX MATCHALL "\n" _newlines "${_before}")
  list(LENGTH _newlines _line)
  math(EXPR _line "${_line} + 1")
  set(${OUT_TEXT} "${_cut}" PARENT_SCOPE)
  set(${OUT_LINE} ${_line} PARENT_SCOPE)
endfunction()

function(dcu_write FILE TEXT)
  if(EXISTS "${FILE}")
    file(READ "${FILE}" _present)
    if(_present STREQUAL TEXT)
      return()
    endif()
  endif()
  file(WRITE "${FILE}" "${TEXT}")
endfunction()

#
# Select LLMM1 from upstream's unit into BUILD/csrc/rocm/dcu_llmm1_region.cuh, and the declaration of its op from
# upstream's bindings into BUILD/csrc/rocm/dcu_llmm1_schema.inc.
#
# The region is wrapped in a namespace of its own. Without it a mixed build would define upstream's symbols twice; worse,
# the kernels' host handles are weak template symbols: the linker would merge them, the HIP runtime would register one
# handle for two code objects and keep the first, and one of the two archs would find no kernel at launch.
#
function(dcu_select_llmm1)
  set(_unit "${CMAKE_CURRENT_SOURCE_DIR}/csrc/rocm/skinny_gemms.cu")
  set(_bindings "${CMAKE_CURRENT_SOURCE_DIR}/csrc/rocm/torch_bindings.cpp")
  dcu_cut(_region _line "${_unit}" "template <typename T>\nstruct scalar {};" "torch::Tensor LLMM1(" "\n}\n")
  dcu_cut(_schema _schema_line "${_bindings}" "rocm_ops.def(\n      \"LLMM1(" "rocm_ops.def(\n      \"LLMM1(" ");\n")

  string(SHA256 _sum "${_region}")
  if(NOT _sum STREQUAL VLLM_DCU_REGION_SHA256 AND NOT _sum STREQUAL "${VLLM_DCU_ACCEPT_REGION}")
    message(FATAL_ERROR
      "DCU: upstream's LLMM1 has changed: the region of csrc/rocm/skinny_gemms.cu from line ${_line} has sha256 ${_sum}, "
      "the one that was audited ${VLLM_DCU_REGION_SHA256}. Read the change, run the audit, then record the new sum in "
      "cmake/dcu.cmake; to build it once unreviewed pass -DVLLM_DCU_ACCEPT_REGION=${_sum}.")
  endif()
  string(REGEX MATCHALL "__global__" _kernels "${_region}")
  list(LENGTH _kernels _count)
  if(NOT _count EQUAL 1 OR _region MATCHES "asm[ \t]*(volatile)?[ \t]*\\(|__builtin_amdgcn_(mfma|fdot2|sdot)")
    message(FATAL_ERROR
      "DCU: the selected region holds ${_count} kernels (1 expected) or inline instructions; only LLMM1 may be compiled "
      "for a DCU. Adapt the anchors in cmake/dcu.cmake.")
  endif()

  # Upstream's own includes, hoisted: inside the namespace they would declare the world there. Without those that only the
  # other kernels need and that bring all of torch with them: parsing it was most of this unit's compile time.
  file(STRINGS "${_unit}" _includes REGEX "^#include ")
  list(FILTER _includes EXCLUDE REGEX "torch/all\\.h|dispatch_utils\\.h|fp8/common\\.cuh|batch_invariant\\.hpp")
  list(PREPEND _includes "#include <torch/types.h>" "#include <ATen/Dispatch.h>")
  string(JOIN "\n" _hoisted ${_includes})
  dcu_write("${CMAKE_CURRENT_BINARY_DIR}/csrc/rocm/dcu_llmm1_region.cuh"
"// Selected by cmake/dcu.cmake from csrc/rocm/skinny_gemms.cu (region sha256 ${_sum}). Do not edit.
#pragma once

${_hoisted}

namespace vllm_dcu::selected {
#line ${_line} \"csrc/rocm/skinny_gemms.cu\"
${_region}
}  // namespace vllm_dcu::selected
")
  dcu_write("${CMAKE_CURRENT_BINARY_DIR}/csrc/rocm/dcu_llmm1_schema.inc" "${_schema}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_unit}" "${_bindings}")
  message(STATUS "DCU: selected LLMM1 from csrc/rocm/skinny_gemms.cu:${_line}, sha256 ${_sum}")
endfunction()

# Take an object library out of a module and out of the build.
function(dcu_unlink MODULE LIBRARY)
  get_target_property(_linked ${MODULE} LINK_LIBRARIES)
  if(_linked)
    list(REMOVE_ITEM _linked ${LIBRARY})
    set_property(TARGET ${MODULE} PROPERTY LINK_LIBRARIES "${_linked}")
  endif()
  set_target_properties(${LIBRARY} PROPERTIES EXCLUDE_FROM_ALL TRUE)
  message(STATUS "DCU: ${LIBRARY} is not built: it has no code for a DCU")
endfunction()

#
# Runs after upstream's CMakeLists.txt, when _rocm_C exists: route its device units.
#
# A mixed list ("gfx906;gfx936") makes one module with two host functions: ::LLMM1 launches upstream's kernel, which has
# code objects for the other archs; vllm_dcu::selected::LLMM1 launches the selected one, which has them for the DCUs.
# Which of the two runs is the device's matter, known only at run time, so the op is bound to dcu_LLMM1 (dcu_llmm1.cu),
# which asks the tensor's device. Upstream's units are compiled as they are: only the name in the bindings is redirected.
#
function(dcu_split_rocm_extension)
  if(NOT CMAKE_CXX_STANDARD IN_LIST VLLM_DCU_CXX_STANDARDS)
    message(FATAL_ERROR
      "DCU: upstream compiles as C++ ${CMAKE_CXX_STANDARD}; our unit was compiled as ${VLLM_DCU_CXX_STANDARDS} only. Compile it "
      "so, run the audit, then name the standard in cmake/dcu.cmake.")
  endif()
  if(NOT TARGET _rocm_C)
    message(FATAL_ERROR
      "DCU: upstream's build no longer defines the target _rocm_C, so LLMM1 has no place to go; adapt cmake/dcu.cmake.")
  endif()
  set(_dcu ${VLLM_GPU_ARCHES})
  set(_others ${VLLM_GPU_ARCHES})
  list(REMOVE_ITEM _others ${DCU_ARCHS})
  if(_others)
    list(REMOVE_ITEM _dcu ${_others})
  endif()
  get_target_property(_sources _rocm_C SOURCES)
  set(_unit ${_sources})
  list(FILTER _unit INCLUDE REGEX "csrc/rocm/dcu_llmm1\\.hip$")
  if(NOT _dcu OR NOT _unit)
    message(FATAL_ERROR
      "DCU: the arch list names a DCU, yet _rocm_C has archs '${VLLM_GPU_ARCHES}' and no dcu_llmm1 unit; upstream has "
      "changed how it collects archs or sources. Adapt cmake/dcu.cmake.")
  endif()

  # 0.33.0 compresses the device code of _rocm_C; what was compiled for a DCU must stay readable (audit, codeobjects.py).
  get_target_property(_options _rocm_C COMPILE_OPTIONS)
  string(REPLACE ";--offload-compress" "" _readable "${_options}")

  # 0.27.0 moved the skinny units into a target of their own, with _rocm_C's archs.
  get_property(_targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  foreach(_target IN LISTS _targets)
    get_target_property(_type ${_target} TYPE)
    get_target_property(_units ${_target} SOURCES)
    if(_type STREQUAL "OBJECT_LIBRARY" AND _units MATCHES "csrc/rocm/[^/;]+\\.hip")
      if(_others)
        set_target_properties(${_target} PROPERTIES HIP_ARCHITECTURES "${_others}")
      else()
        dcu_unlink(_rocm_C ${_target})
      endif()
    endif()
  endforeach()

  if(NOT _others)
    # The other ops have no code for a DCU, so they are not bound either: a call fails by name.
    set_property(TARGET _rocm_C PROPERTY SOURCES csrc/rocm/dcu_bindings.cpp ${_unit})
    set_property(TARGET _rocm_C PROPERTY COMPILE_OPTIONS "${_readable}")
  else()
    list(REMOVE_ITEM _sources ${_unit})
    add_library(_rocm_C_dcu OBJECT ${_unit})
    foreach(_property IN ITEMS INCLUDE_DIRECTORIES COMPILE_OPTIONS COMPILE_DEFINITIONS LINK_LIBRARIES)
      get_target_property(_value _rocm_C ${_property})
      if(_value)
        set_property(TARGET _rocm_C_dcu PROPERTY ${_property} "${_value}")
      endif()
    endforeach()
    get_target_property(_hipify _rocm_C MANUALLY_ADDED_DEPENDENCIES)
    add_dependencies(_rocm_C_dcu ${_hipify})
    set_property(TARGET _rocm_C_dcu PROPERTY COMPILE_OPTIONS "${_readable}")
    set_target_properties(_rocm_C_dcu PROPERTIES HIP_ARCHITECTURES "${_dcu}" POSITION_INDEPENDENT_CODE ON)
    target_compile_definitions(_rocm_C_dcu PRIVATE VLLM_DCU_BESIDE_UPSTREAM)

    set_property(TARGET _rocm_C PROPERTY SOURCES ${_sources} $<TARGET_OBJECTS:_rocm_C_dcu>)
    set_target_properties(_rocm_C PROPERTIES HIP_ARCHITECTURES "${_others}")
    set_property(SOURCE csrc/rocm/torch_bindings.cpp APPEND PROPERTY COMPILE_DEFINITIONS LLMM1=dcu_LLMM1)
  endif()
  if(VLLM_DCU_STAND_IN)
    set_property(SOURCE ${_unit} APPEND PROPERTY COMPILE_DEFINITIONS VLLM_DCU_STAND_IN)
  endif()
  dcu_check_routing("${_unit}")
  dcu_add_own_kernels("${_dcu}" "${_readable}")
  message(STATUS "DCU: _rocm_C has LLMM1 for ${_dcu}; all of upstream's for '${_others}'")
endfunction()

#
# _dcu_C: this project's own kernels, for the DCU archs of the list alone. It is compiled with _rocm_C's flags and shares no object
# with it. The sources are HIP as they stand: nothing of upstream's hipify step, whose shape changes between releases, is needed.
# DCU_KERNELS=0 in the environment leaves it out.
#
function(dcu_add_own_kernels ARCHS OPTIONS)
  if("$ENV{DCU_KERNELS}" STREQUAL "0")
    message(STATUS "DCU: _dcu_C is left out (DCU_KERNELS=0)")
    return()
  endif()
  set_source_files_properties(csrc/dcu/gemv.cu PROPERTIES LANGUAGE HIP)
  Python_add_library(_dcu_C MODULE USE_SABI 3 WITH_SOABI csrc/dcu/bindings.cpp csrc/dcu/gemv.cu)
  foreach(_property IN ITEMS INCLUDE_DIRECTORIES COMPILE_DEFINITIONS LINK_LIBRARIES)
    get_target_property(_value _rocm_C ${_property})
    if(_value)
      list(TRANSFORM _value REPLACE "TORCH_EXTENSION_NAME=_rocm_C" "TORCH_EXTENSION_NAME=_dcu_C")
      set_property(TARGET _dcu_C PROPERTY ${_property} "${_value}")
    endif()
  endforeach()
  # Before the build tree's copy of the headers, which hipify makes for other targets.
  target_include_directories(_dcu_C BEFORE PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/csrc")
  set_property(TARGET _dcu_C PROPERTY COMPILE_OPTIONS "${OPTIONS}")
  set_target_properties(_dcu_C PROPERTIES HIP_ARCHITECTURES "${ARCHS}" EXCLUDE_FROM_ALL TRUE)
  if(VLLM_DCU_STAND_IN)
    target_compile_definitions(_dcu_C PRIVATE VLLM_DCU_STAND_IN)
  endif()
  install(TARGETS _dcu_C LIBRARY DESTINATION vllm COMPONENT _dcu_C OPTIONAL)
  message(STATUS "DCU: _dcu_C has this project's kernels for ${ARCHS}")
endfunction()

# No device unit of csrc/rocm but ours may be left with a DCU among its archs, in whatever target upstream puts it.
function(dcu_check_routing UNIT)
  get_property(_targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  foreach(_target IN LISTS _targets)
    get_target_property(_archs ${_target} HIP_ARCHITECTURES)
    get_target_property(_sources ${_target} SOURCES)
    get_target_property(_left_out ${_target} EXCLUDE_FROM_ALL)
    set(_for_dcu FALSE)
    foreach(_arch IN LISTS DCU_ARCHS)
      if(_arch IN_LIST _archs)
        set(_for_dcu TRUE)
      endif()
    endforeach()
    foreach(_source IN LISTS _sources)
      if(_for_dcu AND NOT _left_out AND _source MATCHES "csrc/rocm/[^/]+\\.hip$" AND NOT _source STREQUAL UNIT)
        message(FATAL_ERROR
          "DCU: target ${_target} would compile ${_source} for ${_archs}; only LLMM1 may be compiled for a DCU. Upstream "
          "has added a unit or a target: route it in dcu_split_rocm_extension of cmake/dcu.cmake.")
      endif()
    endforeach()
  endforeach()
endfunction()

# Without PYTORCH_ROCM_ARCH the archs come from the devices found while HIP is enabled, after the sources are chosen.
function(dcu_refuse_detected_dcu)
  foreach(_arch IN LISTS CMAKE_HIP_ARCHITECTURES VLLM_GPU_ARCHES)
    string(REGEX REPLACE ":.*$" "" _base "${_arch}")
    if(_base IN_LIST DCU_ARCHS)
      message(FATAL_ERROR
        "A DCU (${_arch}) was detected, but PYTORCH_ROCM_ARCH does not name it and the split of _rocm_C follows that list. "
        "Set PYTORCH_ROCM_ARCH=\"${_base}\" and configure again.")
    endif()
  endforeach()
endfunction()

if(VLLM_TARGET_DEVICE STREQUAL "rocm")
  dcu_check_arch_list(VLLM_HAS_DCU)
  if(VLLM_HAS_DCU)
    dcu_respect_toolchain_path()
    dcu_refuse_stale_hipify()
    dcu_select_llmm1()
    set(VLLM_DCU_ROCM_SRC "csrc/rocm/dcu_llmm1.cu")
    cmake_language(DEFER CALL dcu_split_rocm_extension)
  elseif(NOT DEFINED ENV{PYTORCH_ROCM_ARCH})
    cmake_language(DEFER CALL dcu_refuse_detected_dcu)
  endif()
endif()
