"""The little of torch that a Linear needs on its way to the operator, without numbers (stand-alone, standard library only).

A tensor here has a name, a shape, a dtype and a layout. What is done to it that would make another tensor of it gives a stand-in
named after the deed, so that "what arrived is `weight.t()[]`, not the weight" can be said. Nothing is computed.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


class DType:
    def __init__(self, name: str) -> None:
        self.name = name
        self.itemsize = 4 if "32" in name else 2

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class Tensor:
    """A contiguous CUDA tensor; `origin` is the object that it is a mere view of."""

    is_cuda, is_cpu, is_sparse, requires_grad, is_meta = True, False, False, False, False
    Thing: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, name: str = "tensor", shape: tuple[int, ...] = (), dtype: Any = None, origin: Any = None) -> None:
        self.name, self.shape, self.dtype = name, tuple(shape), dtype
        self.origin = origin if origin is not None else self
        self.replaced: Any = None
        self.device = types.SimpleNamespace(type="cuda", index=0)
        self.layout = "strided"

    def _like(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(self.name, shape, self.dtype, self.origin)

    def size(self, at: int | None = None) -> Any:
        return self.shape if at is None else self.shape[at]

    def dim(self) -> int:
        return len(self.shape)

    ndim = property(dim)

    def numel(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count

    def stride(self, at: int | None = None) -> Any:
        steps = [1]
        for n in reversed(self.shape[1:]):
            steps.insert(0, steps[0] * n)
        return tuple(steps) if at is None else steps[at]

    def element_size(self) -> int:
        return int(getattr(self.dtype, "itemsize", 2))

    def is_contiguous(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def is_floating_point(self) -> bool:
        return "float" in repr(self.dtype)

    def data_ptr(self) -> int:
        return 4096

    def storage_offset(self) -> int:
        return 0

    def contiguous(self, *args: Any) -> Tensor:
        return self

    detach = requires_grad_ = cuda = contiguous

    def view(self, *shape: Any) -> Tensor:
        wanted = list(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape)
        if -1 in wanted:
            rest = 1
            for n in wanted:
                rest *= n if n != -1 else 1
            wanted[wanted.index(-1)] = self.numel() // max(rest, 1)
        return self._like(tuple(wanted))

    reshape = view

    def to(self, *args: Any, **kwargs: Any) -> Any:
        wanted = [a for a in (*args, *kwargs.values()) if isinstance(a, DType)]
        return self if not wanted or wanted[0] is self.dtype else Tensor.Thing(f"{self.name}.to({wanted[0]!r})")

    @property
    def data(self) -> Any:
        return self if self.replaced is None else self.replaced

    @data.setter
    def data(self, value: Any) -> None:
        if getattr(value, "origin", None) is not self.origin:
            self.replaced = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("name", "shape", "dtype", "origin", "replaced"):
            raise AttributeError(name)
        if name.startswith("_") or name in ("weight_loader", "tp_rank", "tp_size", "output_dim", "input_dim"):
            raise AttributeError(name)
        return Tensor.Thing(f"{self.name}.{name}")

    def __getitem__(self, item: Any) -> Any:
        return Tensor.Thing(f"{self.name}[]")

    def __repr__(self) -> str:
        return self.name


class Parameter(Tensor):
    def __new__(cls, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        made = Tensor.__new__(cls)
        if isinstance(data, Tensor):
            Tensor.__init__(made, data.name, data.shape, data.dtype)
        else:
            Tensor.__init__(made, str(getattr(data, "_name", data)))
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        return None


class Module:
    """nn.Module: attributes, parameters by name, and a call is `forward`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__dict__.setdefault("_parameters", {})
        self.training = False

    def register_parameter(self, name: str, value: Any) -> None:
        self.__dict__.setdefault("_parameters", {})[name] = value
        setattr(self, name, value)
        if isinstance(value, Tensor):
            value.name = name

    def register_buffer(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        setattr(self, name, value)

    def parameters(self) -> list[Any]:
        return [p for p in self.__dict__.get("_parameters", {}).values() if p is not None]

    def named_parameters(self) -> list[tuple[str, Any]]:
        return [(n, p) for n, p in self.__dict__.get("_parameters", {}).items() if p is not None]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


class Ops:
    """`torch.ops`: every operator call goes to `called(namespace, name, args, kwargs)`."""

    def __init__(self, called: Callable[[str, str, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._called = called

    def __getattr__(self, namespace: str) -> Any:
        if namespace.startswith("__"):
            raise AttributeError(namespace)
        called = self._called

        class Namespace:
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__") or namespace.startswith("_"):
                    raise AttributeError(name)  # no compiled module is loaded, so none of its operators is there

                def call(*args: Any, **kwargs: Any) -> Any:
                    return called(namespace, name, args, kwargs)

                vars(call)["default"] = call
                return call

        return Namespace()


def install(torch: Any, modules: dict[str, Any], thing: Any, called: Callable[..., Any]) -> None:
    """Put these into the stand-in `torch` and its submodules (`nn`, `nn.functional`, `nn.parameter`)."""
    Tensor.Thing = thing
    torch.Tensor, torch.nn = Tensor, modules["torch.nn"]
    for name in ("bfloat16", "float16", "float32", "int8", "uint8", "int32", "int64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"):
        setattr(torch, name, DType(name))
    torch.half, torch.float, torch.long, torch.int = torch.float16, torch.float32, torch.int64, torch.int32
    torch.dtype, torch.Size, torch.strided = DType, tuple, "strided"
    torch.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
    torch.get_default_dtype = lambda: torch.bfloat16
    torch.empty = torch.zeros = torch.ones = torch.rand = _make
    torch.ops = Ops(called)
    torch.no_grad = torch.inference_mode = lambda *a: _Nothing()
    nn, functional, parameter = modules["torch.nn"], modules["torch.nn.functional"], modules["torch.nn.parameter"]
    nn.Module, nn.Parameter, parameter.Parameter, nn.functional = Module, Parameter, Parameter, functional
    parameter.UninitializedParameter = Parameter
    modules["torch"].nn = nn

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        return called("torch.nn.functional", "linear", (x, weight, bias), {})

    functional.linear = linear


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *args: Any) -> None:
        return None

    def __call__(self, function: Any) -> Any:
        return function


def _make(*shape: Any, dtype: Any = None, **kwargs: Any) -> Tensor:
    wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    return Tensor("tensor", tuple(wanted), dtype)
