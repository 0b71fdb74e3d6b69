# SPDX-License-Identifier: Apache-2.0
"""TEST ONLY: the platform classes of the stand-in, which are no subclass of vLLM's RocmPlatform and carry ROCm's enum."""

import os
import sys

from vllm.platforms.interface import Platform, PlatformEnum

__all__ = ["HipStandIn"]


class HipStandIn(Platform):  # type: ignore[misc]
    """As the vendor's: a Platform of its own, ROCm by its enum; custom all-reduce is on."""

    _enum = PlatformEnum.ROCM
    device_name = "hip"
    device_type = "cpu" if os.environ.get("STAND_IN_HCU_DEVICE") == "cpu tensors" else "cuda"
    dispatch_key = device_type.upper()
    ray_device_key = "GPU"
    dist_backend = "nccl"
    device_control_env_var = "CUDA_VISIBLE_DEVICES"

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        return True


if os.environ.get("STAND_IN_HCU_DEVICE") == "cpu":
    from vllm.platforms.cpu import CpuPlatform

    class CpuStandIn(CpuPlatform):  # type: ignore[misc]
        """The same, made so that a CPU can serve it: ROCm for who chooses a Linear and for the gate, the CPU's own for all who compute."""

        _enum = PlatformEnum.ROCM

        def is_rocm(self) -> bool:
            asker = str(sys._getframe(1).f_globals.get("__name__"))
            return asker.startswith(("vllm.dcu.", "vllm.model_executor.layers.utils"))

        def is_cpu(self) -> bool:
            return True

        @classmethod
        def use_custom_allreduce(cls) -> bool:
            return True
