"""Whole kinds of drift, planted in the newest known release: each was silent once, and each is caught by name."""

from __future__ import annotations

import re
from functools import cache
from types import ModuleType

import pytest

from scripts.drift import contracts, hooks, ours
from scripts.drift.contracts import arch_flow, build_set, environment, native_ops, python_code, touches, way
from scripts.drift.contracts.model import BLOCK, INFO, OPEN, REVIEW, Facts, Finding, Tree
from scripts.upstream.releases import read_pin, version_key
from tests.integration.upstream import edited, renamed, tree

NEWEST = max(read_pin().sdists, key=version_key)
LAYERS = "vllm/model_executor/layers/"
LINEAR, UTILS, HEAD, LOGITS = (LAYERS + f"{n}.py" for n in ("linear", "utils", "vocab_parallel_embedding", "logits_processor"))
PLATFORMS = "vllm/platforms/__init__.py"
DEFAULT = "from vllm.model_executor.layers.utils import default_unquantized_gemm"


@cache
def facts(contract: ModuleType) -> Facts:
    return Facts(NEWEST, tuple(contract.collect(tree(NEWEST))))


def found(contract: ModuleType, planted: Tree) -> list[Finding]:
    return contract.judge(facts(contract), Facts("planted", tuple(contract.collect(planted))))  # type: ignore[no-any-return]


#: name -> (contract, edits, level, phrase)
PLANTS: dict[str, tuple[ModuleType, dict[str, tuple[str, str]], str, str]] = {
    "the quant method takes another implementation on ROCm": (
        way,
        {
            LINEAR: (
                "        self._gemm_impl = dispatch_unquantized_gemm(linear_backend)\n",
                f"        {DEFAULT}\n\n        self._gemm_impl = dispatch_unquantized_gemm(linear_backend) if not current_platform.is_rocm() else default_unquantized_gemm\n",
            )
        },
        BLOCK,
        "a ReplicatedLinear's call does not arrive at the gate: the call goes to torch.nn.functional.linear",
    ),
    "apply is F.linear on ROCm": (
        way,
        {
            LINEAR: (
                "        return self._gemm_impl(layer, x, layer.weight, bias)",
                "        if current_platform.is_rocm():\n            return torch.nn.functional.linear(x, layer.weight, bias)\n        return self._gemm_impl(layer, x, layer.weight, bias)",
            )
        },
        BLOCK,
        "a RowParallelLinear's call does not arrive at the gate: the call goes to torch.nn.functional.linear",
    ),
    "one layer alone leaves the way": (
        way,
        {
            LINEAR: (
                "        output_parallel = self.quant_method.apply(self, input_parallel, bias_)",
                "        output_parallel = torch.nn.functional.linear(input_parallel, self.weight, bias_)",
            )
        },
        BLOCK,
        "a RowParallelLinear's call does not arrive at the gate",
    ),
    "the head's logits by a matrix product": (
        way,
        {
            LOGITS: (
                "            return lm_head.quant_method.apply(\n                lm_head, hidden_states, bias=embedding_bias\n            )",
                "            return torch.mm(hidden_states, lm_head.weight.t())",
            )
        },
        BLOCK,
        "a ParallelLMHead's call does not arrive at the gate: no operator is called",
    ),
    "weights padded after loading": (
        way,
        {
            LINEAR: (
                "        elif current_platform.is_rocm():\n            layer.weight.data = maybe_pad_weight_avoid_cache_aliasing(layer.weight.data)",
                "        elif current_platform.is_rocm():\n            layer.weight.data = torch.nn.functional.pad(layer.weight.data, (0, 64))[..., :-64]",
            )
        },
        BLOCK,
        "after loading the weight is torch.nn.functional.pad()[]",
    ),
    "weight and activation swapped": (
        way,
        {
            UTILS: (
                "    return torch.ops.vllm.rocm_unquantized_gemm(x, weight, bias)",
                "    return torch.ops.vllm.rocm_unquantized_gemm(weight, x, bias)",
            )
        },
        BLOCK,
        "the operator gets weight as x",
    ),
    "the implementation called without its operator": (
        way,
        {
            UTILS: (
                "    return torch.ops.vllm.rocm_unquantized_gemm(x, weight, bias)",
                "    return rocm_unquantized_gemm_impl(x, weight, bias)",
            )
        },
        BLOCK,
        "does not arrive at the gate",
    ),
    "a way that depends on what nobody knows here": (
        way,
        {
            LINEAR: (
                "        return self._gemm_impl(layer, x, layer.weight, bias)",
                "        if torch.cuda.get_device_stream_count():\n            return x\n        return self._gemm_impl(layer, x, layer.weight, bias)",
            )
        },
        OPEN,
        "not evaluated: the way of ReplicatedLinear",
    ),
    "a second operator of the implementation": (
        way,
        {
            UTILS: (
                "def dispatch_unquantized_gemm(",
                'direct_register_custom_op(\n    op_name="rocm_gemm_two",\n    op_func=functools.partial(rocm_unquantized_gemm_impl),\n    fake_impl=rocm_unquantized_gemm_fake,\n)\n\n\ndef dispatch_unquantized_gemm(',
            )
        },
        BLOCK,
        "the implementation is registered a second time, as rocm_gemm_two",
    ),
    "a second operator by a function that calls it": (
        way,
        {
            UTILS: (
                "def dispatch_unquantized_gemm(",
                'def _two(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:\n    return rocm_unquantized_gemm_impl(x, weight, None)\n\n\ndirect_register_custom_op(op_name="rocm_gemm_two", op_func=_two)\n\n\ndef dispatch_unquantized_gemm(',
            )
        },
        BLOCK,
        "the implementation is registered a second time, as rocm_gemm_two",
    ),
    "another module takes the implementation": (
        python_code,
        {HEAD: ("import torch\n", "import torch\n\nfrom vllm.model_executor.layers.utils import rocm_unquantized_gemm_impl as gemm\n")},
        BLOCK,
        "names rocm_unquantized_gemm_impl itself",
    ),
    "the platform table names another function": (
        way,
        {PLATFORMS: ('    "rocm": rocm_platform_plugin,', '    "rocm": lambda: "vllm.platforms.rocm.RocmPlatform",')},
        BLOCK,
        "and not by rocm_platform_plugin, which our hook wraps: our platform is never chosen",
    ),
    "an entry point brings another platform": (
        way,
        {
            "pyproject.toml": (
                '[project.entry-points."vllm.general_plugins"]',
                '[project.entry-points."vllm.platform_plugins"]\nrocm_next = "vllm.platforms:_rocm_next"\n\n[project.entry-points."vllm.general_plugins"]',
            ),
            PLATFORMS: (
                "builtin_platform_plugins = {",
                'def _rocm_next() -> str:\n    return "vllm.platforms.rocm_next.NextPlatform"\n\n\nbuiltin_platform_plugins = {',
            ),
        },
        BLOCK,
        "the platform on a DCU is vllm.platforms.rocm_next.NextPlatform",
    ),
    "a graph pass that matches the operator": (
        python_code,
        {
            "vllm/compilation/passes/fusion/act_quant_fusion.py": (
                "import torch\n",
                "import torch\n\nFUSED = torch.ops.vllm.rocm_unquantized_gemm.default\n",
            )
        },
        REVIEW,
        "the graph pass act_quant_fusion.py matches or makes calls of rocm_unquantized_gemm by its name",
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_the_scan_finds(name: str) -> None:
    contract, edits, level, phrase = PLANTS[name]
    rows = found(contract, edited(tree(NEWEST), edits))
    assert {f.level for f in rows if phrase in f.sentence} == {level}, [f"{f.level} {f.sentence}" for f in rows]


#: name -> (what is renamed everywhere, contract, level, phrase)
RENAMES: dict[str, tuple[str, ModuleType, str]] = {
    "the field that our second lock writes": (
        "disable_custom_all_reduce",
        touches,
        "writes vllm.config.VllmConfig.parallel_config.disable_custom_all_reduce: ParallelConfig",
    ),
    "the config that holds it": ("parallel_config", touches, "VllmConfig.parallel_config"),
    "a method that we override": ("use_custom_allreduce", touches, "overrides vllm.platforms.rocm.RocmPlatform.use_custom_allreduce"),
    "a method that we override and call": ("verify_quantization", touches, "RocmPlatform.verify_quantization"),
    "the method class that our way beside a plugin knows by name": (
        "UnquantizedEmbeddingMethod",
        touches,
        "knows class.UnquantizedEmbeddingMethod: no layer's file defines a class UnquantizedEmbeddingMethod",
    ),
    "the same, on the way": (
        "UnquantizedLinearMethod",
        way,
        "beside a plugin it is not found: its method is UnquantizedLinearMethod_renamed",
    ),
    "the moment at which that way is taken": ("process_weights_after_loading", touches, "model_loader.utils.process_weights_after_loading"),
    "the class that we extend": ("RocmPlatform", touches, "vllm.platforms.rocm.RocmPlatform"),
    "the function that our hook wraps": ("rocm_platform_plugin", touches, "wraps vllm.platforms.rocm_platform_plugin"),
    "the function that the arch comes from": ("_query_gcn_arch_from_amdsmi", touches, "_query_gcn_arch_from_amdsmi"),
    "the arch string": ("_GCN_ARCH", touches, "vllm.platforms.rocm._GCN_ARCH"),
    "the table of variables": ("environment_variables", touches, "writes vllm.envs.environment_variables"),
    "the factors of the compile cache": ("ignored_factors", touches, "writes vllm.envs.compile_factors.ignored_factors"),
    "a field of a result that verify reads": ("token_ids", touches, "token_ids"),
    "an argument that verify gives": ("ignore_eos", touches, "takes no ignore_eos"),
    "the list of sources that our source joins": ("VLLM_ROCM_EXT_SRC", touches, "upstream's build has no VLLM_ROCM_EXT_SRC"),
    "the registration": ("direct_register_custom_op", touches, "direct_register_custom_op"),
    "a variable that the gate obeys": ("VLLM_ROCM_USE_SKINNY_GEMM", environment, "VLLM_ROCM_USE_SKINNY_GEMM is gone or renamed"),
    "the mode in which the gate is closed": ("VLLM_BATCH_INVARIANT", environment, "VLLM_BATCH_INVARIANT is gone or renamed"),
}


@pytest.mark.parametrize("name", RENAMES)
def test_a_rename_under_our_feet_is_a_block(name: str) -> None:
    word, contract, phrase = RENAMES[name]
    rows = found(contract, renamed(tree(NEWEST), word))
    assert {f.level for f in rows if phrase in f.sentence} == {BLOCK}, [f"{f.level} {f.sentence}" for f in rows]


def test_a_variable_whose_getter_reads_another_name_is_gone() -> None:
    planted = edited(
        tree(NEWEST), {"vllm/envs.py": ('os.getenv("VLLM_ROCM_USE_SKINNY_GEMM", "True")', 'os.getenv("VLLM_ROCM_SKINNY", "True")')}
    )
    assert [f.level for f in found(environment, planted) if "VLLM_ROCM_USE_SKINNY_GEMM is gone or renamed" in f.sentence] == [BLOCK]


def test_a_renamed_table_does_not_hide_a_renamed_variable() -> None:
    planted = renamed(renamed(tree(NEWEST), "environment_variables"), "VLLM_ROCM_USE_SKINNY_GEMM")
    assert [f.level for f in found(environment, planted) if "VLLM_ROCM_USE_SKINNY_GEMM" in f.sentence] == [BLOCK]
    assert BLOCK in {f.level for f in found(touches, planted) if "environment_variables" in f.sentence}


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (rb"(?<=\.)use_custom_allreduce\b", "use_custom_allreduce"),
        (rb"(?<![.\w])(?<!def )process_weights_after_loading\b", "process_weights"),
    ],
)
def test_a_lock_that_nothing_asks_for_any_more_is_dead(asked: bytes, name: str) -> None:
    base = tree(NEWEST)
    files = {p: re.sub(asked, b"asked", d) if p.endswith(".py") else d for p, d in base.files.items()}
    rows = [f for f in found(touches, Tree("planted", files)) if "dead lock" in f.sentence]
    assert [(f.level, name in f.sentence) for f in rows] == [(BLOCK, True)]


@pytest.mark.parametrize("contract", [c for c in contracts.CONTRACTS if getattr(c, "HOLDS", ())], ids=lambda c: c.ID)
def test_a_contract_that_finds_nothing_is_a_block_whatever_the_base_has(contract: ModuleType) -> None:
    rows = contracts.judge(Facts("empty"), Facts("empty"))
    assert BLOCK in {f.level for f in rows if f.contract == contract.ID}


def test_every_contract_says_what_it_holds_on_to_but_the_ones_that_look_for_strangers() -> None:
    assert {c.ID for c in contracts.CONTRACTS if not getattr(c, "HOLDS", ())} == {"names", "arch-sites"}


def test_everything_of_upstream_that_our_sources_name_is_held() -> None:
    """A second, cruder reader than the collector: every upstream import and every attribute of one must be among the touches."""
    held = {(t.module, t.chain) for t in touches.touched()}
    chains = {".".join((m, *c)).replace(".()", "").replace(".[]", "") for m, c in held}
    missed = []
    for path in sorted((ours.ROOT / "overlay").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        bound: dict[str, str] = {}
        for module, names in re.findall(r"(?m)^\s*from (vllm(?:\.\w+)*) import ([\w, ]+)", text):
            if not module.startswith("vllm.dcu"):
                for name in names.replace(" ", "").split(","):
                    if (module, name) != ("vllm", "dcu"):
                        bound[name] = f"{module}.{name}"
        missed += [f"{path.name}: {w}" for w in bound.values() if w not in chains]
        for name, whole in bound.items():
            missed += [f"{path.name}: {name}.{a}" for a in re.findall(rf"(?<![.\w]){name}\.(\w+)", text) if f"{whole}.{a}" not in chains]
    assert missed == []
    assert touches.escapes() == []


def test_the_collector_follows_types_and_says_what_it_cannot_follow() -> None:
    text = (
        "from typing import Any\nfrom vllm.config import VllmConfig\nfrom vllm.v1.engine.llm_engine import LLMEngine\n\n"
        "def a(c: VllmConfig) -> None:\n    s = c.scheduler_config\n    s.max_num_seqs = 1\n    b(c)\n\n"
        "def b(anything: Any) -> None:\n    print(anything.model_config)\n\n"
        "def make(x: Any) -> Any:\n    return LLMEngine.from_engine_args(x)\n"
    )
    read, escapes = ours.read_python("x.py", text)
    assert ("VllmConfig", "scheduler_config", "max_num_seqs", "write") in {(*t.chain, t.how) for t in read}
    assert {t.chain for t in escapes} == {("VllmConfig", "model_config"), ("LLMEngine", "from_engine_args", "()")}


def test_names_behind_constants_of_ours_are_followed() -> None:
    text = (
        "import functools, sys\nfrom types import ModuleType\nfrom typing import Any\n\n"
        "_WHAT = 'finish'\n_PLACE = 'vllm.somewhere.utils'\n_KNOWN = ('One', 'Two')\n\n"
        "def hook(module: ModuleType) -> None:\n    was = getattr(module, _WHAT)\n    functools.wraps(was)\n    sys.modules['vllm.other'].value\n\n"
        "def arm() -> None:\n    hook(sys.modules[_PLACE])\n\n"
        "def known(x: Any) -> bool:\n    return any(c.__name__ in _KNOWN for c in type(x).__mro__)\n"
    )
    read = {(t.module, t.chain, t.how) for t in ours.read_python("x.py", text)[0]}
    assert {
        ("vllm.somewhere.utils", ("finish",), "read"),
        ("vllm.somewhere.utils", ("finish",), "wrap"),
        ("vllm.other", ("value",), "read"),
        ("class", ("One",), "name"),
        ("class", ("Two",), "name"),
    } <= read


def test_the_series_lines_are_read_with_the_syntax_around_them() -> None:
    pin = read_pin()
    seen = {(t.module, t.chain, t.how) for t in hooks.hook_touches(tree(pin.version))}
    assert ("vllm.platforms", ("rocm_platform_plugin",), "wrap") in seen
    assert ("vllm.envs", ("environment_variables",), "write") in seen
    assert ("vllm.model_executor.layers.utils", ("direct_register_custom_op", "op_name=rocm_unquantized_gemm"), "argument") in seen


READERS = """\
import functools
import re

import torch

from vllm.platforms import current_platform
from vllm.platforms.rocm import _GCN_ARCH


def by_regex() -> bool:
    found = re.search(r"gfx(\\d+)", torch.cuda.get_device_properties(0).gcnArchName)
    return found is not None and 900 <= int(found.group(1)) <= 999


def by_number(x: torch.Tensor) -> bool:
    return x.shape[0] > 8 and int(_GCN_ARCH.split(":")[0][3:]) in range(930, 940)


def with_reason() -> tuple[bool, str | None]:
    return (True, None) if _GCN_ARCH[3:5] == "93" else (False, "not this one")


class Chooser:
    WIDE = any(_GCN_ARCH.find(name) == 0 for name in ("gfx93", "gfx94"))

    def __init__(self, config: object) -> None:
        self.fast = by_regex()

    def tile(self) -> int:
        return 256 if by_regex() else 64

    def picks(self) -> bool:
        return self.tile() == 256

    @property
    def nine(self) -> bool:
        return current_platform.get_device_capability().major == 9

    def spelled(self) -> bool:
        return _GCN_ARCH.endswith(":xnack-")

    @functools.cached_property
    def kept(self) -> bool:
        return by_regex()

    def unknown(self, count: int) -> bool:
        return [True, False][torch.number_of(_GCN_ARCH)]


def harmless() -> bool:
    return "gfx942" in _GCN_ARCH


def by_major() -> bool:
    device = torch.cuda.get_device_properties(0)
    return (device.major, device.minor) >= (9, 0) and device.major < 10


def by_match() -> bool:
    match current_platform.get_device_capability():
        case (9, _):
            return True
    return False


def by_what_is_built() -> bool:
    return any(name.startswith("gfx9") for name in torch.cuda.get_arch_list())


async def later() -> bool:
    return by_regex()


def only(word: str) -> object:
    return lambda f: f if torch.cuda.get_device_properties(0).gcnArchName.startswith(word) else lambda: False


@only("gfx9")
def decorated() -> bool:
    return True


if torch.cuda.get_device_capability()[0] == 9:
    NINE, NAME = True, "nine"
else:
    NINE, NAME = False, "other"
"""


MFMA = "__device__ void tile() { __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, 0, 0, 0); }\n"
SKINNY = "csrc/rocm/skinny_gemms.cu"
SOURCE = '    "csrc/rocm/torch_bindings.cpp"\n'
#: name -> (contract, edits, new files, level, phrases)
NATIVE: dict[str, tuple[ModuleType, dict[str, tuple[str, str]], dict[str, str], str, tuple[str, ...]]] = {
    "matrix instructions two includes below a new source of _C": (
        build_set,
        {"CMakeLists.txt": ('  "csrc/cuda_view.cu"', '  "csrc/planted.cu"\n  "csrc/cuda_view.cu"')},
        {"csrc/planted.cu": '#include "planted/first.inc"\n', "csrc/planted/first.inc": '#include "second"\n', "csrc/planted/second": MFMA},
        REVIEW,
        ("csrc/planted.cu is new in _C", "planted/second: __builtin_amdgcn_mfma_f32_32x32x8bf16_1k"),
    ),
    "what is compiled for gfx942 alone is not what gfx936 gets": (
        build_set,
        {"CMakeLists.txt": ('  "csrc/cuda_view.cu"', '  "csrc/planted.cu"\n  "csrc/cuda_view.cu"')},
        {"csrc/planted.cu": f"#if defined(__gfx942__)\n{MFMA}#endif\n#include <unknown/thing.h>\n"},
        INFO,
        ("none with arch-bound instructions", "not read, for they are not in it: unknown"),
    ),
    "WARP_SIZE in a header that LLMM1's unit takes in": (
        native_ops,
        {SKINNY: ("#include <torch/all.h>\n", '#include <torch/all.h>\n#include "planted.h"\n')},
        {"csrc/rocm/planted.h": "#undef WARP_SIZE\n#define WARP_SIZE 32\n"},
        BLOCK,
        ("the definition of WARP_SIZE changed as LLMM1's unit sees it", "csrc/rocm/planted.h"),
    ),
    "WARP_SIZE given by the build": (
        native_ops,
        {
            "CMakeLists.txt": (
                "# For CUDA and HIP builds also build the triton_kernels external package.",
                "target_compile_definitions(_rocm_C PRIVATE WARP_SIZE=32)",
            )
        },
        {},
        BLOCK,
        ("the definition of WARP_SIZE changed as LLMM1's unit sees it",),
    ),
    "matrix instructions in a file that is included by a macro": (
        build_set,
        {"CMakeLists.txt": ('  "csrc/cuda_view.cu"', '  "csrc/planted.cu"\n  "csrc/cuda_view.cu"')},
        {"csrc/planted.cu": '#define WHICH "planted/first.inc"\n#include WHICH\n', "csrc/planted/first.inc": MFMA},
        REVIEW,
        ("csrc/planted.cu is new in _C", "planted/first.inc: __builtin_amdgcn_mfma_f32_32x32x8bf16_1k"),
    ),
    "a file that is included by a macro of the command line": (
        build_set,
        {"CMakeLists.txt": ('  "csrc/cuda_view.cu"', '  "csrc/planted.cu"\n  "csrc/cuda_view.cu"')},
        {"csrc/planted.cu": "#include WHICH\n"},
        OPEN,
        ("not evaluated: what csrc/planted.cu of _C", "includes by macro WHICH"),
    ),
    "another macro of the kernel in such a header": (
        native_ops,
        {SKINNY: ("#include <torch/all.h>\n", '#include <torch/all.h>\n#include "planted.h"\n')},
        {"csrc/rocm/planted.h": "#define __shfl_xor(value, lanes) (value)\n"},
        BLOCK,
        ("the definition of __shfl_xor changed as LLMM1's unit sees it",),
    ),
}


@pytest.mark.parametrize("name", NATIVE)
def test_what_is_compiled_is_what_the_includes_say(name: str) -> None:
    contract, edits, new, level, phrases = NATIVE[name]
    rows = [f for f in found(contract, edited(tree(NEWEST), edits, new)) if all(p in f.sentence for p in phrases)]
    assert [f.level for f in rows] == [level], [f.sentence for f in found(contract, edited(tree(NEWEST), edits, new))]


@cache
def flow_rows() -> list[Finding]:
    """One planted module with a reader of each kind and one that imports it, in the pinned release."""
    pinned = tree(read_pin().version)
    far = "from vllm.utils.arch_next import by_regex as nine\n\n\ndef far(x):\n    return nine()\n"
    planted = edited(pinned, {}, {"vllm/utils/arch_next.py": READERS, "vllm/model_executor/far.py": far})
    base = Facts(pinned.version, tuple(arch_flow.collect(pinned)))
    return arch_flow.judge(base, Facts("planted", tuple(arch_flow.collect(planted))))


@pytest.mark.parametrize(
    "reader",
    [
        "by_regex",
        "by_number",
        "with_reason",
        "Chooser.WIDE",
        "Chooser.picks",
        "Chooser.nine",
        "Chooser.spelled",
        "far",
        "Chooser.kept",
        "by_major",
        "by_match",
        "by_what_is_built",
        "later",
        "decorated",
        "NINE",
    ],
)
def test_what_reads_the_arch_and_is_true_by_resemblance_is_a_block(reader: str) -> None:
    rows = [f for f in flow_rows() if f.key.split(":")[-1] == reader]
    assert [(f.level, f.line > 0) for f in rows] == [(BLOCK, True)], [f.sentence for f in flow_rows()]
    assert ("depending on how it is spelled" in rows[0].sentence) == (reader == "Chooser.spelled")


def test_answers_that_are_no_booleans_are_compared_and_open_ones_are_counted() -> None:
    rows = {(f.level, f.path): f.sentence + f.hunk for f in flow_rows()}
    said = rows[REVIEW, "vllm/utils/arch_next.py"]
    assert "Chooser.tile is 256 for gfx936" in said
    assert "Chooser.__init__" in said
    assert "Chooser.unknown" in rows[OPEN, "vllm/utils/arch_next.py"]
    assert not [f for f in flow_rows() if "harmless" in f.sentence and f.level != INFO]
