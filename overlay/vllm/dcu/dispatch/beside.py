# SPDX-License-Identifier: Apache-2.0
"""Beside a vendor's platform plugin: the gate takes its place in the layers of a loaded model, whatever function the plugin chose for them.

The plugin may route an unquantized Linear past vLLM's operator: a rewritten file, a function replaced at import, a method class of its own.
All of that is settled when the weights are loaded, and nothing is traced or captured before. So that is the moment: each such layer keeps
its method and gets an `apply` that is one opaque operator, `vllm::dcu_linear`. What the gate does not take goes to the plugin's own function.
"""

import functools
import importlib.abc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

__all__ = ["Taken", "arm", "take"]

Gemm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

_LOADER = "vllm.model_executor.model_loader.utils"
_FUNCTION = "process_weights_after_loading"
_METHODS = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")

_paths: list[Gemm] = []
"""What computes a layer, by the number that stands in the graph. Layers with one function share a number, so that their graphs are alike."""
_shared: dict[object, int] = {}


@dataclass(frozen=True)
class Taken:
    """What was found in a model: layers at which the gate stands, those with a function of their own among them, and those left alone."""

    layers: int = 0
    own: int = 0
    left: int = 0

    def __str__(self) -> str:
        own = f", {self.own} of them with a function of the plugin's" if self.own else ""
        left = f"; {self.left} whose weight is stored in another layout are left to the plugin" if self.left else ""
        return f"the gate stands at {self.layers} unquantized layer(s){own}{left}"


def arm(stand: Callable[[torch.nn.Module], None]) -> None:
    """Have `stand(model)` called whenever vLLM has loaded a model's weights in this process. Calling it again changes nothing."""
    module = sys.modules.get(_LOADER)
    if module is not None:
        _hook(module, stand)
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(stand))


def _hook(module: ModuleType, stand: Callable[[torch.nn.Module], None]) -> None:
    process = getattr(module, _FUNCTION)
    if getattr(process, "dcu", False):
        return

    @functools.wraps(process)
    def then_stand(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        process(model, *args, **kwargs)
        stand(model)

    then_stand.dcu = True  # type: ignore[attr-defined]
    for other in list(sys.modules.values()):  # those that imported the function by name, and its own module
        if getattr(other, "__dict__", {}).get(_FUNCTION) is process:
            setattr(other, _FUNCTION, then_stand)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the other finders, a plugin's among them, import the module, and hooks it right after."""

    def __init__(self, stand: Callable[[torch.nn.Module], None]) -> None:
        self._stand = stand

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _LOADER:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((found for finder in others if (found := finder.find_spec(fullname, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def then_hook(module: ModuleType) -> None:
                run(module)
                _hook(module, self._stand)

            spec.loader.exec_module = then_hook  # type: ignore[method-assign]
        return spec


def take(model: torch.nn.Module, over: Callable[[Gemm], Gemm], share: bool = True) -> Taken:
    """Put the gate at every unquantized layer of `model`.

    Args:
        over: the gate over a function: what it does not take, that function computes.
        share: whether layers that the plugin leaves to vLLM's own functions may share one path. False where more than those decides.
    """
    _register()
    layers = own = left = 0
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if not any(c.__name__ in _METHODS for c in type(method).__mro__) or hasattr(layer, "dcu_path"):
            continue
        kind: Any = getattr(type(method), "dcu_of", type(method))  # a method may serve several layers
        chosen = _vllms_own(kind) if share else None
        if not _stored_as_given(layer, square=chosen is not None):
            left += 1
            continue
        if chosen is not None:
            path = _shared[chosen] if chosen in _shared else _shared.setdefault(chosen, _add(over(chosen)))
        else:
            path, own = _add(over(_bound(kind, method, layer))), own + 1
        layer.dcu_path = path
        method.__class__ = _gated(kind)
        layers += 1
    return Taken(layers, own, left)


def _add(gemm: Gemm) -> int:
    _paths.append(gemm)
    return len(_paths) - 1


def _vllms_own(method: type) -> Gemm | None:
    """`F.linear`, where this method class computes with one of vLLM's own two functions; None: ask the layer's method.

    vLLM's ROCm operator counts as `F.linear`, as it does where the gate is registered for it: its native paths are nobody's choice for gfx936.
    """
    apply: Any = method.apply  # type: ignore[attr-defined]
    utils = sys.modules["vllm.model_executor.layers.utils"]
    if not apply.__module__.startswith("vllm.") or "dispatch_unquantized_gemm" not in apply.__code__.co_names:
        return None
    chosen = apply.__globals__["dispatch_unquantized_gemm"]()
    generic: Gemm = torch.nn.functional.linear
    return generic if chosen in (utils.default_unquantized_gemm, utils.rocm_unquantized_gemm) else None


def _bound(kind: Any, method: Any, layer: torch.nn.Module) -> Gemm:
    apply = kind.apply

    def of_the_plugin(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = apply(method, layer, x, bias)
        return out

    return of_the_plugin


def _stored_as_given(layer: torch.nn.Module, square: bool) -> bool:
    """Whether the weight is `[M, K]`. A plugin may keep it transposed, which a square one does not show (`square`: it cannot be)."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or weight.is_meta or not weight.is_floating_point():
        return False
    named = ("input_size_per_partition", "input_size", "embedding_dim")
    k = next((size for name in named if isinstance(size := getattr(layer, name, None), int)), None)
    return weight.shape[1] == k and (square or weight.shape[0] != k)


@functools.cache
def _gated(method: type) -> type:
    """`method` with our `apply`: the same name, and an instance of it in every `isinstance`."""
    return type(
        method.__name__,
        (method,),
        {"apply": _apply, "dcu_of": method, "__module__": method.__module__, "__qualname__": method.__qualname__},
    )


def _apply(self: object, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    out: torch.Tensor = torch.ops.vllm.dcu_linear(x, layer.weight, bias, layer.dcu_path)
    return out


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, path: int) -> torch.Tensor:
    return _paths[path](x, weight, bias)


def _linear_fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, path: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@functools.cache
def _register() -> None:
    from vllm.utils.torch_utils import direct_register_custom_op

    direct_register_custom_op(op_name="dcu_linear", op_func=_linear, fake_impl=_linear_fake)
