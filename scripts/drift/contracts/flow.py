"""Follow the arch string and the capability through a release's modules by running what reads them (stand-alone).

`python -I -S flow.py ROOT` reads plans from stdin, {arch: {module: [reader, ...]}} where a reader is "name", "Class.method" or
"Class.attribute", and prints {arch: {"module:reader": [outcomes]}}. Every reader runs once for each way through the conditions that the
stand-ins cannot decide, up to a limit; an outcome is what it returns (or sets on `self`), as text, or "open: why".
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import re
import resource
import select
import signal
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATHS, DECISIONS = 24, 24
#: Ways that a module's own conditions are tried in until it runs, and how many conditions it may have.
LOADS, CONDITIONS = 16, 400
#: Seconds without a word after which a child is stopped, and how often a plan is taken up again.
SILENCE, ATTEMPTS = 8.0, 5
MEMORY = 4 << 30
LATE = "it does not come to an end"


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

    def __init__(self, most: int = DECISIONS) -> None:
        self.most = most
        self.fixed: list[bool] = []
        self.taken: list[bool] = []
        self.known: dict[str, bool] = {}

    def decide(self, name: str) -> bool:
        if name in self.known:  # the same question has the same answer within one run
            return self.known[name]
        at = len(self.taken)
        if at >= self.most:
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


class Late(BaseException):
    """A reader ran too long. No `except Exception` of upstream's takes it."""


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
    threading.Thread.start = forbidden  # type: ignore[method-assign]  # what another thread sets is there or not, as it comes
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
                answer = finished(run())
                if isinstance(answer, probe.Thing):  # `a and b`: what was decided about it is what it is worth
                    answer = explorer.known.get(answer._name, answer)
                said = json.dumps(probe.plain(answer), sort_keys=True, default=str)[:300]
            except probe.Unknown as error:
                said = f"open: {error}"
            except Late:
                alarm(0)
                found.append(f"open: {LATE}")
                break
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


def finished(answer: Any) -> Any:
    """What a coroutine returns and a generator gives, where that needs nobody else."""
    if inspect.iscoroutine(answer):
        try:
            answer.send(None)
        except StopIteration as done:
            return done.value
        raise probe.Unknown("it waits for another")
    return list(itertools.islice(answer, 8)) if inspect.isgenerator(answer) else answer


def arguments(function: Any, skip: int, owner: type | None = None) -> dict[str, Any]:
    """A stand-in for every required parameter after the first `skip`; `owner`: the class whose bases take what is handed on to them."""
    found = {}
    parameters = list(inspect.signature(function).parameters.items())[skip:]
    for base in owner.__mro__[1:] if owner is not None else ():
        if not any(p.kind is p.VAR_KEYWORD for _, p in parameters):
            break
        if isinstance(inner := vars(base).get(function.__name__), types.FunctionType):
            there = {name for name, _ in parameters}
            mine = [(n, p) for n, p in parameters if p.kind is not p.VAR_KEYWORD]
            parameters = mine + [
                (n, p) for n, p in list(inspect.signature(inner).parameters.items())[1:] if n not in there or p.kind is p.VAR_KEYWORD
            ]
    for name, parameter in parameters:
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
    if isinstance(value, property | functools.cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        return outcomes(lambda: getter(instance(holder)))  # type: ignore[misc]
    function = inspect.unwrap(value) if callable(value) and not isinstance(value, type | probe.Thing) else value
    if isinstance(function, types.FunctionType):
        if not owner:
            return outcomes(lambda: function(**arguments(function, 0)))

        def method() -> Any:
            made = instance(holder)
            said = function(made, **arguments(function, 1, holder))
            left = {k: v for k, v in vars(made).items() if not isinstance(v, probe.Thing)}
            return [said, left] if left else said

        return outcomes(method)
    return outcomes(lambda: value)


def alarm(seconds: float) -> None:
    """Raise `Late` after so many seconds, and again and again: upstream's code may swallow it. 0: never."""
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.2 if seconds else 0)


def run(root: str, arch: str, plan: dict[str, list[str]], tell: Callable[[str, list[str] | None], None]) -> None:
    """Run a plan: `tell(key, None)` before a module or reader, `tell(key, outcomes)` after it."""
    install(root, arch, list(plan))
    signal.signal(signal.SIGALRM, stop)
    for name, readers in plan.items():
        if not readers:
            continue
        tell(f"{name}:", None)
        try:
            alarm(5)
            module = load_module(name)
        except BaseException as error:
            tell(f"{name}:", [f"open: the module does not run ({said_of(error)})"[:200]])
            continue
        finally:
            alarm(0)
            probe.Thing.explorer = None
        for item in readers:
            tell(f"{name}:{item}", None)
            try:
                alarm(2)
                said = reader(module, item)
            except KeyError:
                continue  # defined only under a condition that does not hold here
            except BaseException as error:
                said = [f"open: {said_of(error)}"]
            finally:
                alarm(0)
            tell(f"{name}:{item}", said)


def load_module(name: str) -> types.ModuleType:
    """Import a module of the release. What its own conditions do not know is false, and where it refuses to run so, true one after another."""
    explorer = probe.Thing.explorer = Explorer(CONDITIONS)
    before = set(sys.modules)
    for attempt in range(LOADS):
        try:
            return importlib.import_module(name)
        except Exception:
            if attempt + 1 == LOADS or not explorer.next():
                raise
            for fresh in set(sys.modules) - before:
                del sys.modules[fresh]
    raise AssertionError


def said_of(error: BaseException) -> str:
    return LATE if isinstance(error, Late) else f"{type(error).__name__}: {error}".removesuffix(": ")


def child(root: str, arch: str, plan: dict[str, list[str]], pipe: int) -> None:
    """In a process of its own: a line for each step, then one that says it is done. What cannot start at all is said as a reader ""."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    def tell(key: str, outcomes: list[str] | None) -> None:
        os.write(pipe, json.dumps([key, outcomes]).encode() + b"\n")

    try:
        run(root, arch, plan, tell)
    except BaseException as error:
        tell(":", [f"open: {said_of(error)}"[:300]])
    os.write(pipe, b"[]\n")
    os._exit(0)


def attempt(root: str, arch: str, plan: dict[str, list[str]], found: dict[str, list[str]]) -> str:
    """Run the plan in a child, outcomes into `found`. Returns the step at which the child fell silent or died; "" when it came to its end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        child(root, arch, plan, write)
    os.close(write)
    at, rest, ended = ":", b"", False
    try:
        while not ended and select.select([read], [], [], SILENCE)[0]:
            data = os.read(read, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in map(json.loads, lines):
                if not line:
                    ended = True
                elif line[1] is None:
                    at = line[0]
                else:
                    found[line[0]] = line[1]
    finally:
        with contextlib.suppress(ProcessLookupError):  # it stays in our group: who stops us stops it too
            os.kill(pid, signal.SIGKILL)
        os.close(read)
        os.waitpid(pid, 0)
    return "" if ended else at


def follow(root: str, arch: str, plan: dict[str, list[str]]) -> dict[str, list[str]]:
    """Outcomes of a plan. What makes the child fall silent, or kills it, is open by name, and the rest is run without it."""
    found: dict[str, list[str]] = {}
    for _ in range(ATTEMPTS):
        at = attempt(root, arch, plan, found)
        if not at:
            return found
        found[at] = [f"open: {LATE}, or ends its process"]
        module, _, item = at.rpartition(":")
        if not module:
            return found
        gone = [r for r in plan[module] if not item or f"{module}:{r}" in found]
        plan = {m: [r for r in rs if not (m == module and r in gone)] for m, rs in plan.items() if m == module or f"{m}:" not in found}
        plan = {m: [r for r in rs if f"{m}:{r}" not in found] for m, rs in plan.items()}
    found[":"] = [f"open: {ATTEMPTS} readers did not come to an end; the rest was not run"]
    return found


def main(root: str) -> None:
    plans: dict[str, dict[str, list[str]]] = json.load(sys.stdin)
    sys.stdout.write(json.dumps({arch: follow(root, arch, plan) for arch, plan in plans.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
