# SPDX-License-Identifier: Apache-2.0
"""Which group an operator or a kernel belongs to, by its name and by where it was called.  Standard library only."""

import re
from collections.abc import Sequence

from vllm.dcu.profile.report import Group

__all__ = ["group_of", "is_copy"]

_COPY_OPERATORS = frozenset({"aten::to", "aten::_to_copy", "aten::copy_", "aten::contiguous", "aten::clone"})
_COPY_KERNELS = re.compile(r"Memcpy|Memset|direct_copy_kernel|bfloat16_copy|float16_copy|copy_device_to_device|CatArrayBatchedCopy")
_SAMPLE = re.compile(r": sample\b")
# In this order: a DeltaNet layer is called an attention by vLLM, and both normalise.
_NAMES = (
    (
        Group.DELTA_NET,
        re.compile(r"gdn|gated_delta|delta_rule|causal_conv1d|fused_recurrent|chunk_(fwd|scaled_dot)|recompute_w_u|solve_tril"),
    ),
    (Group.ATTENTION, re.compile(r"attention|attn|flash|fmha|reshape_and_cache|kv_cache|rotary|kernel_unified|softmax_reducev")),
    (Group.NORM, re.compile(r"norm|aten::rsqrt|aten::pow|aten::mean")),
    (Group.SAMPLING, re.compile(r"argmax|topk|top_k|multinomial|exponential|sampl|penalt")),
)


def is_copy(operators: Sequence[str], kernel: str) -> bool:
    """Whether it moves or casts data and computes nothing."""
    return any(name in _COPY_OPERATORS for name in operators) or _COPY_KERNELS.search(kernel) is not None


def group_of(scopes: Sequence[str], operators: Sequence[str], kernel: str, linear: bool) -> Group:
    """The group, of the names of the scopes and operators around it, outermost first, and of what ran."""
    if is_copy(operators, kernel):
        return Group.COPY
    if linear:
        return Group.LINEAR
    if any(_SAMPLE.search(scope) for scope in scopes):
        return Group.SAMPLING
    words = " ".join((*operators, kernel))
    return next((group for group, pattern in _NAMES if pattern.search(words)), Group.OTHER)
