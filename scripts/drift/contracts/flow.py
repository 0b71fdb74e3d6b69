"""Follow the arch string and the capability through a release's modules by running what reads them (stand-alone).

`python -I -S flow.py ROOT` reads plans from stdin, {arch: {module: [reader, ...]}} where a reader is "name", "Class.method" or
"Class.attribute", and prints {arch: {"module:reader": [outcomes]}}. Every reader runs once for each way through the conditions that the
stand-ins cannot decide, up to a limit; an outcome is what it returns (or sets on `self`), as text, or "open: why".
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import signal
import sys
import types
from pathlib import Path
from typing import Any

PATHS, DECISIONS = 6, 24


def load_probe() -> Any:
    spec = importlib.util.spec_from_file_location("gfx936_probe", Path(__file__).with_name("probe.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gfx936_probe"] = module
    spec.loader.exec_module(module)
    return module


probe = load_probe()


class Explorer:
    """Decides what stand-ins cannot: first every unknown is false, then each is turned to true once, deepest first."""

    def __init__(self) -> None:
        self.fixed: list[bool] = []
        self.taken: list[bool] = []
        self.known: dict[str, bool] = {}

    def decide(self, name: str) -> bool:
        if name in self.known:  # the same question has the same answer within one run
            return self.known[name]
        at = len(self.taken)
        if at >= DECISIONS:
            raise probe.Unknown("too many conditions")
        answer = self.fixed[at] if at < len(self.fixed) else False
        self.taken.append(answer)
        self.known[name] = answer
        return answer

    def next(self) -> bool:
        """Set the next way up. Returns whether there is one."""
        taken = self.taken
        while taken and taken[-1]:
            taken.pop()
        if not taken:
            return False
        self.fixed = [*taken[:-1], True]
        self.taken, self.known = [], {}
        return True


class Late(Exception):
    """A reader ran too long."""


def stop(*_: Any) -> None:
    raise Late


def forbidden(*args: Any, **kwargs: Any) -> Any:
    raise probe.Unknown("the machine outside")


def install(root: str, arch: str, real: list[str]) -> None:
    """The platform for `arch`, and every module of the plan served from the tree."""
    probe.REAL = (*probe.REAL, *real)
    rocm = probe.install(root, arch)
    import subprocess

    vars(subprocess).update(run=forbidden, Popen=forbidden, check_output=forbidden, check_call=forbidden, getoutput=forbidden)
    vars(os).update(system=forbidden, popen=forbidden)
    os.environ["PYTORCH_ROCM_ARCH"] = arch
    platforms = importlib.import_module("vllm.platforms")
    cls = rocm.RocmPlatform
    ours = importlib.util.find_spec("vllm.dcu.platform") if (Path(root) / "vllm/dcu/platform.py").is_file() else None
    if ours is not None and arch.startswith("gfx936"):
        cls = importlib.import_module("vllm.dcu.platform").DcuRocmPlatform
    vars(platforms)["current_platform"] = cls()
    target = types.SimpleNamespace(arch=arch, backend="hip", warp_size=64)
    driver = types.SimpleNamespace(active=types.SimpleNamespace(get_current_target=lambda: target))
    runtime = importlib.import_module("triton.runtime")
    vars(runtime)["driver"] = driver
    vars(importlib.import_module("triton"))["runtime"] = runtime


def outcomes(run: Any) -> list[str]:
    """Every distinct outcome of `run()` over the ways through it."""
    explorer = Explorer()
    probe.Thing.explorer = explorer
    found: list[str] = []
    try:
        for _ in range(PATHS):
            try:
                answer = run()
                if isinstance(answer, probe.Thing):  # `a and b`: what was decided about it is what it is worth
                    answer = explorer.known.get(answer._name, answer)
                said = json.dumps(probe.plain(answer), sort_keys=True, default=str)[:300]
            except probe.Unknown as error:
                said = f"open: {error}"
            except Late:
                said = "open: it runs too long"
            except RecursionError:
                said = "open: it recurs"
            except (ValueError, RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
                said = f"raises {type(error).__name__}"
            except Exception as error:
                said = f"open: {type(error).__name__}: {error}"[:120]
            said = re.sub(r"\d{9,}(?:\.\d+)?|0x[0-9a-f]+", "#", said)
            if said not in found:
                found.append(said)
            if not explorer.next():
                break
        else:
            found.append("open: more ways than are followed")
    finally:
        probe.Thing.explorer = None
    return sorted(found)


def arguments(function: Any, skip: int) -> dict[str, Any]:
    """A stand-in for every required parameter after the first `skip`."""
    found = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[skip:]:
        if parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            found[name] = probe.Thing(name)
    return found


def instance(cls: type) -> Any:
    """An object of `cls` that was not constructed: what it lacks is a stand-in."""

    def missing(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return probe.Thing(f"self.{name}")

    made = type(cls.__name__, (cls,), {"__getattr__": missing, "__module__": cls.__module__})
    return object.__new__(made)


def reader(module: types.ModuleType, name: str) -> list[str]:
    """Outcomes of one reader of a module."""
    owner, _, last = name.rpartition(".")
    holder: Any = module
    for part in owner.split(".") if owner else []:
        holder = vars(holder)[part]
    value = vars(holder)[last]
    if isinstance(value, staticmethod | classmethod):
        bound = getattr(holder, last)
        return outcomes(lambda: bound(**arguments(bound, 0)))
    if isinstance(value, property):
        getter = value.fget
        return outcomes(lambda: getter(instance(holder)))  # type: ignore[misc]
    function = inspect.unwrap(value) if callable(value) and not isinstance(value, type | probe.Thing) else value
    if isinstance(function, types.FunctionType):
        if not owner:
            return outcomes(lambda: function(**arguments(function, 0)))

        def method() -> Any:
            made = instance(holder)
            said = function(made, **arguments(function, 1))
            left = {k: v for k, v in vars(made).items() if not isinstance(v, probe.Thing)}
            return [said, left] if left else said

        return outcomes(method)
    return outcomes(lambda: value)


def run(root: str, arch: str, plan: dict[str, list[str]]) -> dict[str, list[str]]:
    install(root, arch, list(plan))
    found: dict[str, list[str]] = {}
    signal.signal(signal.SIGALRM, stop)
    for name, readers in plan.items():
        if not readers:
            continue
        try:
            signal.setitimer(signal.ITIMER_REAL, 5)
            probe.Thing.explorer = Explorer()  # a module's own conditions: what is unknown is false
            module = importlib.import_module(name)
        except BaseException as error:
            found[f"{name}:"] = [f"open: the module does not run ({type(error).__name__}: {error})"[:200]]
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            probe.Thing.explorer = None
        for item in readers:
            try:
                signal.setitimer(signal.ITIMER_REAL, 2)
                found[f"{name}:{item}"] = reader(module, item)
            except KeyError:
                continue  # defined only under a condition that does not hold here
            except BaseException as error:
                found[f"{name}:{item}"] = [f"open: {type(error).__name__}"]
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    return found


def main(root: str) -> None:
    plans: dict[str, dict[str, list[str]]] = json.load(sys.stdin)
    said: dict[str, Any] = {}
    for arch, plan in plans.items():
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
            try:
                data = json.dumps(run(root, arch, plan))
            except BaseException as error:
                data = json.dumps({":": [f"open: {type(error).__name__}: {error}"[:300]]})
            with os.fdopen(write, "w") as pipe:
                pipe.write(data)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            said[arch] = json.loads(pipe.read() or "{}")
        os.waitpid(child, 0)
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
