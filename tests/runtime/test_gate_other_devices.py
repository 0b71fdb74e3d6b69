"""On every other device the patched module makes exactly upstream's choice, held against upstream's own source.

Upstream's source is what is left of the installed module when our patch is taken out of it again; that it is upstream's is proved by its
git blob id, which the patch file states.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import itertools
import random
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import _custom_ops
from vllm.dcu import gate

from tests.runtime.dcu import FIRST, context

ROOT = Path(__file__).parents[2]
PATCH = ROOT / "patches" / "dispatch-the-unquantized-gemm-through-the-dcu-gate.patch"
MODULE = "vllm/model_executor/layers/utils.py"
CASES = 200_000

OTHER_ARCHS = ["gfx90a", "gfx942", "gfx950", "gfx908", "gfx906", "gfx928", "gfx938", "gfx9360", "GFX936", "gfx1100", "gfx1201", ""]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(upstream's, ours): the module without and with our patch."""
    spec = importlib.util.find_spec("vllm.model_executor.layers.utils")
    assert spec is not None
    assert spec.origin is not None
    ours = Path(spec.origin).read_bytes()
    folder = tmp_path_factory.mktemp("upstream")
    file = folder / MODULE
    file.parent.mkdir(parents=True)
    file.write_bytes(ours)
    subprocess.run(["git", "apply", "-R", "--whitespace=nowarn", str(PATCH)], cwd=folder, check=True)
    before = re.search(r"^index ([0-9a-f]{40})\.\.", PATCH.read_text(), re.M)
    assert before is not None
    upstream = file.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(upstream) + upstream, usedforsecurity=False).hexdigest()
    assert blob == before[1], "what is left without our patch is not upstream's file"
    return upstream.decode(), ours.decode()


class Choice:
    """What was called with what. Any view of it is still that choice."""

    def __init__(self, *what: object) -> None:
        self.what = what

    def reshape(self, *shape: int) -> Choice:
        return self


class Fake:
    """As much of a tensor as the choice looks at."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, dense: bool) -> None:
        self.shape, self.dtype, self.dense = shape, dtype, dense
        self.layout, self.device, self.is_cuda = torch.strided, "cuda:0", True

    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def is_contiguous(self) -> bool:
        return self.dense

    def reshape(self, *shape: int) -> Fake:
        return self

    def view(self, *shape: int) -> Fake:
        return self

    def data_ptr(self) -> int:
        return 4096


class World:
    """The surroundings of the module's functions: one device, its switches, and operators that only note that they were chosen."""

    def __init__(self) -> None:
        self.arch = ""
        self.envs = types.SimpleNamespace(VLLM_ROCM_USE_SKINNY_GEMM=True)
        self.aiter = False
        self.fnuz = False

    def namespace(self) -> dict[str, Any]:
        linear = types.SimpleNamespace(functional=types.SimpleNamespace(linear=lambda *a: Choice("linear", *map(id, a))))
        names = ("float16", "bfloat16", "float32", "Tensor", "int8", "dtype", "strided")
        fake_torch = types.SimpleNamespace(nn=linear, **{name: getattr(torch, name) for name in names})
        fake_torch.nn.Module = torch.nn.Module
        noted = {n: self._noted(n) for n in ("LLMM1", "wvSplitK", "wvSplitKrc", "wvSplitKQ")}
        return {
            "torch": fake_torch,
            "Callable": Callable,
            "ops": types.SimpleNamespace(**noted),
            "envs": self.envs,
            "rocm_aiter_ops": types.SimpleNamespace(is_triton_gemm_enabled=lambda: self.aiter),
            "current_platform": types.SimpleNamespace(is_fp8_fnuz=lambda: self.fnuz),
            "num_compute_units": lambda: 104,
            "dcu_gate": gate,
        }

    @staticmethod
    def _noted(name: str) -> Callable[..., Choice]:
        return lambda *args: Choice(name, *(id(a) if isinstance(a, Fake) else a for a in args))

    def modules(self) -> dict[str, types.ModuleType]:
        rocm = types.ModuleType("vllm.platforms.rocm")
        rocm.on_gfx9 = lambda: any(a in self.arch for a in ("gfx90a", "gfx942", "gfx950"))  # type: ignore[attr-defined]
        rocm.on_gfx950 = lambda: "gfx950" in self.arch  # type: ignore[attr-defined]
        aiter = types.ModuleType("aiter.ops.triton.gemm_a16w16")
        aiter.gemm_a16w16 = self._noted("aiter")  # type: ignore[attr-defined]
        packages = {name: types.ModuleType(name) for name in ("aiter", "aiter.ops", "aiter.ops.triton")}
        return {"vllm.platforms.rocm": rocm, "aiter.ops.triton.gemm_a16w16": aiter, **packages}


def registered_function(source: str, world: World) -> Callable[..., Choice]:
    """What `source` registers for the operator: its functions are defined, then the `op_func=` expression is evaluated."""
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    space = world.namespace()
    exec(compile(ast.Module(functions, []), MODULE, "exec"), space)
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and "direct_register_custom_op" in ast.unparse(node.value.func):
            words = {word.arg: word.value for word in node.value.keywords}
            if ast.unparse(words["op_name"]) == "'rocm_unquantized_gemm'":
                return eval(compile(ast.Expression(words["op_func"]), MODULE, "eval"), space)
    raise LookupError("the operator is registered nowhere")


@pytest.fixture
def as_rocm(monkeypatch: pytest.MonkeyPatch) -> World:
    """This process believes that vLLM's platform is ROCm; `World.arch` is the device that it finds."""
    world = World()
    for name, module in world.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    import vllm.platforms

    platform = types.SimpleNamespace(is_rocm=lambda: True, device_type="cuda")
    monkeypatch.setattr(vllm.platforms, "_current_platform", platform)
    return world


def find(world: World, arch: str) -> None:
    world.arch = arch
    sys.modules["vllm.platforms.rocm"]._GCN_ARCH = arch  # type: ignore[attr-defined]


def cases(archs: list[str], count: int) -> Iterator[tuple[Any, ...]]:
    """`count` different cases, spread over everything that upstream's choice depends on."""
    space = [
        [True, False],  # the switch
        [False, False, True],  # AITER's Triton GEMM
        [torch.bfloat16, torch.float16, torch.float32, torch.int8],
        [0, 1, 2, 3, 4, 5, 8, 9, 10, 15, 16, 17, 32, 64, 128, 129, 2048, 2049],
        [1, 4, 7, 8, 9, 12, 16, 96, 128, 512, 513, 640, 2880, 5120, 14336, 16384, 17408, 34814, 34815, 34816, 34818, 248320],
        [8, 12, 64, 512, 520, 1024, 2560, 2880, 4096, 5120, 6144, 8192, 8200, 17408],
        [False, True],  # a bias
        [True, False],  # the weight is dense
        [1, 2, 3],  # dimensions of the activation
    ]
    chooser = random.Random(20181)
    seen: set[tuple[Any, ...]] = set()
    while len(seen) < count:
        case = (chooser.choice(archs), *(chooser.choice(axis) for axis in space))
        if case not in seen:
            seen.add(case)
            yield case


def made(case: tuple[Any, ...]) -> tuple[Fake, Fake, Fake | None]:
    _, _, _, dtype, n, m, k, bias, dense, dims = case
    lead = {1: (), 2: (n,), 3: (n, 1)}[dims]
    return Fake((*lead, k), dtype, True), Fake((m, k), dtype, dense), Fake((m,), dtype, True) if bias else None


def prepare(world: World, case: tuple[Any, ...]) -> None:
    world.arch, world.envs.VLLM_ROCM_USE_SKINNY_GEMM, world.aiter = case[:3]


def test_every_other_device_makes_exactly_upstreams_choice(as_rocm: World, sources: tuple[str, str]) -> None:
    upstream = registered_function(sources[0], as_rocm)
    chosen: dict[str, int] = {}
    compared = 0
    for arch, group in itertools.groupby(sorted(cases(OTHER_ARCHS, CASES), key=lambda case: case[0]), key=lambda case: case[0]):
        find(as_rocm, arch)
        ours = registered_function(sources[1], as_rocm)
        assert ours.__code__.co_name == "rocm_unquantized_gemm_impl"
        for case in group:
            prepare(as_rocm, case)
            x, weight, bias = made(case)
            expected, got = upstream(x, weight, bias), ours(x, weight, bias)
            assert got.what == expected.what, case
            name = str(expected.what[0])
            chosen[name] = chosen.get(name, 0) + 1
            compared += 1
    assert compared == CASES
    assert set(chosen) == {"linear", "wvSplitK", "wvSplitKrc", "LLMM1", "aiter"}, f"a choice of upstream's was never made: {chosen}"


@pytest.mark.parametrize("arch", OTHER_ARCHS)
def test_on_every_other_device_upstreams_own_function_object_is_registered(as_rocm: World, arch: str) -> None:
    find(as_rocm, arch)

    def impl(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        raise NotImplementedError

    assert gate.wrap(impl) is impl


@pytest.mark.parametrize("arch", ["gfx936", "gfx936:sramecc+:xnack-"])
def test_on_gfx936_the_gate_is_registered(as_rocm: World, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_active", None)
    find(as_rocm, arch)

    def impl(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        raise NotImplementedError

    wrapped = gate.wrap(impl)
    active = gate.active()
    assert wrapped is not impl
    assert active is not None
    assert active.context.simulated == ""
    assert active.standing[FIRST.id], "nothing here holds code for gfx936: the capability has to be closed"


def test_a_rocm_platform_whose_module_nobody_loaded_keeps_upstreams_function(as_rocm: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An out-of-tree platform that calls itself ROCm."""
    monkeypatch.delitem(sys.modules, "vllm.platforms.rocm")
    assert gate.wrap(test_every_other_device_makes_exactly_upstreams_choice) is test_every_other_device_makes_exactly_upstreams_choice  # type: ignore[arg-type,comparison-overlap]


def test_on_gfx936_no_other_native_operator_is_ever_chosen(
    as_rocm: World, sources: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of everything upstream could choose, only LLMM1 remains, and only for the record's call."""
    for name in ("wvSplitK", "wvSplitKrc", "wvSplitKQ", "paged_attention", "LLMM1"):
        monkeypatch.setattr(_custom_ops, name, lambda *a, name=name: pytest.fail(f"{name} was called"), raising=False)
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *a: Choice("linear"))
    native: list[tuple[Any, ...]] = []

    def llmm1(*args: Any) -> Any:
        native.append(args)
        return Choice("LLMM1")

    monkeypatch.setattr(Choice, "view", Choice.reshape, raising=False)
    gemm = gate.build(context(llmm1, "cuda")).gemm
    hits = 0
    archs = ["gfx936"]
    for case in itertools.chain(cases(archs, 40_000), decode_cases()):
        _, _, _, dtype, _, m, k, bias, dense, _ = case
        x, weight, b = made(case)
        choice: Any = gemm(x, weight, b)  # type: ignore[arg-type]
        rows = x.numel() // k
        right = dtype is torch.bfloat16 and rows == 1 and (m, k) == (34816, 5120) and not bias and dense
        assert choice.what == ("LLMM1",) if right else choice.what == ("linear",), case
        hits += right
    assert hits == len(native)
    assert hits >= 3


def decode_cases() -> Iterator[tuple[Any, ...]]:
    """The record's own call, in each number of dimensions, and its nearest neighbours."""
    for dims, bias, dense, m in itertools.product([1, 2, 3], [False, True], [True, False], [34815, 34816, 34818]):
        yield ("gfx936", True, False, torch.bfloat16, 1, m, 5120, bias, dense, dims)
