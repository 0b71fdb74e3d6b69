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

from vllm.dcu.arch import base_arch, is_dcu_arch
from vllm.dcu.env import Switches, evidence_file, read_switches
from vllm.dcu.evidence.site import NO_SITE, Site, observe_site
from vllm.dcu.records.kernels import KERNELS
from vllm.dcu.records.record import Record, Toolchain

__all__ = ["Context", "NativeOp", "assumed_context", "native_ops", "observe_context", "running_toolchain"]


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
        code_objects: archs the extension holds code for; None when that could not be read.
        switches: what the environment asks for.
        simulated: empty on hardware. Otherwise what is simulated, for people to read.
        site: what the site's own evidence means here.
    """

    arch: str
    device_type: str
    toolchain: Toolchain
    ops: Mapping[str, NativeOp] = field(default_factory=dict)
    code_objects: frozenset[str] | None = None
    switches: Switches = field(default_factory=Switches)
    simulated: str = ""
    site: Site = NO_SITE

    @property
    def label(self) -> str:
        """The device for people: `gfx936`, or `gfx936, simulated: <what>`."""
        return f"{self.arch}, simulated: {self.simulated}" if self.simulated else self.arch


def observe_context() -> Context | None:
    """The facts of this process, or None where vLLM does not run as ROCm on a DCU arch.

    Touches no device and imports no platform: the platform was resolved before the operator is registered.

    Raises:
        EnvError: a switch has a value that cannot be read.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_rocm():
        return None
    rocm = sys.modules.get("vllm.platforms.rocm")
    arch = getattr(rocm, "_GCN_ARCH", "")
    if not is_dcu_arch(arch):
        return None
    toolchain, evidence = running_toolchain(), evidence_file()
    return Context(
        arch=base_arch(arch),
        device_type=current_platform.device_type,
        toolchain=toolchain,
        ops=native_ops(),
        code_objects=_extension_targets(),
        switches=read_switches(),
        site=observe_site(evidence, base_arch(arch), toolchain) if evidence else NO_SITE,
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
        switches=read_switches(),
        simulated="assumed for this explanation, with the operator, code object and toolchain that the record wants",
    )


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


def _extension_targets() -> frozenset[str] | None:
    try:
        from vllm.dcu.device.codeobjects import code_object_targets

        spec = importlib.util.find_spec("vllm._rocm_C")
        if spec is None or spec.origin is None:
            return frozenset()
        return frozenset(base_arch(target) for target in code_object_targets(Path(spec.origin)))
    except Exception:
        # Whatever is wrong with the file, the answer is "unknown", which closes the gate and says so.
        return None
