"""Run upstream's own platform code for one arch, with everything around it replaced (stand-alone, standard library only).

`python -I -S probe.py ROOT ARCH` prints JSON. The modules in REAL are executed as upstream wrote them; every other
import (torch, amdsmi, numpy, the rest of vllm) is a stand-in whose truth value is *unknown*: using it in a condition
raises, and the question is then reported as not answered instead of being answered wrongly.
"""

from __future__ import annotations

import dis
import enum
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import json
import os
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

REAL = ("vllm.platforms.rocm", "vllm.platforms.interface", "vllm.envs", "vllm._aiter_ops")
REAL_PREFIX = ("vllm.dcu",)
#: Packages that are not installed: their import fails as it would.
ABSENT: tuple[str, ...] = ()

#: Sample arguments by parameter name. A required parameter that is not here makes the call "not evaluated".
ARGUMENTS: dict[str, list[Any]] = {
    "qtype": ["torch.bfloat16", "torch.float16"],
    "dtype": ["torch.bfloat16"],
    "torch_dtype": ["torch.bfloat16"],
    "head_size": [64, 128, 256],
    "block_size": [16],
    "gqa_ratio": [6],
    "max_seq_len": [32768],
    "sliding_window": [0],
    "kv_cache_dtype": ["auto"],
    "use_mla": [False],
    "use_sparse": [False],
    "gcn_arch": ["ARCH"],
    "device_id": [0],
    "capability": [90, (9, 0)],
}


class Unknown(Exception):
    """Something outside the probe was asked for its value."""


class Thing:
    """A stand-in: any attribute, call or item is another stand-in; its value is unknown."""

    #: Where a run follows both ways of an unknown condition (flow.py): what decides; None: the question stays open.
    explorer: Any = None

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name in ("__version__", "__file__"):
            return "0.0"
        if name in ("__name__", "__qualname__"):
            return self._name.split(".")[-1]
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Thing(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | type):
            if any(word in self._name for word in ("jit", "autotune", "heuristics")):
                return Thing(f"kernel {args[0].__name__}")  # compiled elsewhere, launched by `kernel[grid](...)`
            return args[0]  # used as a decorator
        return Thing(f"{self._name}()")

    def __getitem__(self, item: Any) -> Any:
        return Thing(f"{self._name}[]")

    def __or__(self, other: Any) -> Any:
        return Thing(f"{self._name}|")

    __ror__ = __or__

    def __bool__(self) -> bool:
        if Thing.explorer is not None:
            return bool(Thing.explorer.decide(self._name))
        raise Unknown(self._name)

    def __contains__(self, item: Any) -> bool:
        return bool(Thing(f"{item!r} in {self._name}"))

    def _made(self, other: Any = None) -> Any:
        return Thing(f"{self._name}~")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __truediv__ = __mod__ = __and__ = _made
    __neg__ = __invert__ = __pow__ = __rtruediv__ = __rmod__ = __lshift__ = __rshift__ = _made

    def __iter__(self) -> Iterator[Any]:
        if Thing.explorer is None:
            raise Unknown(self._name)
        frame = sys._getframe(1)
        code, at = frame.f_code.co_code, frame.f_lasti
        if code[at] == dis.opmap["UNPACK_SEQUENCE"]:  # `a, b = thing`: as many as are wanted
            return iter([Thing(f"{self._name}[{i}]") for i in range(code[at + 1])])
        return iter([Thing(f"{self._name}[]")] if Thing.explorer.decide(f"{self._name} has elements") else [])

    def __len__(self) -> int:
        if Thing.explorer is not None:
            return int(Thing.explorer.decide(f"{self._name} has elements"))
        raise Unknown(self._name)

    def __index__(self) -> int:
        raise Unknown(self._name)

    __int__ = __float__ = __index__

    def __setitem__(self, item: Any, value: Any) -> None:
        return None

    def __lt__(self, other: Any) -> Any:
        if Thing.explorer is not None:
            return Thing(f"{self._name} <> {other!r}")
        raise Unknown(self._name)

    __gt__ = __le__ = __ge__ = __lt__

    def __repr__(self) -> str:
        return f"<{self._name}>"

    def __eq__(self, other: Any) -> bool:
        if Thing.explorer is not None and not isinstance(other, Thing):
            return bool(Thing.explorer.decide(f"{self._name} == {other!r}"))
        return isinstance(other, Thing) and other._name == self._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __instancecheck__(self, instance: Any) -> bool:
        if isinstance(instance, Thing):
            return bool(Thing(f"{instance._name} is a {self._name}"))
        return False  # nothing that really runs is made of a stand-in

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (type(self._name.split(".")[-1] or "Base", (Base,), {}),)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: Any) -> None:
        return None


class Base:
    """What a class of the release stands on where its base is a stand-in: takes any argument, has any attribute."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        return None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        return None

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Thing(f"self.{name}")


class Part(Thing):
    """A stand-in with some attributes that are known."""

    def __init__(self, name: str, **known: Any) -> None:
        super().__init__(name)
        vars(self).update(known)


class Quiet(Thing):
    """A logger: swallows everything."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Quiet(f"{self._name}.{name}")


class StandInModule(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name in ("__version__", "__file__"):
            return "0.0"
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        return sys.modules.get(full) or Thing(full.removeprefix("vllm.v1.attention.backends.registry."))


def is_real(name: str) -> bool:
    return name in REAL or any(name == p or name.startswith(p + ".") for p in REAL_PREFIX)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serve stand-ins for every module that is neither standard library nor in REAL."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] in sys.stdlib_module_names:
            return None
        if name.split(".")[0] in ABSENT or name == "vllm._dcu_C":  # our own library is compiled, and nothing is compiled here
            return None
        if is_real(name):
            base = os.path.join(self.root, *name.split("."))  # noqa: PTH118 - stand-alone, no pathlib at this point
            for file, package in ((base + ".py", False), (os.path.join(base, "__init__.py"), True)):  # noqa: PTH118
                if os.path.isfile(file):  # noqa: PTH113
                    return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[base] if package else None)
            if name.startswith("vllm.dcu"):
                return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        if spec.name == "regex":
            return re
        module = StandInModule(spec.name)
        if spec.name == "vllm":  # our code asks where the running vLLM lies
            module.__path__ = [os.path.join(self.root, "vllm")]  # noqa: PTH118
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def plain(value: Any) -> Any:
    """A value that JSON can carry and that is equal between releases when the meaning is."""
    if value is None or isinstance(value, bool | int | str | float):
        return value
    if isinstance(value, Thing):
        return f"<{value._name}>"
    if isinstance(value, enum.Enum):
        return f"<{value.name}>"
    if isinstance(value, list | tuple | set | frozenset):
        items = [plain(v) for v in value]
        return sorted(items, key=repr) if isinstance(value, set | frozenset) else items
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return f"<{type(value).__name__}>"


def answer(call: Any) -> dict[str, Any]:
    try:
        return {"value": plain(call())}
    except Unknown as error:
        return {"unknown": f"depends on {error}"}
    except Exception as error:
        return {"unknown": f"{type(error).__name__}"}


def sample_calls(function: Any, arch: str) -> list[dict[str, Any]] | str:
    """Every combination of sample arguments, or the name of a required parameter without samples."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "signature"
    names, choices = [], []
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is not parameter.empty:
            continue
        if name not in ARGUMENTS:
            return name
        values = [arch if v == "ARCH" else v for v in ARGUMENTS[name]]
        values = [Thing(v) if isinstance(v, str) and v.startswith("torch.") else v for v in values]
        names.append(name)
        choices.append(values)
    return [dict(zip(names, combination, strict=True)) for combination in itertools.product(*choices)]


def evaluate(function: Any, arch: str) -> dict[str, Any]:
    calls = sample_calls(function, arch)
    if isinstance(calls, str):
        return {"skipped": f"no sample value for parameter {calls!r}"}
    answers = [answer(lambda kw=kw: function(**kw)) for kw in calls]
    known = [a["value"] for a in answers if "value" in a]
    if not known:
        return answers[0]
    distinct = [v for i, v in enumerate(known) if v not in known[:i]]
    return {"value": distinct[0] if len(distinct) == 1 else {"any of": sorted(distinct, key=repr)}}


def name_arch(arch: str) -> None:
    """Have the stand-in amdsmi name one device of this arch."""
    import amdsmi  # type: ignore[import-not-found, unused-ignore]

    facts = {"target_graphics_version": arch, "device_id": "0x0000", "market_name": "probe"}
    amdsmi.AmdSmiException = type("AmdSmiException", (Exception,), {})
    amdsmi.amdsmi_init = amdsmi.amdsmi_shut_down = lambda *a: None
    amdsmi.amdsmi_get_processor_handles = lambda *a: ["gpu0"]
    amdsmi.amdsmi_get_gpu_asic_info = lambda *a: facts


def capability_of(arch: str) -> tuple[int, int]:
    """What HIP reports for an arch name: gfx936 is (9, 3), gfx1100 is (11, 0)."""
    digits = re.match(r"gfx(\d+)", arch)
    number = digits[1] if digits else "900"
    return (int(number[:-2]), int(number[-2], 16)) if len(number) >= 3 else (9, 0)


def install(root: str, arch: str) -> types.ModuleType:
    """Put the stand-ins in place and execute upstream's ROCm platform for `arch`."""
    sys.meta_path.insert(0, Finder(root))
    import torch  # type: ignore[import-not-found, unused-ignore]  # the stand-in

    capability = capability_of(arch)
    properties = types.SimpleNamespace(
        gcnArchName=arch, name="probe", multi_processor_count=80, major=capability[0], minor=capability[1], warp_size=64
    )
    torch.version = types.SimpleNamespace(hip="6.3", cuda=None)
    torch.__version__ = "2.10.0"
    torch.cuda = Part(
        "torch.cuda",
        get_device_properties=lambda *a: properties,
        get_device_capability=lambda *a: capability,
        current_device=lambda: 0,
        device_count=lambda: 1,
        Stream=Thing("Stream"),
        is_available=lambda: True,
        get_arch_list=lambda: [arch],
    )
    torch.library = Thing("torch.library")
    for name in ("half", "float16"):
        setattr(torch, name, Thing("torch.float16"))
    name_arch(arch)
    import vllm.logger  # type: ignore[import-not-found, unused-ignore]

    vllm.logger.init_logger = lambda *a: Quiet("logger")
    import vllm.config  # type: ignore[import-not-found, unused-ignore]

    vllm.config.get_current_vllm_config_or_none = lambda: None  # as outside an engine
    import vllm  # type: ignore[import-not-found, unused-ignore]

    vllm.__dict__["envs"] = importlib.import_module("vllm.envs")
    return importlib.import_module("vllm.platforms.rocm")


def own_functions(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(vars(module).items()):
        if isinstance(value, Thing):
            continue
        target = inspect.unwrap(value) if callable(value) else value
        if isinstance(target, types.FunctionType) and target.__module__ == module.__name__:
            yield name, value


def platform_methods(cls: type) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for base in cls.__mro__:
        if base.__module__ not in REAL:
            continue
        for name, value in sorted(vars(base).items()):
            if name not in seen and isinstance(value, classmethod | staticmethod):
                seen.add(name)
                yield name, getattr(cls, name)


class Environ(dict):  # type: ignore[type-arg]
    """An empty environment that notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return default

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return False

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        raise KeyError(name)


def asked_by(getter: Any) -> list[str]:
    """Which variables of the environment a getter reads."""
    real, noted = os.environ, Environ()
    vars(os)["environ"] = noted
    try:
        answer(getter)
    finally:
        vars(os)["environ"] = real
    return sorted(noted.asked)


#: Called for their effect, not for an answer.
EFFECTS = {
    "set_device",
    "inference_mode",
    "seed_everything",
    "import_kernels",
    "pre_register_and_update",
    "manual_seed_all",
    "_sync_hip_cuda_env_vars",
    "_get_wsl_kernel_version",
    "get_rocm_version",
}


def evaluate_aiter(arch: str) -> dict[str, Any]:
    """Upstream asks whether AITER is installed; the question here is what the arch alone decides, so: it is."""
    found: dict[str, Any] = {}
    real_find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *a: name
    try:
        ops = importlib.import_module("vllm._aiter_ops")
        for name, function in own_functions(ops):
            if name.startswith(("is_", "_is_")):
                found[f"aiter.{name}()"] = evaluate(function, arch)
    except Exception as error:
        found["aiter"] = {"skipped": f"{type(error).__name__}: {error}"}
    finally:
        importlib.util.find_spec = real_find_spec
    return found


def getters(envs: types.ModuleType) -> dict[str, Any]:
    """The table of variables, whatever it is called: the dictionary with the most VLLM_ keys that can be called."""
    tables = [v for v in vars(envs).values() if isinstance(v, dict)]
    tables = [{k: v for k, v in t.items() if isinstance(k, str) and k.startswith("VLLM_") and callable(v)} for t in tables]
    return max(tables, key=len, default={})


def main(root: str, arch: str) -> dict[str, Any]:
    rocm = install(root, arch)
    found: dict[str, Any] = {}
    cls = rocm.RocmPlatform
    import vllm.platforms  # type: ignore[import-not-found, unused-ignore]

    vllm.platforms.current_platform = cls()
    found.update(evaluate_aiter(arch))
    for name, value in sorted(vars(rocm).items()):
        if isinstance(value, bool) and not name.startswith("__") and name != "TYPE_CHECKING":
            found[f"rocm.{name}"] = {"value": value}
    for name, function in own_functions(rocm):
        if name not in EFFECTS:
            found[f"rocm.{name}()"] = evaluate(function, arch)
    for name, method in platform_methods(cls):
        if name not in EFFECTS:
            found[f"RocmPlatform.{name}()"] = evaluate(method, arch)
    envs = sys.modules["vllm.envs"]
    defaults = {name: {**answer(getter), "asks": asked_by(getter)} for name, getter in sorted(getters(envs).items())}
    return {"arch": arch, "truth": found, "env": defaults}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2]), sort_keys=True))
