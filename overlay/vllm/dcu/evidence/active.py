# SPDX-License-Identifier: Apache-2.0
"""Which platform class runs in this process, and whether it is ours to speak for.

An out-of-tree platform plugin takes precedence over the built-in platforms. It is respected: nothing
of ours is imposed on it, and nothing that it does is called verified by us.
"""

import sys
from dataclasses import dataclass
from importlib.metadata import packages_distributions

from vllm.dcu import detect
from vllm.dcu.device.plugins import platform_plugins

__all__ = ["ActivePlatform", "active_platform", "describe", "platform_plugins"]


@dataclass(frozen=True)
class ActivePlatform:
    """The platform that vLLM resolved.

    Attributes:
        qualname: module and name of its class.
        distributions: the installed packages that the class comes from.
        ours: whether it is the DCU platform of this build.
        sentence: the same in words, for reports.
    """

    qualname: str
    distributions: tuple[str, ...]
    ours: bool
    sentence: str


def describe(qualname: str, distributions: tuple[str, ...], arch: str | None) -> ActivePlatform:
    """The verdict on a platform class, given the arch that rocm.py works with (None: it is not loaded)."""
    if qualname == detect.PLATFORM:
        return ActivePlatform(qualname, distributions, True, f"The platform is {qualname}: ours, on {arch}.")
    if qualname.startswith("vllm."):
        sentence = (
            f"The platform is {qualname}: upstream's own, which vLLM chooses where there is no gfx936. "
            "It is not the DCU platform of this build."
        )
    else:
        source = f" of {', '.join(distributions)}" if distributions else ""
        sentence = (
            f"The platform is {qualname}{source}: an out-of-tree plugin, which takes precedence over the built-in "
            "platforms. Nothing that runs on it is this project's to vouch for. To use the DCU platform of this "
            "build, uninstall the plugin or leave it out of VLLM_PLUGINS."
        )
    return ActivePlatform(qualname, distributions, False, sentence)


def active_platform() -> ActivePlatform:
    """Resolve the platform as vLLM does and say whose it is. Initialises no device that vLLM itself does not.

    A platform that cannot be loaded is an answer too: the class that vLLM chose may need a library that this build lacks.
    """
    try:
        from vllm.platforms import current_platform

        kind = type(current_platform)
    except Exception as error:  # whatever a platform module raises while it is imported
        sentence = (
            f"No platform could be loaded ({type(error).__name__}: {error}). vLLM chose one that this build has no libraries "
            "for; `python -m vllm.dcu manifest` says what this build is for."
        )
        return ActivePlatform("none", (), False, sentence)
    top = kind.__module__.split(".")[0]
    rocm = sys.modules.get("vllm.platforms.rocm")
    arch = str(rocm._GCN_ARCH) if rocm is not None else None
    return describe(f"{kind.__module__}.{kind.__qualname__}", tuple(packages_distributions().get(top, ())), arch)
