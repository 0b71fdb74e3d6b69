# SPDX-License-Identifier: Apache-2.0
"""TEST ONLY, never in the wheel: a vLLM CPU server chooses the kernel of its Linear layers as on a gfx936 device.

It is put on PYTHONPATH for a rehearsal, and does something only where GFX936_SIM_ARCH is set. What is simulated:

* a fake `amdsmi` (after the platform was resolved) names the arch, so that `vllm.platforms.rocm` imports and reads it itself;
* the three modules that choose a Linear kernel see the CPU platform under ROCm's name;
* the gate's context: arch and switches are observed by the gate's own code, HIP version and code object are given;
* `_rocm_C::LLMM1` on the CPU: a stand-in, or the host build of the real kernel source for the first calls;
* `_dcu_C::gemv` on the CPU, every variant: a stand-in.

What is real: the routing code of vLLM, the gate, its records, its counters, the custom operator, the server.

Two counts are kept apart from the gate's, one byte a call in files that survive a kill: `calls-PID` for every run of the
kernel, `rows-PID` with N of every unquantized GEMM of the mission shape; `gemv-PID` has the variant of every run of that kernel.
GFX936_SIM_FAULT plants a fault to be found; `wrong-variant:3` makes GEMV's variant 3 wrong. GFX936_SIM_HIP is another HIP version. What
`verify` and `tune` show of this simulation (`--stand-in scripts/rehearsal/gfx936_stand_in.py`) counts in it, and nowhere else.
"""

import contextlib
import ctypes
import dataclasses
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = ["register"]

SIMULATED = "CPU server; HIP version, code object and kernel are stand-ins"
MISSION = (34816, 5120)
_FAKES = str(Path(__file__).parents[1] / "probes" / "fakes")
_kept: list[Any] = []
_files: dict[str, int] = {}


def register() -> None:
    """Entry point: called by vLLM in every process, after the platform was resolved."""
    arch = os.environ.get("GFX936_SIM_ARCH")
    if not arch or _kept:
        return
    from vllm.platforms import PlatformEnum, current_platform

    if not current_platform.is_cpu():
        raise RuntimeError("gfx936_sim is for a CPU test server only")
    os.environ["FAKE_AMDSMI_ARCH"] = arch
    sys.modules.pop("amdsmi", None)
    sys.path.insert(0, _FAKES)
    import amdsmi  # noqa: F401  (the stand-in of the platform's probes)

    sys.path.remove(_FAKES)
    for name in ("vllm._C", "vllm._rocm_C", "vllm._dcu_C"):  # rocm.py imports two; a second _C beside the CPU's would be loaded
        sys.modules.setdefault(name, types.ModuleType(name))
    import vllm.platforms.rocm as rocm

    _kept.extend((_define_kernel(), _define_gemv()))
    view = type("Gfx936View", (type(current_platform),), {"_enum": PlatformEnum.ROCM, "is_cpu": lambda self: False})()
    import vllm.model_executor.layers.linear as linear
    import vllm.model_executor.layers.utils as utils
    import vllm.model_executor.layers.vocab_parallel_embedding as embedding

    for module in (utils, linear, embedding):
        module.current_platform = view
    utils.num_compute_units = lambda device_id=0: 80
    gemm = _gate(utils.rocm_unquantized_gemm_impl, view)
    _watch_what_a_plugin_leaves(utils)
    library = torch.library.Library("vllm", "IMPL")
    library.impl("rocm_unquantized_gemm", _watched(_with_fault(gemm)), "CPU", allow_override=True)
    _kept.append(library)
    chosen = utils.dispatch_unquantized_gemm().__name__
    print(f"gfx936_sim: pid {os.getpid()} arch {rocm._GCN_ARCH} dispatch {chosen}", file=sys.stderr, flush=True)


def _gate(impl: Callable[..., torch.Tensor], view: Any) -> Callable[..., torch.Tensor]:
    """What the patched vLLM would register on this device; a stock vLLM registers `impl`."""
    try:
        from vllm.dcu import gate
        from vllm.dcu.dispatch.context import observe_context
        from vllm.dcu.env import beside
    except ModuleNotFoundError:
        return impl
    if os.environ.get("GFX936_SIM_FAULT") == "lost-counts" and "EngineCore" in _title():
        del os.environ["VLLM_DCU_STATS_DIR"]
    # Beside a plugin the gate observes for itself, once a model is loaded.
    gate.observe_context = lambda: _as_on_hardware(observe_context())  # type: ignore[attr-defined]
    with _platform(view):
        context = observe_context() if not beside() else None
    return impl if context is None else gate.wrap(impl, _as_on_hardware(context))


def _as_on_hardware(context: Any) -> Any:
    if context is None:
        return None
    from vllm.dcu.env import evidence_file
    from vllm.dcu.evidence.site import NO_SITE, observe_site

    toolchain = dataclasses.replace(context.toolchain, hip=os.environ.get("GFX936_SIM_HIP", "6.2.0"))
    store = evidence_file()
    return dataclasses.replace(
        context,
        toolchain=toolchain,
        site=observe_site(store, context.arch, toolchain, context.beside, SIMULATED) if store else NO_SITE,
        code_objects=frozenset({context.arch}),
        own_code_objects=frozenset({context.arch}),
        simulated=SIMULATED,
    )


def _watch_what_a_plugin_leaves(utils: Any) -> None:
    """Count N also where the operator is passed by: in the default function, and in the gate's operator beside a plugin."""
    default = _watched(torch.nn.functional.linear)
    utils.default_unquantized_gemm = lambda layer, x, weight, bias=None: default(x, weight, bias)
    with contextlib.suppress(ModuleNotFoundError):
        import vllm.dcu.dispatch.beside as beside

        taken = beside._linear

        @functools.wraps(taken)
        def watched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, path: int) -> torch.Tensor:
            return _watched(functools.partial(taken, path=path))(x, weight, bias)

        beside._linear = watched


@contextlib.contextmanager
def _platform(view: Any) -> Iterator[None]:
    """`vllm.platforms.current_platform` is `view` while the gate looks at it."""
    import vllm.platforms

    before = vllm.platforms._current_platform
    vllm.platforms._current_platform = view
    try:
        yield
    finally:
        vllm.platforms._current_platform = before


def _watched(gemm: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def watched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if tuple(weight.shape) == MISSION:
            _note("rows", min(x.numel() // x.shape[-1], 255))
        return gemm(x, weight, bias)

    return watched


def _define_kernel() -> torch.library.Library:
    library = torch.library.Library("_rocm_C", "DEF")
    library.define("LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor")
    host = _host_kernel()
    left = [int(os.environ.get("GFX936_SIM_HOST_CALLS", "0"))]

    def llmm1(in_a: torch.Tensor, in_b: torch.Tensor, rows_per_block: int) -> torch.Tensor:
        if in_b.shape != (1, in_a.shape[1]) or in_a.dtype is not in_b.dtype or rows_per_block != 4:
            raise RuntimeError(f"LLMM1 was given {tuple(in_a.shape)}, {tuple(in_b.shape)}, {rows_per_block}")
        if not (in_a.is_contiguous() and in_b.is_contiguous()):
            raise RuntimeError("LLMM1 was given a tensor that is not contiguous")
        _note("calls", 1)
        if host is not None and left[0] > 0:
            left[0] -= 1
            return host(in_a, in_b)
        return _stand_in(in_a, in_b)

    library.impl("LLMM1", llmm1, "CPU")
    return library


def _define_gemv() -> torch.library.Library:
    library = torch.library.Library("_dcu_C", "DEF")
    library.define("gemv(Tensor weight, Tensor x, int variant) -> Tensor")
    wrong = os.environ.get("GFX936_SIM_FAULT", "").partition("wrong-variant:")[2]

    def gemv(weight: torch.Tensor, x: torch.Tensor, variant: int) -> torch.Tensor:
        if x.dim() != 2 or not 1 <= x.shape[0] <= 5 or x.shape[1] != weight.shape[1] or weight.dtype is not x.dtype:
            raise RuntimeError(f"gemv was given {tuple(weight.shape)}, {tuple(x.shape)}, variant {variant}")
        if not (weight.is_contiguous() and x.is_contiguous()):
            raise RuntimeError("gemv was given a tensor that is not contiguous")
        _note("gemv", variant)
        out = torch.nn.functional.linear(x, weight)
        if str(variant) == wrong:
            out[-1, -1] = -out[-1, -1] - 1
        return out

    library.impl("gemv", gemv, "CPU")
    return library


def _stand_in(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Four partial sums over K, each rounded to the tensors' type: about as inexact as LLMM1, and not `F.linear`'s bits."""
    step = weight.shape[1] // 4
    parts = [torch.nn.functional.linear(x[:, i : i + step], weight[:, i : i + step]) for i in range(0, 4 * step, step)]
    return torch.stack(parts).float().sum(0).to(weight.dtype)


def _host_kernel() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """The host build of the real kernel source at wave 64, as `scripts/rehearsal/wave` makes it."""
    path = os.environ.get("GFX936_SIM_HOST_KERNEL")
    if not path:
        return None
    entry = ctypes.CDLL(path).wave_llmm1
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    entry.argtypes = [pointer, pointer, pointer, i64, i64, i64, ctypes.c_int, i64, ctypes.c_int, pointer, i64]

    def call(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty((1, weight.shape[0]), dtype=weight.dtype)
        message = ctypes.create_string_buffer(256)
        m, k = weight.shape
        workers, bf16, rows_per_block = os.cpu_count() or 1, 1, 4
        addresses = (weight.data_ptr(), x.data_ptr(), out.data_ptr())
        if entry(*addresses, m, k, 1, bf16, rows_per_block, workers, message, len(message)):
            raise RuntimeError(message.value.decode())
        _note("host", 1)
        return out

    return call


def _with_fault(gemm: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    fault = os.environ.get("GFX936_SIM_FAULT")

    def two_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if x.shape[0] == 2 and x.dim() == 2 and bias is None and tuple(weight.shape) == MISSION:
            return torch.cat([gemm(x[:1], weight, bias), gemm(x[1:], weight, bias)])
        return gemm(x, weight, bias)

    def never_called(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    faults = {None: gemm, "lost-counts": gemm, "two-rows": two_rows, "never-called": never_called}
    return gemm if fault and fault.startswith("wrong-variant:") else faults[fault]


def _title() -> str:
    return Path("/proc/self/cmdline").read_text(errors="replace")


def _note(kind: str, value: int) -> None:
    """One byte at the end of this process's file: a single write, so that a kill loses nothing and halves nothing."""
    if kind not in _files:
        path = Path(os.environ["GFX936_SIM_LOG"]) / f"{kind}-{os.getpid()}"
        _files[kind] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(_files[kind], bytes([value]))
