# SPDX-License-Identifier: Apache-2.0
"""The platform on a DCU: upstream's RocmPlatform, complete without amdsmi, and with shut doors.

gfx936 is in none of upstream's arch sets and `_GCN_ARCH` is sealed, so that most answers are already
those of an unknown device. What is overridden here are the answers that must not depend on how
upstream words its tests, the ones that need amdsmi, and the requests that a user makes by name.
"""

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from vllm.dcu import detect
from vllm.dcu.arch import base_arch
from vllm.dcu.device import footing, kfd, settled, shut
from vllm.logger import init_logger
from vllm.platforms import rocm
from vllm.platforms.rocm import RocmPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

__all__ = ["DcuRocmPlatform"]

logger = init_logger(__name__)


_OPENED = footing.close_families(rocm)
"""Predicates of upstream's ROCm module that said yes, and say no from here on: this module is imported before anything can ask them."""


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise ValueError(reason)


class DcuRocmPlatform(RocmPlatform):
    """ROCm on a DCU (`_enum` is ROCM, `isinstance(_, RocmPlatform)` holds)."""

    def __init__(self) -> None:
        """Withdraws requests for shut capabilities from the environment, one warning each."""
        super().__init__()
        found = footing.footing()
        footing.say_once(logger, found.sentence)
        if _OPENED and not found.edits:
            footing.say_once(logger, f"DCU: {', '.join(_OPENED)} of vllm.platforms.rocm were set on gfx936 and are closed.")
        for sentence in shut.withdraw(os.environ):
            logger.warning(sentence)

    # Constants: compiled code asks these, and no wording of an upstream arch test may open them.

    @classmethod
    def supports_fp8(cls) -> bool:
        return False

    @classmethod
    def is_fp8_fnuz(cls) -> bool:
        return False

    @classmethod
    def supports_mx(cls) -> bool:
        return False

    @classmethod
    def is_navi(cls) -> bool:
        return False

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        """Never: it has hard-locked gfx936 hosts (docs/evidence/field-report.md). Quick all-reduce is built behind the same answer."""
        return False

    # Without amdsmi. Where it named the arch it works, and upstream's own code runs.

    @classmethod
    @lru_cache(maxsize=8)
    def get_device_name(cls, device_id: int = 0) -> str:
        """The market name by amdsmi; without it one name a DCU arch, never a guessed product."""
        if detect.arch_source() == "amdsmi":
            return str(super().get_device_name(device_id))
        return f"Hygon DCU {base_arch(rocm._GCN_ARCH)}"

    @classmethod
    def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
        """Whether each pair has a direct link that is not PCIe; by KFD's links without amdsmi.

        Unknown devices count as not connected.
        """
        if detect.arch_source() == "amdsmi":
            return bool(super().is_fully_connected(physical_device_ids))
        nodes = kfd.gpu_nodes()
        if any(not 0 <= i < len(nodes) for i in physical_device_ids):
            return False
        numbers = [nodes[i].number for i in physical_device_ids]
        joined = {(link.source, link.target) for n in numbers for link in kfd.links(n) if link.is_xgmi}
        return all((a, b) in joined for a in numbers for b in numbers if a != b)

    @classmethod
    def device_count(cls) -> int:
        """Visible devices; by KFD without amdsmi, where upstream would start the HIP runtime."""
        if detect.arch_source() == "kfd":
            nodes = kfd.visible(kfd.gpu_nodes())
            if nodes is not None:
                return len(nodes)
        return int(super().device_count())

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Upstream's; and, now that a worker has its device, whether that is the one that everything was decided for (else RuntimeError).

        Someone may have chosen a device after this class was chosen, among several kinds. And a plugin or an override may have changed the
        configuration after it was made: it is looked at again (ValueError where it opens what is shut).
        """
        from vllm.config import get_current_vllm_config_or_none

        _refuse(settled.refusal(get_current_vllm_config_or_none()))
        super().check_if_supports_dtype(dtype)
        found = str(torch.cuda.get_device_properties(torch.cuda.current_device()).gcnArchName)
        if base_arch(found) != base_arch(rocm._GCN_ARCH):
            raise RuntimeError(
                f"this worker's device is {found}, and its process was started for {rocm._GCN_ARCH}: "
                "set HIP_VISIBLE_DEVICES to devices of one kind before vLLM starts"
            )

    # Requests by name.

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: "AttentionBackendEnum | None",
        attn_selector_config: "AttentionSelectorConfig",
        num_heads: int | None = None,
        **kwargs: Any,
    ) -> str:
        """Upstream's choice, if it and the layer's KV cache are open here. Raises ValueError with the reason otherwise.

        Asked by every attention layer when it is built, after a checkpoint or an override changed what the configuration said.
        """
        footing.look_again(logger)  # every worker comes here with the layers imported, before the first forward
        from vllm.config import get_current_vllm_config_or_none
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        _refuse(shut.layer_refusal(str(attn_selector_config.kv_cache_dtype)))
        _refuse(settled.quantization_object_refusal(getattr(get_current_vllm_config_or_none(), "quant_config", None)))
        if selected_backend is not None:
            _refuse(shut.attention_refusal(selected_backend.name))
        path = str(super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads, **kwargs))
        if selected_backend is None:
            chosen = next((b.name for b in AttentionBackendEnum if b.value and b.get_path() == path), path)
            _refuse(shut.attention_refusal(chosen))
        return path

    @classmethod
    def get_supported_vit_attn_backends(cls) -> list["AttentionBackendEnum"]:
        return [b for b in super().get_supported_vit_attn_backends() if shut.attention_refusal(b.name, vit=True) is None]

    @classmethod
    def get_vit_attn_backend(
        cls,
        head_size: int,
        dtype: torch.dtype,
        backend: "AttentionBackendEnum | None" = None,
    ) -> "AttentionBackendEnum":
        """Upstream's choice for vision encoders, if it is open here; ValueError otherwise."""
        if backend is not None:
            _refuse(shut.attention_refusal(backend.name, vit=True))
        chosen = super().get_vit_attn_backend(head_size, dtype, backend)
        _refuse(shut.attention_refusal(chosen.name, vit=True))
        return chosen

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """Raises ValueError for fp8 and mx methods, otherwise upstream's answer."""
        _refuse(shut.quantization_refusal(quant))
        super().verify_quantization(quant)

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """Upstream's, then: nothing that is shut is opened by any model of it (ValueError), and no custom all-reduce, whoever asked."""
        super().check_and_update_config(vllm_config)
        _refuse(settled.refusal(vllm_config))
        speculative = getattr(vllm_config, "speculative_config", None)
        vllm_config.parallel_config.disable_custom_all_reduce = True
        if (drafts := getattr(speculative, "draft_parallel_config", None)) is not None:
            drafts.disable_custom_all_reduce = True
        draft = getattr(speculative, "draft_model_config", None)
        if draft is not None and getattr(draft, "quantization", None) is not None:
            # Upstream makes this object only when it loads the draft, with what is in its files.
            _refuse(settled.quantization_object_refusal(vllm_config.get_quantization_config(draft, vllm_config.load_config)))

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Upstream's, which is asked for right before it decides on custom all-reduce: that is off by now, whatever was set."""
        from vllm.distributed.parallel_state import set_custom_all_reduce

        set_custom_all_reduce(False)
        return str(super().get_device_communicator_cls())
