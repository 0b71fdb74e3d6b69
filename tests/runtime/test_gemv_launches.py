"""Launches that the kernel counts itself reach the tally, `counters` and /metrics, replays of graphs among them. On the CPU, a stand-in counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from vllm.dcu import gate
from vllm.dcu.ask.counters import as_text
from vllm.dcu.dispatch.context import Context, NativeOp
from vllm.dcu.dispatch.counts import ProcessCounts, merge
from vllm.dcu.records.catalog import MISSION, semantics_of
from vllm.dcu.records.kernels import GEMV
from vllm.dcu.records.record import Contract

M, K, N, VARIANT = 64, 128, 2, 9
RECORD = replace(
    MISSION,
    id=f"site-gemv-gfx936-bfloat16-n{N}-m{M}-k{K}-v{VARIANT}",
    kernel="GEMV",
    contract=Contract("bfloat16", N, M, K, args={"variant": VARIANT}),
    semantics=semantics_of(GEMV),
)


class Device:
    """What a device with the kernel would hold: its count, which a replay moves without anybody in Python."""

    def __init__(self) -> None:
        self.counting, self.launches, self.broken = False, 0, False

    def gemv(self, weight: torch.Tensor, x: torch.Tensor, variant: int) -> torch.Tensor:
        self.replay()
        return torch.nn.functional.linear(x, weight)

    def replay(self) -> None:
        self.launches += self.counting

    def count(self, on: torch.Tensor) -> None:
        self.counting = True

    def read(self) -> torch.Tensor:
        if self.broken:
            raise RuntimeError("planted")
        return torch.tensor([[0, 15, N, M, K, VARIANT, self.launches], [1, 15, N, M, K, VARIANT, 0], [0, 15, 1, M, K, VARIANT, 77]])


@pytest.fixture
def device() -> Iterator[Device]:
    made, library = Device(), torch.library.Library("_dcu_C", "DEF")
    library.define("gemv(Tensor weight, Tensor x, int variant) -> Tensor")
    library.define("gemv_count(Tensor on) -> ()")
    library.define("gemv_launches() -> Tensor")
    library.impl("gemv", made.gemv, "CPU")
    library.impl("gemv_count", made.count, "CPU")
    library.impl("gemv_launches", made.read, "CompositeExplicitAutograd")
    yield made
    library._destroy()


def built(device: Device) -> gate.ActiveGate:
    op = torch.ops._dcu_C.gemv.default
    seen = Context("gfx936", "cpu", MISSION.target.toolchain, {GEMV.op: NativeOp(str(op._schema), op)}, simulated="a test",
                   own_code_objects=frozenset({"gfx936"}))  # fmt: skip
    return gate.build(seen, (RECORD,))


def counted(made: gate.ActiveGate) -> dict[str, int]:
    return {count.key.kind: count.value for count in made.tally.snapshot()}


def test_replays_are_counted_as_launches_and_not_as_hits(device: Device) -> None:
    made = built(device)
    weight, x = torch.randn(M, K).bfloat16(), torch.randn(N, K).bfloat16()
    assert torch.equal(made.gemm(x, weight, None), torch.nn.functional.linear(x, weight))
    for _ in range(4):
        device.replay()
    assert counted(made) == {"hit": 1, "launch": 5}
    (group,) = merge([ProcessCounts(made.tally._header, tuple(made.tally.snapshot()))])
    assert (group["hits"], group["launches"]) == ({RECORD.id: 1}, {RECORD.id: 5})
    assert f"{5:>12}  {RECORD.id}: by the kernel's own count" in as_text({"groups": [group], "problems": []})


def test_a_count_that_cannot_be_read_harms_nothing(device: Device) -> None:
    made = built(device)
    weight, x = torch.randn(M, K).bfloat16(), torch.randn(N, K).bfloat16()
    made.gemm(x, weight, None)
    assert counted(made) == {"hit": 1, "launch": 1}
    device.broken = True
    made.gemm(x, weight, None)
    assert counted(made) == {"hit": 2, "launch": 1}


def test_a_kernel_without_a_counter_runs_as_well(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "count", None)
    made = built(device)
    device.counting = False
    weight, x = torch.randn(M, K).bfloat16(), torch.randn(N, K).bfloat16()
    made.gemm(x, weight, None)
    assert counted(made)["hit"] == 1
