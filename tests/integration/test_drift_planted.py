"""Each contract is seen to fail: a change is planted in the pinned release, and the drift scan must name it."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import pytest

from scripts.drift import contracts
from scripts.drift.contracts import arch_sites, arch_truth, build_set, environment, names, native_ops, overrides, pins, python_code, touches
from scripts.drift.contracts.model import BLOCK, INFO, REVIEW, Facts, Finding, Tree
from scripts.upstream.releases import read_pin
from tests.integration.upstream import edited, tree

ROCM = "vllm/platforms/rocm.py"
UTILS = "vllm/model_executor/layers/utils.py"
OPS = "vllm/_custom_ops.py"
ENVS = "vllm/envs.py"
CMAKE = "CMakeLists.txt"
BINDINGS = "csrc/rocm/torch_bindings.cpp"
SKINNY = "csrc/rocm/skinny_gemms.cu"


def pinned() -> Tree:
    return tree(read_pin().version)


@cache
def pinned_facts(contract: ModuleType) -> Facts:
    return Facts("pinned", tuple(contract.collect(pinned())))


def found(contract: ModuleType, planted: Tree) -> list[Finding]:
    return contract.judge(pinned_facts(contract), Facts("planted", tuple(contract.collect(planted))))  # type: ignore[no-any-return]


def plant(path: str, old: str, new: str) -> Tree:
    return edited(pinned(), {path: (old, new)})


PLANTS = {
    "a new predicate that matches the text gfx9": (
        arch_truth,
        (ROCM, '_ON_GFX950 = "gfx950" in _GCN_ARCH', '_ON_GFX950 = "gfx950" in _GCN_ARCH\n_ON_NEWTHING = "gfx9" in _GCN_ARCH'),
        (BLOCK, "rocm._ON_NEWTHING is new and true for gfx936"),
    ),
    "a known predicate that becomes a prefix test": (
        arch_truth,
        (ROCM, 'return any(gfx in _GCN_ARCH for gfx in ["gfx94", "gfx95", "gfx12"])', 'return _GCN_ARCH.startswith(("gfx9", "gfx12"))'),
        (BLOCK, "RocmPlatform.supports_fp8() is now true for gfx936"),
    ),
    "custom all-reduce by capability instead of by name": (
        arch_truth,
        (ROCM, 'return any(gfx in _GCN_ARCH for gfx in ["gfx94", "gfx95"])', "return cls.get_device_capability().major == 9"),
        (BLOCK, "RocmPlatform.use_custom_allreduce() is now true for gfx936"),
    ),
    "custom paged attention for every head size": (
        arch_truth,
        (ROCM, "    if _ON_GFX9:\n        return (", "    if not _ON_GFX1X:\n        return ("),
        (BLOCK, "rocm.use_rocm_custom_paged_attention() is now true for gfx936"),
    ),
    "AITER for every ROCm device": (
        arch_truth,
        ("vllm/_aiter_ops.py", "        return on_gfx9()\n    return False", "        return True\n    return False"),
        (BLOCK, "aiter.is_aiter_found_and_supported() is now true for gfx936"),
    ),
    "another attention backend by default": (
        arch_truth,
        (ROCM, "    backends = []\n", "    backends = [AttentionBackendEnum.ROCM_ATTN]\n"),
        (REVIEW, "changes from [TRITON_ATTN] to [ROCM_ATTN, TRITON_ATTN]"),
    ),
    "a platform file that cannot be executed": (
        arch_truth,
        (ROCM, '_ON_GFX950 = "gfx950" in _GCN_ARCH', "_ON_GFX950 = undefined_name"),
        (BLOCK, "does not run under the probe (NameError"),
    ),
    "an arch text in C++ that gfx936 contains": (
        arch_sites,
        (SKINNY, "#define LDS_SIZE 64 * 1024", '#define LDS_SIZE 64 * 1024\nstatic bool any9(const char* a) { return strstr(a, "gfx9"); }'),
        (REVIEW, "a new match on the text 'gfx9'"),
    ),
    "a condition that takes gfx936 in": (
        arch_sites,
        (
            UTILS,
            "    from vllm.platforms.rocm import on_gfx9, on_gfx950\n",
            "    from vllm.platforms.rocm import on_gfx9, on_gfx950, on_rocm\n    if on_rocm():\n        return weight\n",
        ),
        (REVIEW, "take gfx936 in by a predicate that is true for it"),
    ),
    "a new source in _rocm_C": (
        build_set,
        (CMAKE, '    "csrc/rocm/attention.cu")', '    "csrc/rocm/attention.cu"\n    "csrc/rocm/skinny_gemms_int9.cu")'),
        (BLOCK, "1 new source(s) in _rocm_C would be built for gfx936: skinny_gemms_int9.cu"),
    ),
    "compressed code objects": (
        build_set,
        (
            CMAKE,
            "# For CUDA and HIP builds also build the triton_kernels external package.",
            "target_compile_options(_rocm_C PRIVATE --offload-compress)",
        ),
        (REVIEW, "the audit cannot read them"),
    ),
    "a CMakeLists.txt that refuses": (
        build_set,
        (CMAKE, "# Supported AMD GPU architectures.", 'message(FATAL_ERROR "planted refusal")'),
        (BLOCK, "CMake does not evaluate for gfx936: planted refusal"),
    ),
    "an op with another name": (
        native_ops,
        (
            BINDINGS,
            '"LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> "',
            '"LLMM1v2(Tensor in_a, Tensor in_b, int rows_per_block) -> "',
        ),
        (BLOCK, "op _rocm_C::LLMM1 is gone"),
    ),
    "an op schema with swapped arguments": (
        native_ops,
        (
            BINDINGS,
            '"LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> "',
            '"LLMM1(Tensor in_b, Tensor in_a, int rows_per_block) -> "',
        ),
        (BLOCK, "op _rocm_C::LLMM1 is now LLMM1(Tensor in_b, Tensor in_a"),
    ),
    "an op behind a new guard": (
        native_ops,
        (BINDINGS, "  // Custom gemm op for matrix-vector multiplication", "#ifndef SOME_SWITCH\n#endif\n#if 1  // planted"),
        (BLOCK, "op _rocm_C::LLMM1 now stands under #if"),
    ),
    "a bound symbol that nothing defines": (
        native_ops,
        (BINDINGS, '  rocm_ops.impl("LLMM1", torch::kCUDA, &LLMM1);', '  rocm_ops.impl("LLMM1", torch::kCUDA, &LLMM1_moved);'),
        (BLOCK, "nothing that is built for gfx936 defines it"),
    ),
    "one digit in the kernel": (
        native_ops,
        (
            SKINNY,
            "torch::Tensor LLMM1(at::Tensor& in_a, at::Tensor& in_b,",
            "torch::Tensor LLMM1(at::Tensor& in_a, at::Tensor& in_b, int more,",
        ),
        (BLOCK, "the text of LLMM1 changed"),
    ),
    "another wave size": (
        native_ops,
        ("csrc/cuda_compat.h", "  #ifdef __GFX9__\n", "  #if defined(__GFX9__) && !defined(__gfx936__)\n"),
        (BLOCK, "the definition of WARP_SIZE changed as LLMM1's unit sees it"),
    ),
    "another helper of the kernel": (
        native_ops,
        (SKINNY, "  return __builtin_nontemporal_load(addr);", "  return __builtin_nontemporal_load(addr + 1);"),
        (BLOCK, "the text of helpers of LLGemm1_kernel changed"),
    ),
    "other hipify rules": (
        native_ops,
        ("cmake/hipify.py", "import argparse", "import argparse\nRENAMED = True"),
        (REVIEW, "cmake/hipify.py changed"),
    ),
    "swapped arguments in the call of the kernel": (
        python_code,
        (UTILS, "ops.LLMM1(weight, x_view, 4)", "ops.LLMM1(x_view, weight, 4)"),
        (BLOCK, "the arguments of a call of LLMM1 are in another order: weight, x_view, 4 -> x_view, weight, 4"),
    ),
    "swapped parameters of the op's Python side": (
        python_code,
        (
            OPS,
            "def LLMM1(a: torch.Tensor, b: torch.Tensor, rows_per_block: int)",
            "def LLMM1(b: torch.Tensor, a: torch.Tensor, rows_per_block: int)",
        ),
        (BLOCK, "LLMM1: parameters are in another order: a, b, rows_per_block -> b, a, rows_per_block"),
    ),
    "swapped parameters of the op we wrap": (
        touches,
        (
            UTILS,
            "def rocm_unquantized_gemm_impl(\n    x: torch.Tensor, weight: torch.Tensor,",
            "def rocm_unquantized_gemm_impl(\n    weight: torch.Tensor, x: torch.Tensor,",
        ),
        (BLOCK, "rocm_unquantized_gemm_impl: parameters are in another order"),
    ),
    "a changed default of what we call": (
        touches,
        (
            "vllm/utils/torch_utils.py",
            "    mutates_args: list[str] | None = None,\n    fake_impl",
            "    mutates_args: list[str] | None = (),\n    fake_impl",
        ),
        (REVIEW, "direct_register_custom_op: default(s) changed: mutates_args="),
    ),
    "a new required parameter": (
        python_code,
        (UTILS, "def dispatch_unquantized_gemm()", "def dispatch_unquantized_gemm(layer)"),
        (BLOCK, "dispatch_unquantized_gemm: new required parameter(s): layer"),
    ),
    "an early return before the kernel": (
        python_code,
        (
            UTILS,
            "    n = x.numel() // x.size(-1)\n    m = weight.shape[0]",
            "    if x.requires_grad:\n        return x\n    n = x.numel() // x.size(-1)\n    m = weight.shape[0]",
        ),
        (REVIEW, "1 new return(s) come before LLMM1's"),
    ),
    "the choice made once, at construction": (
        python_code,
        (
            "vllm/model_executor/layers/linear.py",
            "return dispatch_unquantized_gemm()(layer, x, layer.weight, bias)",
            "return self._gemm_impl(layer, x, layer.weight, bias)",
        ),
        (BLOCK, "the GEMM implementation is chosen elsewhere"),
    ),
    "another fake implementation in the registration": (
        python_code,
        (UTILS, "    fake_impl=rocm_unquantized_gemm_fake,", "    fake_impl=rocm_unquantized_gemm_meta,"),
        (BLOCK, "the registration of the op changed"),
    ),
    "a parameter that our override of a platform method does not take": (
        overrides,
        (
            ROCM,
            '        dtype: torch.dtype,\n        backend: "AttentionBackendEnum | None" = None,',
            '        dtype: torch.dtype,\n        layers: int = 1,\n        backend: "AttentionBackendEnum | None" = None,',
        ),
        (BLOCK, "our override of get_vit_attn_backend does not take layers, which upstream passes"),
    ),
    "swapped parameters of a platform method that we override": (
        overrides,
        (
            ROCM,
            "        head_size: int,\n        dtype: torch.dtype,\n        backend",
            "        dtype: torch.dtype,\n        head_size: int,\n        backend",
        ),
        (BLOCK, "our override of get_vit_attn_backend has its parameters in another order"),
    ),
    "a platform method that is gone under our override": (
        touches,
        (ROCM, "    def is_fully_connected(cls, physical_device_ids", "    def are_connected(cls, physical_device_ids"),
        (BLOCK, "has no is_fully_connected"),
    ),
    "a renamed variable": (
        environment,
        (ENVS, '    "VLLM_ROCM_USE_SKINNY_GEMM": lambda: (', '    "VLLM_ROCM_SKINNY": lambda: ('),
        (BLOCK, "VLLM_ROCM_USE_SKINNY_GEMM is gone or renamed"),
    ),
    "a changed default of a variable": (
        environment,
        (ENVS, 'os.getenv("VLLM_ROCM_USE_SKINNY_GEMM", "True")', 'os.getenv("VLLM_ROCM_USE_SKINNY_GEMM", "False")'),
        (REVIEW, "the default of VLLM_ROCM_USE_SKINNY_GEMM changes from true to false"),
    ),
    "another C++ standard": (
        pins,
        (CMAKE, "set(CMAKE_CXX_STANDARD 17)", "set(CMAKE_CXX_STANDARD 26)"),
        (BLOCK, "CMAKE_CXX_STANDARD changes from 17 to 26"),
    ),
    "the reference device's Python left out": (
        pins,
        (CMAKE, 'set(PYTHON_SUPPORTED_VERSIONS "3.10" ', "set(PYTHON_SUPPORTED_VERSIONS "),
        (REVIEW, "Python 3.10, the reference device's, is out"),
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_the_scan_finds(name: str) -> None:
    contract, (path, old, new), (level, phrase) = PLANTS[name]
    if "on_rocm" in new:
        base = edited(pinned(), {ROCM: ("def on_gfx9() -> bool:", "def on_rocm() -> bool:\n    return True\n\n\ndef on_gfx9() -> bool:")})
        planted = edited(base, {path: (old, new)})
    else:
        planted = plant(path, old, new)
    rows = found(contract, planted)
    assert [(f.level, f.path) for f in rows if phrase in f.sentence and f.line > 0], [f"{f.level} {f.sentence}" for f in rows]
    assert level in {f.level for f in rows if phrase in f.sentence}


def test_a_name_of_ours_that_upstream_takes_is_found() -> None:
    planted = edited(
        pinned(),
        {ENVS: ("import functools\n", "import functools  # VLLM_DCU_GATE\n")},
        {"vllm/dcu/__init__.py": "", "csrc/rocm/dcu_x.cu": ""},
    )
    rows = found(names, planted)
    assert {f.level for f in rows} == {BLOCK}
    assert {f.path for f in rows} == {ENVS, "vllm/dcu/__init__.py", "csrc/rocm/dcu_x.cu"}


@pytest.mark.parametrize("contract", contracts.CONTRACTS, ids=lambda c: c.ID)
def test_the_pinned_release_has_no_finding_against_itself(contract: ModuleType) -> None:
    assert contract.judge(pinned_facts(contract), pinned_facts(contract)) == []


def test_docstrings_comments_and_layout_are_no_finding() -> None:
    planted = edited(
        pinned(),
        {
            UTILS: (
                "    from vllm.platforms.rocm import on_gfx9, on_gfx950\n",
                '    """A docstring."""\n    # a comment\n\n    from vllm.platforms.rocm import on_gfx9, on_gfx950\n',
            ),
            ROCM: ("    Get GCN arch via amdsmi (no CUDA init), fallback to torch.cuda.", "    Say it in other words."),
            BINDINGS: ("  // Custom gemm op for matrix-vector multiplication", "  // other words"),
            CMAKE: ("# Supported AMD GPU architectures.", "# AMD, other words."),
        },
    )
    for contract in (c for c in contracts.CONTRACTS if c is not names):
        assert found(contract, planted) == [], contract.__name__


def test_a_new_predicate_that_is_false_for_gfx936_is_only_for_the_record() -> None:
    planted = plant(ROCM, '_ON_GFX950 = "gfx950" in _GCN_ARCH', '_ON_GFX950 = "gfx950" in _GCN_ARCH\n_ON_GFX90A = "gfx90a" in _GCN_ARCH')
    assert [(f.level, f.sentence) for f in found(arch_truth, planted)] == [(INFO, "1 new predicate(s), all false for gfx936: _ON_GFX90A.")]


def test_what_the_probe_cannot_know_is_said_to_be_open_not_guessed() -> None:
    planted = plant(
        ROCM, '    return any(gfx in _GCN_ARCH for gfx in ["gfx94", "gfx95", "gfx12"])', "    return torch.some.thing() and True"
    )
    rows = found(arch_truth, planted)
    assert [f.level for f in rows] == [REVIEW]
    assert "not evaluated" in rows[0].sentence
