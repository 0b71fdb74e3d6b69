# SPDX-License-Identifier: Apache-2.0
"""What the rungs of one climb share: the capability that is verified, and where.  Imports no torch."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.numerics import LLMM1 as LLMM1_SUMS
from vllm.dcu.evidence.numerics import Sums
from vllm.dcu.records.gemv import VARIANTS, float32_roundings
from vllm.dcu.records.kernels import GEMV, KERNELS, Kernel
from vllm.dcu.records.record import Contract, Record

__all__ = ["MARGIN", "ModelPlan", "Stage", "Subject", "subject_of"]


MARGIN = 1.03
"""How many times faster than `F.linear` a kernel must be to be worth a record, in medians, besides the ranges of both not touching."""


@dataclass(frozen=True)
class Subject:
    """The capability: its id, its kernel, and what one call must be (dtype, n, m, k and the kernel's arguments are all named)."""

    id: str
    kernel: Kernel
    contract: Contract

    @property
    def shape(self) -> tuple[str, int, int]:
        """(dtype, M, K) of the weight."""
        c = self.contract
        assert c.dtype is not None
        assert c.m is not None
        assert c.k is not None
        return c.dtype, c.m, c.k

    @property
    def arguments(self) -> tuple[int, ...]:
        """The kernel's own arguments, in order."""
        return tuple(self.contract.args.values())

    @property
    def n(self) -> int:
        """Activation rows."""
        assert self.contract.n is not None
        return self.contract.n

    @property
    def block_rows(self) -> int:
        """What M must be a multiple of."""
        return self.contract.args.get("rows_per_block", 1)

    def sums(self, k: int) -> Sums:
        """How the kernel adds up K products."""
        if self.kernel is not GEMV:
            return LLMM1_SUMS
        return Sums(narrow=1, variance=1.0, wide=float32_roundings(k, VARIANTS[self.contract.args["variant"]].share))


def subject_of(record: Record) -> Subject:
    """The capability of a record that names its shape exactly."""
    return Subject(record.id, KERNELS[record.kernel], record.contract)


@dataclass(frozen=True)
class ModelPlan:
    """The user's model and how it is served.

    Attributes:
        model: a folder or name, as `vllm serve` takes it.
        arguments: further arguments of `vllm serve`, as the user gives them.
        tokens: how many tokens a short request makes.
        environment: variables for the processes that run the model, over this one's own.
    """

    model: str
    arguments: tuple[str, ...] = ()
    tokens: int = 16
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """Where the rungs run.

    Attributes:
        binding: what results are bound to; `binding.simulated` is empty on a DCU only.
        subject: the capability that is verified.
        device: torch's device for tensors, `cuda` for HIP.
        native: the operator, `native(weight[M, K], x[N, K], *arguments) -> [N, M]`; None where it is not registered.
        extension: the library that holds the kernel; None where there is none.
        wavefront: lanes, as the runtime reports them for the device; None without a device.
        no_device: why nothing can run on a device here; empty where something can.
        marks: names, or parts of names, by which a profiler shows the kernel.
        plan: the model; None where the user named none.
        python: interpreter for child processes.
        together: every capability that is on in the model runs of this stage, this one among them; empty: this one alone.
        whole: whether a whole device is simulated, gate and servers included; then its records open in that simulation, and nowhere else.
    """

    binding: Binding
    subject: Subject
    device: str
    native: Callable[..., Any] | None
    extension: Path | None
    wavefront: int | None
    no_device: str = ""
    marks: tuple[str, ...] = ("LLGemm1_kernel",)
    plan: ModelPlan | None = None
    python: str = sys.executable
    together: tuple[Subject, ...] = ()
    whole: bool = False

    @property
    def every(self) -> tuple[Subject, ...]:
        """The capabilities that are on together."""
        return self.together or (self.subject,)
