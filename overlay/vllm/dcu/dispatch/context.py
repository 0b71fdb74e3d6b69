# SPDX-License-Identifier: Apache-2.0
"""What is known about this process before the first forward: the facts every standing decision is made from.

`observe_context()` reads the real process. A test or a rehearsal makes a `Context` by hand instead and must say so in
`simulated`: the label then stands in every log line, counter file and explanation.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.dcu import detect
from vllm.dcu.arch import base_arch, is_dcu_arch
from vllm.dcu.device.footing import AS_BUILT, Footing, close_families, footing, look
from vllm.dcu.device.plugins import Owner, home, owner
from vllm.dcu.env import BESIDE, EnvError, Switches, beside, evidence_file, read_switches
from vllm.dcu.evidence.site import NO_SITE, Site, observe_site
from vllm.dcu.records.kernels import GEMV, KERNELS, LLMM1, Kernel
from vllm.dcu.records.record import Record, Toolchain

__all__ = [
    "Context",
    "NativeOp",
    "assumed_context",
    "load_own_kernels",
    "native_ops",
    "observe_context",
    "register_fake_gemv",
    "running_toolchain",
]


@dataclass(frozen=True)
class NativeOp:
    """An operator as registered: its signature, and what to call. `call(weight, x, *args)` returns `[N, M]`."""

    schema: str
    call: Callable[..., Any]


@dataclass(frozen=True)
class Context:
    """The facts of one process.

    Attributes:
        arch: the device's base arch name.
        device_type: torch's name for it (`cuda` for HIP; simulations on the CPU say `cpu`).
        toolchain: what runs.
        ops: the native operators registered, by `namespace::name`.
        code_objects: archs `vllm._rocm_C` holds code for; None when that could not be read.
        own_code_objects: the same of `vllm._dcu_C`.
        switches: what the environment asks for.
        simulated: empty on hardware. Otherwise what is simulated, for people to read.
        site: what the site's own evidence means here.
        footing: whether the files that the decision rests on are the build's.
        beside: the plugin that has the platform and beside which the gate stands (see `Binding.platform`); empty on our own.
    """

    arch: str
    device_type: str
    toolchain: Toolchain
    ops: Mapping[str, NativeOp] = field(default_factory=dict)
    code_objects: frozenset[str] | None = None
    own_code_objects: frozenset[str] | None = frozenset()
    switches: Switches = field(default_factory=Switches)
    simulated: str = ""
    site: Site = NO_SITE
    footing: Footing = AS_BUILT
    beside: str = ""

    @property
    def label(self) -> str:
        """The device for people: `gfx936`, or `gfx936, simulated: <what>`."""
        return f"{self.arch}, simulated: {self.simulated}" if self.simulated else self.arch

    def code_for(self, kernel: Kernel) -> frozenset[str] | None:
        """Archs that the extension of `kernel` holds code for; None when that could not be read."""
        return self.code_objects if kernel.extension == LLMM1.extension else self.own_code_objects


def pair_asked_for() -> Owner | None:
    """The owner of the active platform, where VLLM_DCU_BESIDE asks for it. None: it asks for none, or vLLM does not run as ROCm.

    Raises:
        EnvError: another package has the platform than the one asked for.
    """
    from vllm.platforms import current_platform

    asked = beside() if current_platform.is_rocm() else ""
    if not asked:
        return None
    who = owner(type(current_platform))
    if who is None or who.name != asked:
        kind = type(current_platform)
        there = str(who or f"{kind.__module__}.{kind.__qualname__}")
        raise EnvError(f"{BESIDE} asks for {asked}, and the platform is {there}: install that plugin, or unset the variable.")
    return who


def observe_context() -> Context | None:
    """The facts of this process, or None where vLLM does not run as ROCm on a DCU arch, or under a platform that was not asked for.

    On our own platform it touches no device. Beside a plugin it asks torch where nothing else tells the arch.

    Raises:
        EnvError: a switch has a value that cannot be read or honoured.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_rocm():
        return None
    who = pair_asked_for()
    if who is None:
        rocm = sys.modules.get("vllm.platforms.rocm")
        arch = getattr(rocm, "_GCN_ARCH", "")
        if rocm is None or owner(type(current_platform)) or not is_dcu_arch(arch):
            return None
        close_families(rocm)
        stands, platform = footing(), ""
    else:
        arch = detect.own_arch() or ""
        if not is_dcu_arch(arch):
            return None
        found = look(Path(next(iter(sys.modules["vllm"].__path__))), home(type(current_platform)))
        stands, platform = found.beside(), f"{who}{f', rewrote {found.digest}' if found.digest else ''}"
    toolchain, evidence = running_toolchain(), evidence_file()
    load_own_kernels()
    return Context(
        arch=base_arch(arch),
        device_type=current_platform.device_type,
        toolchain=toolchain,
        ops=native_ops(),
        code_objects=_extension_targets(LLMM1.extension),
        own_code_objects=_extension_targets(GEMV.extension),
        switches=read_switches(),
        site=observe_site(evidence, base_arch(arch), toolchain, platform) if evidence else NO_SITE,
        footing=stands,
        beside=platform,
    )


def assumed_context(arch: str, record: Record, toolchain: Toolchain | None = None) -> Context:
    """A device that is not here, with all that `record` wants of a build: for explanations on any machine.

    The switches are this process's own. `toolchain` defaults to the record's.

    Raises:
        EnvError: a switch has a value that cannot be read.
    """
    kernel = KERNELS[record.kernel]
    return Context(
        arch=base_arch(arch),
        device_type="cuda",
        toolchain=toolchain or record.target.toolchain,
        ops={kernel.op: NativeOp(kernel.schema, _never_called)},
        code_objects=frozenset({record.target.arch}),
        own_code_objects=frozenset({record.target.arch}),
        switches=read_switches(),
        simulated="assumed for this explanation, with the operator, code object and toolchain that the record wants",
    )


def load_own_kernels() -> str:
    """Import `vllm._dcu_C` and give its operator a fake. Returns why it is not there; empty where it is."""
    try:
        importlib.import_module(GEMV.extension)
    except ImportError as error:
        return str(error)
    register_fake_gemv()
    return ""


def register_fake_gemv() -> None:
    """The shape of `_dcu_C::gemv`'s result, (N, M), for tracing: no device code runs. Once for each process."""
    import torch

    def gemv(weight: Any, x: Any, variant: int) -> Any:
        return x.new_empty((x.shape[0], weight.shape[0]))

    torch.library.register_fake(GEMV.op, gemv, allow_override=True)


def _never_called(*args: object) -> None:
    raise AssertionError("an assumed operator is only looked at")


def running_toolchain() -> Toolchain:
    """The versions of this process, as the running libraries state them."""
    import torch
    import vllm

    return Toolchain(
        torch=torch.__version__,
        hip=torch.version.hip or "",
        vllm=getattr(vllm, "__version__", ""),
        python=".".join(str(part) for part in sys.version_info[:3]),
    )


def native_ops() -> dict[str, NativeOp]:
    """The operators of `KERNELS` that the gate can call and that are registered now, with no overload but the default."""
    import torch

    found: dict[str, NativeOp] = {}
    for kernel in KERNELS.values():
        namespace, name = kernel.op.split("::")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        overload = getattr(packet, "default", None)
        if kernel.dispatchable and overload is not None:
            found[kernel.op] = NativeOp(schema=str(overload._schema), call=overload)
    return found


def _extension_targets(module: str) -> frozenset[str] | None:
    try:
        from vllm.dcu.device.codeobjects import code_object_targets

        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            return frozenset()
        return frozenset(base_arch(target) for target in code_object_targets(Path(spec.origin)))
    except Exception:
        # Whatever is wrong with the file, the answer is "unknown", which closes the gate and says so.
        return None
