"""Which evidence still holds, who is asked for the arch, and where ranges touch: the small conditions that open or close."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from vllm.dcu import detect
from vllm.dcu.device import kfd
from vllm.dcu.evidence import binding, site
from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Measure, Outcome
from vllm.dcu.evidence.store import RUNG_IDS
from vllm.dcu.records.record import Toolchain
from vllm.dcu.verify.rungs import endtoend

BOUND = {f.name for f in fields(Binding)} - {"toolchain", "simulated"} | {f.name for f in fields(Toolchain)} - {"python"}


def test_every_dependency_of_a_rung_is_a_field_of_the_binding_and_every_field_takes_a_rung() -> None:
    assert set(site._DEPENDS) <= set(RUNG_IDS)
    assert set().union(*site._DEPENDS.values()) == BOUND


@pytest.mark.parametrize(
    ("module", "says"),
    [({"version": "6.2.1\n", "srcversion": "AA11\n"}, "6.2.1"), ({"srcversion": "AA11\n"}, "AA11"), ({}, "of kernel ")],
)
def test_a_driver_is_known_by_its_version_else_by_its_source_else_by_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: dict[str, str], says: str
) -> None:
    function = tmp_path / "bus/pci/devices/0000:03:00.0"
    (tmp_path / "module/hydcu").mkdir(parents=True)
    (tmp_path / "drivers/hydcu").mkdir(parents=True)
    function.mkdir(parents=True)
    for name, text in {"vendor": f"0x{kfd.HYGON_VENDOR_ID:04x}\n", "class": "0x0b4000\n", "device": "0x6210\n"}.items():
        (function / name).write_text(text)
    for name, text in module.items():
        (tmp_path / "module/hydcu" / name).write_text(text)
    (tmp_path / "drivers/hydcu/module").symlink_to(tmp_path / "module/hydcu")
    (function / "driver").symlink_to(tmp_path / "drivers/hydcu")
    monkeypatch.setattr(binding, "_SYS", tmp_path)
    assert binding._driver().startswith(f"hydcu {says}")


@pytest.mark.parametrize("hip", [True, False])
def test_the_topology_is_asked_in_hip_builds_only(monkeypatch: pytest.MonkeyPatch, hip: bool) -> None:
    asked: list[int] = []
    monkeypatch.setattr(detect, "_hip_torch", lambda: hip)
    monkeypatch.setattr(kfd, "dcu_arch", lambda: asked.append(1) or "gfx936")
    assert detect._kfd_arch() == ("gfx936" if hip else None)
    assert len(asked) == hip


def legs(low: float, median: float, high: float) -> Measure:
    return Measure(median, low, high, 2, "ms", "lower")


@pytest.mark.parametrize(
    ("on", "off", "outcome", "says"),
    [
        ((40, 41, 42), (43, 44, 45), Outcome.PASSED, "claim: 1.073 times"),
        ((40, 41, 43), (43, 44, 45), Outcome.PASSED, "no claim"),  # they touch in one value
        ((43, 44, 45), (40, 41, 43), Outcome.PASSED, "no claim"),
        ((44, 45, 46), (40, 41, 43), Outcome.FAILED, "beyond the noise"),
    ],
)
def test_ranges_that_touch_are_no_claim_in_either_direction(
    on: tuple[float, float, float], off: tuple[float, float, float], outcome: Outcome, says: str
) -> None:
    found = endtoend.judge({"TPOT, on": legs(*on), "TPOT, off": legs(*off)})
    assert found.outcome is outcome
    assert says in found.why
