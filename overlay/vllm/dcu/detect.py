# SPDX-License-Identifier: Apache-2.0
"""What the hooks in `vllm/platforms` call: is this a DCU, and which arch string does rocm.py see.

amdsmi comes first, as upstream has it, and where it works its answer stands. Some DTK images have
no usable amdsmi; there a HIP build of torch together with the kernel's KFD topology is enough, and
initialises nothing. torch's own device properties come last, because asking for them initialises
the device. No environment variable is evidence: PYTORCH_ROCM_ARCH names build targets.
"""

import functools
import logging
import os
from collections.abc import Callable
from typing import SupportsIndex

from vllm.dcu.arch import base_arch, is_dcu_arch
from vllm.dcu.device import kfd, plugins
from vllm.dcu.device.footing import footing

__all__ = ["PLATFORM", "SealedArch", "also_without_amdsmi", "amdsmi_import_errors", "arch_source", "own_arch", "resolve_gcn_arch"]

logger = logging.getLogger(__name__)

PLATFORM = "vllm.dcu.platform.DcuRocmPlatform"
"""Class path of the platform on a DCU: upstream's RocmPlatform with what nobody verified kept shut."""

_UPSTREAM_PLATFORM = "vllm.platforms.rocm.RocmPlatform"
_sources: dict[str, str] = {}


class SealedArch(str):
    """A DCU's arch string that no fragment of it matches.

    Upstream opens native paths by substring tests (`"gfx94" in arch`; from 0.27.1 on `"gfx9" in arch`).
    A test for a family has to say no here, also one that upstream adds tomorrow; the whole base name,
    the whole string and the bare prefix `gfx` still say yes. Equality, hashing, slicing, formatting
    and regular expressions are those of `str`, so that the capability is still read from it.
    """

    __slots__ = ()

    def _matches(self, fragment: str) -> bool:
        return fragment in ("", "gfx", base_arch(str(self)), str(self))

    def __contains__(self, fragment: str) -> bool:  # type: ignore[override]
        return self._matches(fragment)

    def startswith(
        self,
        prefix: str | tuple[str, ...],
        start: SupportsIndex | None = None,
        end: SupportsIndex | None = None,
    ) -> bool:
        prefixes = prefix if isinstance(prefix, tuple) else (prefix,)
        return str(self).startswith(prefix, start, end) and any(self._matches(p) for p in prefixes)


class DeafArch(SealedArch):
    """A DCU's arch string where the file that asks it was edited: not even the whole name matches.

    The vendor's plugin adds `"gfx936"` to the names of upstream's sets, in the text of rocm.py.
    """

    __slots__ = ()

    def _matches(self, fragment: str) -> bool:
        return fragment in ("", "gfx")


@functools.cache
def _hip_torch() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.version.hip)


def _kfd_arch() -> str | None:
    """The DCU arch by KFD alone, where the torch of this process is a HIP build."""
    return kfd.dcu_arch() if _hip_torch() else None


def _torch_arch() -> str | None:
    """The first visible device's arch by torch itself; initialises the device.

    Asked only where neither KFD nor amdsmi can say which device that is.
    """
    if not _hip_torch():
        return None
    import torch

    try:
        if torch.cuda.device_count() == 0:
            return None
        return str(torch.cuda.get_device_properties(0).gcnArchName)
    except (RuntimeError, AssertionError, AttributeError) as error:
        logger.debug("torch does not name the device's arch either: %s", error)
        return None


def _amdsmi_archs() -> tuple[str, ...]:
    """What a working amdsmi says of the devices of this machine, whichever of them this process sees; () without one."""
    try:
        import amdsmi

        amdsmi.amdsmi_init()
        try:
            infos = [amdsmi.amdsmi_get_gpu_asic_info(handle) for handle in amdsmi.amdsmi_get_processor_handles()]
        finally:
            amdsmi.amdsmi_shut_down()
    except Exception as error:  # any failure of a vendor's module means the same: it does not tell
        logger.debug("amdsmi does not name the device's arch: %s", error)
        return ()
    return tuple(str(info.get("target_graphics_version") or "") for info in infos)


def _visible_arch() -> tuple[str, str] | None:
    """(arch, who says so) of the device that this process sees first, on a machine with a DCU and devices of other archs; None elsewhere.

    amdsmi knows nothing of visibility, so that the first device of its list may be one that this process never sees.
    """
    nodes = kfd.gpu_nodes()
    if not _hip_torch() or not _mixed(nodes):
        return None
    left = kfd.visible(nodes) if nodes else None
    if left:
        return left[0].arch, "kfd"
    return _torch_arch() or "", "torch"


def _mixed(nodes: tuple[kfd.Node, ...]) -> bool:
    if nodes:
        return kfd.several_kinds(nodes)
    archs = {base_arch(arch) for arch in _amdsmi_archs()}
    return len(archs) > 1 and any(map(is_dcu_arch, archs))


def own_arch() -> str | None:
    """The device's arch without rocm.py, which another package's platform need not have loaded. Torch is the last resort, as it is there."""
    if (seen := _visible_arch()) is not None:
        return seen[0]
    return _kfd_arch() or next(iter(_amdsmi_archs()), None) or _torch_arch()


def amdsmi_import_errors() -> tuple[type[Exception], ...]:
    """What counts as "amdsmi is absent" when rocm.py imports it.

    Upstream: ImportError. On a DCU also whatever the module raises instead: it reads environment
    variables (KeyError) and loads a shared library (OSError) while it is imported.
    """
    return (Exception,) if _kfd_arch() else (ImportError,)


def resolve_gcn_arch(query: Callable[[], str], fallback: Callable[[], str]) -> str:
    """The arch string for rocm.py: `query` (amdsmi), else KFD on a DCU, else upstream's `fallback`; with several kinds, the visible device's.

    Returns a `SealedArch` for a DCU, the untouched string for every other device.
    """
    failure: Exception | None = None
    if (seen := _visible_arch()) is not None:
        arch, _sources["arch"] = seen
        logger.info("This machine has devices of several kinds: the arch %s is that of the first visible one, by %s.", *seen)
        return SealedArch(arch) if is_dcu_arch(arch) else arch or fallback()
    try:
        arch, source = query(), "amdsmi"
    except Exception as error:  # NameError without amdsmi, AmdSmiException with a broken one
        arch, source, failure = "", "", error
    if not arch.startswith("gfx"):  # an amdsmi that does not know answers "N/A"
        known = _kfd_arch()
        if known is not None:
            # rocm.py has said already that amdsmi is absent; a broken one is said here.
            if not isinstance(failure, NameError):
                logger.warning("amdsmi does not tell this device's arch (%r).", failure or arch)
            logger.info("The arch %s comes from the kernel's KFD topology.", known)
            if os.environ.get(kfd.TEST_ROOT_ENV):
                logger.warning("%s is set: that topology is a stand-in, there may be no such device.", kfd.TEST_ROOT_ENV)
            arch, source = known, "kfd"
        elif failure is not None:
            arch, source = fallback(), "torch"
    _sources["arch"] = source
    if not is_dcu_arch(arch):
        return arch
    # A plugin that has the platform keeps what it opened for itself.
    return DeafArch(arch) if footing().edits and not plugins.in_use() else SealedArch(arch)


def arch_source() -> str | None:
    """Who named the arch that rocm.py works with: `amdsmi`, `kfd`, `torch`, None before it was asked."""
    return _sources.get("arch")


def _built_for_cpu() -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return False


def also_without_amdsmi(probe: Callable[[], str | None]) -> Callable[[], str | None]:
    """Upstream's ROCm `probe`, completed for DCUs: found without amdsmi, and given their own class.

    The answer changes for DCUs only. A CPU build stays one, also on a machine with a DCU.
    """

    @functools.wraps(probe)
    def rocm_platform_plugin() -> str | None:
        found = probe()
        if found is not None and found != _UPSTREAM_PLATFORM:
            return found
        if found is None and _built_for_cpu():
            return None
        if (seen := _visible_arch()) is not None:
            arch: str | None = seen[0]
        elif (arch := _kfd_arch()) is None and found:
            arch = next(iter(_amdsmi_archs()), None)
        elif arch is None and not kfd.gpu_nodes():
            arch = _torch_arch()
        return PLATFORM if arch is not None and is_dcu_arch(arch) else found

    return rocm_platform_plugin
