"""Run a release's own GEMM module with our gate in it, on the CPU, and ask it questions (serving interpreter, real torch).

`python -I behave.py ROOT...`: for each tree one JSON line, question -> right or wrong. torch is real and imported once;
vllm/model_executor/layers/utils.py, the ROCm platform, envs and vllm/dcu are the release's and ours, executed as they
are; the rest of vllm is a stand-in. The device is simulated: what this shows is dispatch, not kernels.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

OP = "_rocm_C::LLMM1"
NATIVE = ("LLMM1", "wvSplitK", "wvSplitKrc", "wvSplitKQ", "wvSplitK_int4_g", "paged_attention_rocm")


def load_probe() -> Any:
    """The stand-in machinery of probe.py, loaded from beside this file (-I hides the folder)."""
    spec = importlib.util.spec_from_file_location("gfx936_probe", Path(__file__).with_name("probe.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gfx936_probe"] = module
    spec.loader.exec_module(module)
    return module


def forbidden(name: str) -> Any:
    """A native op that must not be reached."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{name} was called")

    return call


def install(root: str, probe: Any) -> dict[str, Any]:
    """Import the tree's GEMM module; returns what it registered, by op name."""
    probe.REAL = (*probe.REAL, "vllm.model_executor.layers.utils")

    class Finder(probe.Finder):  # type: ignore[misc]
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            top = name.split(".")[0]
            return super().find_spec(name, path, target) if top in ("vllm", "amdsmi", "aiter", "regex", "flashinfer") else None

    sys.meta_path.insert(0, Finder(root))
    probe.name_arch("gfx936")
    logger = importlib.import_module("vllm.logger")
    vars(logger)["init_logger"] = lambda *a: probe.Quiet("logger")
    registered: dict[str, Any] = {}

    def register(op_name: str, op_func: Any, fake_impl: Any = None, **kwargs: Any) -> None:
        registered[op_name] = (op_func, fake_impl)

    vars(importlib.import_module("vllm.utils.torch_utils"))["direct_register_custom_op"] = register
    vllm = importlib.import_module("vllm")
    vars(vllm)["envs"] = importlib.import_module("vllm.envs")
    rocm = importlib.import_module("vllm.platforms.rocm")
    platforms = importlib.import_module("vllm.platforms")
    vars(platforms)["current_platform"] = rocm.RocmPlatform()
    ops = importlib.import_module("vllm._custom_ops")
    vars(ops).update({name: forbidden(name) for name in NATIVE})
    vars(vllm)["_custom_ops"] = ops
    importlib.import_module("vllm.model_executor.layers.utils")
    return registered


def ask(root: str, probe: Any) -> dict[str, bool]:
    """Every question, answered."""
    import torch

    registered = install(root, probe)
    utils = sys.modules["vllm.model_executor.layers.utils"]
    gate = importlib.import_module("vllm.dcu.gate")
    context_module = importlib.import_module("vllm.dcu.dispatch.context")
    record = importlib.import_module("vllm.dcu.records.catalog").MISSION
    kernels = importlib.import_module("vllm.dcu.records.kernels")
    linear = torch.nn.functional.linear
    said: dict[str, bool] = {}

    op_func, fake = registered["rocm_unquantized_gemm"]
    impl = utils.rocm_unquantized_gemm_impl  # type: ignore[attr-defined, unused-ignore]
    said["the op is registered with the gate, not with upstream's function"] = op_func is not impl and gate.active() is not None
    small, x = torch.randn(64, 32, dtype=torch.bfloat16), torch.randn(1, 32, dtype=torch.bfloat16)
    said["without a code object nothing native runs and the result is F.linear's"] = torch.equal(op_func(x, small), linear(x, small))
    meta = fake(torch.empty(2, 3, 32, device="meta"), torch.empty(64, 32, device="meta"))
    said["the fake result has the shape of the real one"] = tuple(meta.shape) == (2, 3, 64) and meta.device.type == "meta"

    m, k = record.contract.m, record.contract.k
    calls: list[tuple[Any, ...]] = []

    def native(in_a: Any, in_b: Any, rows_per_block: int) -> Any:
        calls.append((tuple(in_a.shape), tuple(in_b.shape), rows_per_block))
        return linear(in_b, in_a)

    made = context_module.Context(
        arch="gfx936",
        device_type="cpu",
        toolchain=record.target.toolchain,
        ops={OP: context_module.NativeOp(kernels.LLMM1.schema, native)},
        code_objects=frozenset({"gfx936"}),
        simulated="release matrix",
    )
    open_gate = gate.wrap(impl, context=made)
    weight, row = torch.full((m, k), 0.5, dtype=torch.bfloat16), torch.randn(1, k, dtype=torch.bfloat16)
    out = open_gate(row, weight)
    said["the exact shape reaches the kernel once, weight first"] = calls == [((m, k), (1, k), 4)] and tuple(out.shape) == (1, m)
    calls.clear()
    bias = torch.zeros(m, dtype=torch.bfloat16)
    for arguments in ((torch.randn(2, k, dtype=torch.bfloat16), weight), (row, weight, bias), (row, weight[:5120]), (x, small)):
        open_gate(*arguments)
    said["two rows, a bias, another M, another shape: F.linear"] = calls == []
    rocm = sys.modules["vllm.platforms.rocm"]
    vars(rocm)["_GCN_ARCH"] = "gfx942"
    said["on gfx942 upstream's own function object is registered"] = gate.wrap(impl) is impl
    said["the layer's entry hands over x, weight, bias"] = _entry(utils, torch)
    return said


def _entry(utils: Any, torch: Any) -> bool:
    """`rocm_unquantized_gemm(layer, x, weight, bias)`, which `dispatch_unquantized_gemm` chooses on ROCm, calls the op rightly."""
    seen: list[Any] = []

    def noted(x: Any, weight: Any, bias: Any = None) -> Any:
        seen.append((tuple(x.shape), tuple(weight.shape), bias is None))
        return torch.empty(1, 64)

    class OnDevice(torch.Tensor):  # type: ignore[misc]
        """A CPU tensor that says it is on the GPU: from 0.32.0 on others never reach the op."""

        is_cuda = True

    library = torch.library.Library("vllm", "FRAGMENT")
    library.define("rocm_unquantized_gemm(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor")
    library.impl("rocm_unquantized_gemm", noted, "CPU")
    chosen = utils.dispatch_unquantized_gemm()
    x, weight = torch.randn(1, 32).as_subclass(OnDevice), torch.randn(64, 32)
    chosen(types.SimpleNamespace(), x, weight, None)
    return chosen is utils.rocm_unquantized_gemm and seen == [((1, 32), (64, 32), True)]


def main(roots: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    probe = load_probe()
    for root in roots:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                line = {"root": root, "facts": ask(root, probe)}
            except BaseException as error:
                line = {"root": root, "error": f"{type(error).__name__}: {error}"[:300]}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
