# SPDX-License-Identifier: Apache-2.0
"""What a piece of evidence is bound to: the device, the toolchain and the build it was seen on.  Standard library only.

Everything is read from what runs: the HIP library that is mapped into the process, the driver's own version file, the bytes
of the extension, the manifest of the imported package. Nothing here opens a device or starts the HIP runtime, because the gate reads
the binding before the first forward, in processes whose visible devices are not settled yet.

A field that could not be read is empty. Evidence with an empty field is kept for the reader and opens nothing.
"""

import hashlib
import importlib.util
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from vllm.dcu.records.record import Toolchain
from vllm.dcu.records.typed import Words

__all__ = ["Binding", "differences", "file_hash", "module_file", "observe_binding"]

_HIP_LIBRARIES = ("libgalaxyhip.so", "libamdhip64.so")
"""The HIP runtime as DTK ships it (with an ABI of its own, hashcat pull request 4758), and as ROCm names it."""
_BLAS_LIBRARIES = ("librocblas.so", "libhipblaslt.so")
_BLAS_VARIABLES = (
    "TORCH_BLAS_PREFER_HIPBLASLT",
    "ROCBLAS_USE_HIPBLASLT",
    "ROCBLAS_TENSILE_LIBPATH",
    "ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH",
    "HIPBLASLT_TENSILE_LIBPATH",
    "HIPBLASLT_TUNING_OVERRIDE_FILE",
    "PYTORCH_TUNABLEOP_ENABLED",
    "PYTORCH_TUNABLEOP_TUNING",
    "PYTORCH_TUNABLEOP_FILENAME",
    "PYTORCH_TUNABLEOP_ROCBLAS_ENABLED",
    "PYTORCH_TUNABLEOP_HIPBLASLT_ENABLED",
)
"""What torch and the two libraries read when they choose a kernel for a GEMM."""
_SYS = Path("/sys")
_CLASSES = ("0x0b40", "0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes that a DCU may have (0x0b40, a co-processor, was seen). The vendor's CPUs bring many functions of other classes."""


@dataclass(frozen=True)
class Binding:
    """What evidence was seen on.

    Attributes:
        device: vendor and device id of the PCI function, not a market name (one silicon has several).
        arch: base arch name.
        toolchain: torch, hip and vllm as the running libraries state them.
        hip_runtime: name and hash of the HIP library that is mapped into the process.
        dtk: version of the DTK that this library lies in.
        build: tree id and version of the manifest of the vllm that runs.
        extension: hash of the module that registers the kernel's operator (`vllm._rocm_C` for LLMM1, `vllm._dcu_C` for GEMV).
        driver: kernel driver and version.
        simulated: empty on a DCU; otherwise what is simulated or stands in, for people to read.
        blas: what `F.linear` computes with, which every comparison was made against: the mapped rocBLAS and hipBLASLt, and the variables
            that choose between and within them.
        platform: empty on our own platform; otherwise the plugin beside which it was seen: class, package, version and what it rewrote.
    """

    device: Annotated[str, Words(r"(\w{4}:\w{4}( \w{4}:\w{4})*)?", "PCI ids such as 1d94:6210")]
    arch: Annotated[str, Words(r"[a-z0-9_]+", "the name of an arch")]
    toolchain: Toolchain
    hip_runtime: Annotated[str, Words(r"(\S+ ([0-9a-f]{64})?)?", "a library's name and sha256")]
    dtk: str
    build: Annotated[str, Words(r"(\S+ [0-9a-f]{40})?", "a version and a tree id")]
    extension: Annotated[str, Words(r"([0-9a-f]{64})?", "a sha256")]
    driver: str
    simulated: str = ""
    blas: str = ""
    platform: str = ""

    @property
    def label(self) -> str:
        """The device for people."""
        return f"{self.arch}, simulated: {self.simulated}" if self.simulated else self.arch

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the fields that could not be read. The DTK's version is for the reader: its library's hash binds.

        `blas` is always known: that no such library is mapped is an answer.
        """
        return tuple(
            name for name, value in _flat(self).items() if not value and name not in ("simulated", "platform", "python", "dtk", "blas")
        )


def _flat(binding: Binding) -> dict[str, str]:
    data = asdict(binding)
    return {**data.pop("toolchain"), **data}


def differences(then: Binding, now: Binding) -> tuple[str, ...]:
    """The names of the fields in which two bindings differ. Python's version is for the reader and does not bind."""
    old, new = _flat(then), _flat(now)
    return tuple(name for name in old if name != "python" and old[name] != new[name])


def observe_binding(
    arch: str,
    toolchain: Toolchain,
    simulated: str = "",
    extension: Path | None = None,
    module: str = "vllm._rocm_C",
    platform: str = "",
) -> Binding:
    """The binding of this process.

    Args:
        arch, toolchain, simulated: what the gate's context says; `platform` is what it calls `beside`.
        extension: the library that holds the operator; by default the file of `module`.
    """
    library = _hip_library()
    return Binding(
        device=_device(),
        arch=arch,
        toolchain=toolchain,
        hip_runtime=f"{library.name} {file_hash(library)}" if library else "",
        dtk=_dtk(library),
        build=_build(),
        extension=file_hash(extension or module_file(module)),
        driver=_driver(),
        simulated=simulated,
        blas=_blas(),
        platform=platform,
    )


def _device() -> str:
    from vllm.dcu.device import kfd

    nodes = kfd.gpu_nodes()
    found = {f"{node.vendor_id:04x}:{node.device_id:04x}" for node in kfd.visible(nodes) or nodes}
    # A container may withhold the topology and still show the bus.
    found = found or {f"{kfd.HYGON_VENDOR_ID:04x}:{_first_line(folder / 'device').removeprefix('0x')}" for folder in _functions()}
    return " ".join(sorted(found))


def _functions() -> list[Path]:
    """The PCI functions of this machine's DCUs."""
    from vllm.dcu.device import kfd

    return [
        file.parent
        for file in sorted(_SYS.glob("bus/pci/devices/*/vendor"))
        if _first_line(file) == f"0x{kfd.HYGON_VENDOR_ID:04x}" and _first_line(file.with_name("class")).startswith(_CLASSES)
    ]


def _hip_library() -> Path | None:
    return _mapped(_HIP_LIBRARIES)


def _mapped(names: tuple[str, ...]) -> Path | None:
    """The first library of these names that this process runs on, as the kernel names it; not the one that a header came with."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    mapped = dict.fromkeys(Path(line.split(maxsplit=5)[-1]) for line in lines if " /" in line)
    return next((path for name in names for path in mapped if path.name.startswith(name)), None)


def _blas() -> str:
    """Libraries by hash; variables by value, and by the hash of the file that they name."""
    parts = []
    for name in _BLAS_LIBRARIES:
        library = _mapped((name,))
        parts.append(f"{library.name} {file_hash(library)}" if library else f"no {name}")
    for name in _BLAS_VARIABLES:
        if value := os.environ.get(name, "").strip():
            content = file_hash(Path(value)) if "/" in value or name.endswith("FILENAME") else ""
            parts.append(f"{name}={value}" + (f" ({content})" if content else ""))
    return ", ".join(parts)


def _dtk(library: Path | None) -> str:
    root = library.parent.parent if library else Path(os.environ.get("ROCM_PATH") or "/opt/dtk")
    for folder in (root, *root.parents[:2]):
        text = _first_line(folder / ".info" / "version")
        if text:
            return text
    return ""


def _driver() -> str:
    """The kernel driver that is bound to the DCUs, whatever it is called: its module's version, else that of the kernel it belongs to."""
    found = set()
    for folder in _functions():
        driver = folder / "driver"
        if not driver.exists():
            continue
        module = (driver / "module").resolve() if (driver / "module").exists() else _SYS / "module" / driver.resolve().name
        version = _first_line(module / "version") or _first_line(module / "srcversion") or f"of kernel {os.uname().release}"
        found.add(f"{driver.resolve().name} {version}")
    return ", ".join(sorted(found))


def _build() -> str:
    from vllm.dcu.manifest import ManifestError, read

    try:
        manifest = read()
    except ManifestError:
        return ""
    return f"{manifest.version} {manifest.tree}"


def module_file(name: str) -> Path | None:
    """The file of an extension module, which is not imported; None where there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def file_hash(path: Path | None) -> str:
    """sha256 of a regular file; empty where it is missing or cannot be read."""
    if path is None or not path.is_file():
        return ""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n", 1)[0].strip() if path.is_file() else ""
    except OSError:
        return ""
