"""Walk a Linear's way through a release's own Python: layer, quant method, dispatch, operator, gate, kernel (stand-alone).

`python -I -S walk.py ROOT ARCH` prints JSON. ROOT holds the release's Python and our `vllm/dcu`. The modules in REAL run as they
are; torch is `fake_torch.py`, everything else a stand-in of `probe.py` whose truth is unknown: a way that depends on one is
reported as not evaluated. The gate is ours, with a simulated device on which the capability is open; the kernel is a note.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

LAYERS = ("vllm.model_executor.layers.linear", "vllm.model_executor.layers.vocab_parallel_embedding")
UTILS = "vllm.model_executor.layers.utils"
REAL = (
    *LAYERS,
    UTILS,
    "vllm.platforms",
    "vllm.model_executor.custom_op",
    "vllm.model_executor.parameter",
    "vllm.model_executor.utils",
    "vllm.model_executor.layers.logits_processor",
    "vllm.model_executor.layers.batch_invariant",
    "vllm.model_executor.determinism.batch_invariant",
    "vllm.model_executor.layers.quantization.base_config",
)
#: Sizes of the one capability that is open: gate/up of the reference model.
M, K = 34816, 5120
#: Arguments of a layer's constructor by name; a required one that is not here leaves the layer unwalked, by name.
SIZES: dict[str, Any] = {
    "input_size": K,
    "output_size": M,
    "output_sizes": [M // 2, M // 2],
    "hidden_size": K,
    "head_size": 256,
    "total_num_heads": 24,
    "total_num_kv_heads": 4,
    "num_embeddings": M,
    "embedding_dim": K,
    "bias": False,
    "gather_output": False,
}


def load(name: str) -> Any:
    """A module from beside this file (-I hides the folder)."""
    spec = importlib.util.spec_from_file_location(f"gfx936_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"gfx936_{name}"] = module
    spec.loader.exec_module(module)
    return module


probe, fake = load("probe"), load("fake_torch")


class Config(probe.Thing):  # type: ignore[misc, name-defined]
    """vLLM's configuration on one device: every parallel size is 1, the rest is unknown."""

    def __getattr__(self, name: str) -> Any:
        if name.endswith("parallel_size"):
            return 1
        if name in ("dtype", "head_dtype"):
            return sys.modules["torch"].bfloat16
        return Config(f"{self._name}.{name}") if name.endswith("config") else super().__getattr__(name)


class Walk:
    """The stand-ins of one run, and what they saw."""

    def __init__(self, root: str, arch: str) -> None:
        self.root, self.arch = root, arch
        self.registered: dict[str, Any] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.ran: set[tuple[str, str]] = set()

    def called(self, namespace: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls.append((f"{namespace}.{name}", (*args, *kwargs.values())))
        x, weight = (*args, None, None)[:2]
        if isinstance(x, fake.Tensor) and isinstance(weight, fake.Tensor) and len(weight.shape) == 2:
            return fake.Tensor(f"{name}()", (*x.shape[:-1], weight.shape[0]), x.dtype)
        return probe.Thing(f"torch.ops.{namespace}.{name}()")

    def install(self) -> Any:
        """Import torch's stand-in, the platform, the GEMM module. Returns vllm.platforms.rocm."""
        probe.REAL = (*probe.REAL, *REAL)
        probe.ABSENT = ("libtpu", "zentorch", "flashinfer", "habana_frameworks")
        rocm = probe.install(self.root, self.arch)
        names = ("torch", "torch.nn", "torch.nn.functional", "torch.nn.parameter")
        fake.install(sys.modules["torch"], {n: importlib.import_module(n) for n in names}, probe.Thing, self.called)

        def register(op_name: str, op_func: Any, mutates_args: Any = None, fake_impl: Any = None, **kwargs: Any) -> None:
            self.registered[op_name] = op_func

        vars(importlib.import_module("vllm.utils.torch_utils"))["direct_register_custom_op"] = register
        one = {
            "get_tensor_model_parallel_rank": lambda: 0,
            "get_tensor_model_parallel_world_size": lambda: 1,
            "divide": lambda a, b: a // b,
        }
        for name in ("vllm.distributed", "vllm.distributed.parallel_state", "vllm.distributed.utils"):
            vars(importlib.import_module(name)).update(one)
        vars(importlib.import_module("vllm.utils.platform_utils"))["num_compute_units"] = lambda *a: 80
        compilation = types.SimpleNamespace(custom_ops=["none"], enabled_custom_ops=Counter(), disabled_custom_ops=Counter())
        config = vars(importlib.import_module("vllm.config"))
        config["get_current_vllm_config"] = lambda: Config("config")
        config.update(get_current_vllm_config_or_none=lambda: None, get_cached_compilation_config=lambda: compilation)
        vars(importlib.import_module("vllm.platforms"))["current_platform"] = rocm.RocmPlatform()
        importlib.import_module(UTILS)
        return rocm

    def gate(self, impl: Any) -> Any:
        """Our gate around `impl`, with the capability open on a simulated device; its native kernel is a note."""
        gate, context = importlib.import_module("vllm.dcu.gate"), importlib.import_module("vllm.dcu.dispatch.context")
        catalog, kernels = importlib.import_module("vllm.dcu.records.catalog"), importlib.import_module("vllm.dcu.records.kernels")
        record = next(r for r in catalog.CATALOG if r.verdict.name == "OPEN")

        def native(in_a: Any, in_b: Any, rows: int) -> Any:
            return self.called("kernel", "LLMM1", (in_b, in_a), {})

        made = context.Context(
            arch=record.target.arch,
            device_type="cuda",
            toolchain=record.target.toolchain,
            ops={kernels.LLMM1.op: context.NativeOp(kernels.LLMM1.schema, native)},
            code_objects=frozenset({record.target.arch}),
            simulated="walk of a release",
        )
        return gate.wrap(impl, context=made)

    def operator(self) -> tuple[str, Any]:
        """Name and function of the one operator that the implementation is registered for."""
        impl = getattr(sys.modules[UTILS], "rocm_unquantized_gemm_impl", None)
        names = [n for n, f in self.registered.items() if _leads_to(f, impl)]
        if impl is None or "rocm_unquantized_gemm" not in self.registered:
            raise LookupError(f"{UTILS} registers no operator rocm_unquantized_gemm with the implementation")
        others = [n for n in names if n != "rocm_unquantized_gemm"]
        if others:
            raise LookupError(f"the implementation is registered a second time, as {', '.join(others)}: calls of it do not meet the gate")
        return "rocm_unquantized_gemm", impl

    def way(self, layer: Any) -> str:
        """ "" where a forward of `layer` reaches the operator with the layer's own weight and the kernel through the gate, else why not."""
        method = layer.quant_method
        process = getattr(method, "process_weights_after_loading", None)
        if process is not None:
            process(layer)
        x, weight = fake.Tensor("x", (1, layer.weight.shape[1]), layer.weight.dtype), layer.weight
        self.calls.clear()
        if hasattr(layer, "num_embeddings"):  # a head: its weights are used by the logits processor
            self.logits(layer, x)
        else:
            layer(x)
        name, impl = self.operator()
        at = next((args for called, args in self.calls if called == f"vllm.{name}"), None)
        others = [c for c, _ in self.calls if c != f"vllm.{name}"]
        if at is None:
            return f"the call goes to {others[0]}, not to the operator" if others else "no operator is called"
        if others:
            return f"besides the operator it calls {', '.join(others)}"
        wrong = self.arguments(at, x, weight)
        if wrong:
            return wrong
        self.calls.clear()
        self.gate(impl)(*at)
        wanted = "kernel.LLMM1" if tuple(weight.shape) == (M, K) else "torch.nn.functional.linear"
        if [c for c, _ in self.calls] != [wanted]:
            return f"the gate calls {', '.join(c for c, _ in self.calls) or 'nothing'}, not {wanted}"
        return self.beside(layer, x, weight)

    def beside(self, layer: Any, x: Any, weight: Any) -> str:
        """ "" where our other way, that beside a vendor's plugin, takes the layer of a loaded model too, with its own weight; else why not."""
        beside = importlib.import_module("vllm.dcu.dispatch.beside")
        taken = beside.take(types.SimpleNamespace(modules=lambda: [layer]), lambda gemm: gemm)
        if taken.layers != 1:
            return f"beside a plugin it is not found: its method is {type(layer.quant_method).__name__}"
        self.calls.clear()
        if hasattr(layer, "num_embeddings"):
            self.logits(layer, x)
        else:
            layer(x)
        if [c for c, _ in self.calls] != ["vllm.dcu_linear"]:
            return f"beside a plugin the call goes to {', '.join(c for c, _ in self.calls) or 'nothing'}, not to our operator"
        return self.arguments(self.calls[0][1][:3], x, weight)

    @staticmethod
    def logits(head: Any, x: Any) -> Any:
        """The head as the sampler uses it: through upstream's own LogitsProcessor."""
        processor = importlib.import_module("vllm.model_executor.layers.logits_processor").LogitsProcessor(M)
        return processor._get_logits(x, head, None)

    @staticmethod
    def arguments(at: tuple[Any, ...], x: Any, weight: Any) -> str:
        given = [*at, None, None, None][:3]
        for name, wanted, have in (("x", x, given[0]), ("weight", weight, given[1])):
            if weight.replaced is not None and name == "weight":
                return f"after loading the weight is {getattr(weight.replaced, '_name', weight.replaced)}, not what was loaded"
            if getattr(have, "origin", None) is not wanted.origin:
                return f"the operator gets {getattr(have, '_name', have)!r} as {name}"
            if name == "weight" and have.shape != weight.shape:
                return f"the operator gets the weight as {have.shape}"
        return "" if given[2] is None else f"the operator gets {given[2]!r} as bias"


def _leads_to(function: Any, impl: Any, depth: int = 4) -> bool:
    """Whether calling `function` would run `impl`: itself, a partial or wrapper of it, or a function that names it."""
    if function is impl:
        return True
    if depth == 0 or impl is None:
        return False
    inner = [getattr(function, "func", None), getattr(function, "__wrapped__", None)]
    inner += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if callable(cell.cell_contents)]
    if isinstance(function, types.FunctionType) and function.__module__ == impl.__module__:
        inner += [function.__globals__.get(n) for n in function.__code__.co_names]
    return any(_leads_to(f, impl, depth - 1) for f in inner if isinstance(f, types.FunctionType) or hasattr(f, "func"))


def construct(cls: type) -> Any:
    """A layer with the sample sizes, or the name of the argument that has none (str)."""
    arguments = {}
    parameters: dict[str, inspect.Parameter] = {}
    for owner in cls.__mro__:  # a constructor that hands everything on takes what its base takes
        own = inspect.signature(vars(owner)["__init__"]).parameters if "__init__" in vars(owner) else {}
        parameters = {**own, **parameters}
        if own and not any(p.kind is p.VAR_KEYWORD for p in own.values()):
            break
    for name, parameter in parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in SIZES:
            arguments[name] = SIZES[name]
        elif parameter.default is parameter.empty:
            if "int" not in str(parameter.annotation):
                return name
            arguments[name] = 4 if "heads" in name else 128
    return cls(**arguments)


def layers(walk: Walk) -> dict[str, dict[str, str]]:
    """Every layer class of the two modules: {"value": why not or ""} or {"unknown": what it depends on}."""
    found: dict[str, dict[str, str]] = {}
    modules = [importlib.import_module(name) for name in LAYERS]
    bases = (modules[0].LinearBase, modules[1].ParallelLMHead)
    for module in modules:
        for name, cls in sorted(vars(module).items()):
            if not (isinstance(cls, type) and issubclass(cls, bases) and cls.__module__ == module.__name__) or cls is bases[0]:
                continue
            try:
                layer = construct(cls)
                found[name] = {"unknown": f"no sample for {layer!r}"} if isinstance(layer, str) else {"value": walk.way(layer)}
            except probe.Unknown as error:
                found[name] = {"unknown": f"depends on {error}"}
            except LookupError as error:
                found[name] = {"value": str(error)}
            except Exception as error:
                found[name] = {"unknown": f"{type(error).__name__}: {error}"[:200]}
    return found


def platform(root: str) -> dict[str, str]:
    """Which class upstream's own resolution names on a machine with this device, and which function named it."""
    text = (Path(root) / "pyproject.toml").read_text(encoding="utf-8") if (Path(root) / "pyproject.toml").is_file() else ""
    text += (Path(root) / "setup.py").read_text(encoding="utf-8") if (Path(root) / "setup.py").is_file() else ""
    plugins: dict[str, Any] = {}
    table = re.search(r"""(?ms)vllm\.platform_plugins["']?\]?\s*[:=]?\s*\[?\n?(.*?)(?=^\[|\]|\Z)""", text)
    for name, module, function in re.findall(r"""["']?([\w-]+)["']?\s*=\s*["']?([\w.]+):([\w.]+)""", table[1] if table else ""):
        plugins[name] = getattr(importlib.import_module(module), function)
    platforms = importlib.import_module("vllm.platforms")
    vars(importlib.import_module("vllm.plugins"))["load_plugins_by_group"] = lambda group: dict(plugins)
    vars(platforms)["load_plugins_by_group"] = lambda group: dict(plugins)

    class NVMLError(Exception):
        pass

    def no_nvml() -> Any:
        raise NVMLError("NVML is not here")

    vars(importlib.import_module("vllm.utils.import_utils"))["import_pynvml"] = no_nvml
    torch: Any = sys.modules["torch"]
    torch.xpu = types.SimpleNamespace(is_available=lambda: False)
    torch.distributed = types.SimpleNamespace(is_xccl_available=lambda: False)
    vars(importlib.import_module("vllm.utils.torch_utils"))["supports_xccl"] = lambda: False
    vars(platforms)["supports_xccl"] = lambda: False
    real_find_spec = importlib.util.find_spec
    named: list[str] = []

    def watch(frame: Any, event: str, value: Any) -> None:
        if event == "return" and isinstance(value, str) and value.count(".") >= 2 and value.split(".")[-1].endswith("Platform"):
            code = frame.f_code
            if code.co_name != "resolve_current_platform_cls_qualname":
                named.append(f"{code.co_name} -> {value}")

    sys.setprofile(watch)
    try:
        answer = platforms.resolve_current_platform_cls_qualname()
    except Exception as error:
        return {"unknown": f"{type(error).__name__}: {error}"[:200]}
    finally:
        sys.setprofile(None)
        importlib.util.find_spec = real_find_spec
    by = [n.split(" -> ")[0] for n in named if n.endswith(f" -> {answer}")]
    return {"value": answer, "by": ",".join(dict.fromkeys(by))}


def trace(walk: Walk, run: Any) -> Any:
    """Run with every function of the release that is entered noted: the way's own list of what it goes through."""

    def watch(frame: Any, event: str, value: Any) -> None:
        if event == "call":
            file = frame.f_code.co_filename
            if file.startswith(walk.root) and "/vllm/dcu/" not in file:
                walk.ran.add(
                    (file[len(walk.root) :].lstrip("/"), frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)
                )

    sys.setprofile(watch)
    try:
        return run()
    finally:
        sys.setprofile(None)


def main(root: str, arch: str) -> dict[str, Any]:
    walk = Walk(root, arch)
    walk.install()
    found: dict[str, Any] = {"layers": trace(walk, lambda: layers(walk)), "platform": platform(root)}
    try:
        name, impl = walk.operator()
        found["operator"] = {"value": "", "registered": name, "hooked": walk.registered[name] is not impl}
    except LookupError as error:
        found["operator"] = {"value": str(error)}
    found["ran"] = sorted(walk.ran)
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2]), sort_keys=True))
