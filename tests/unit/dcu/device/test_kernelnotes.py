"""V1's two readers: kernel metadata from a code object, and the verdict on it; a 32-wide build is refused by its LDS."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack
from vllm.dcu.device.kernelnotes import KernelNote, NoteError, kernel_notes
from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Outcome, Result, Trial
from vllm.dcu.records.record import Toolchain
from vllm.dcu.verify.rungs import build
from vllm.dcu.verify.rungs.stage import Stage, subject_of

from tests.unit.dcu.evidence.evidence_samples import BUILT_IN, records_by_id


def elf(*kernels: KernelNote, owner: bytes = b"AMDGPU\0\0") -> bytes:
    """A code object that holds nothing but its metadata note."""
    content = msgpack.encode({"amdhsa.version": [1, 2], "amdhsa.kernels": kernels})
    note = struct.pack("<III", 7, len(content), 32) + owner + content + bytes(-len(content) % 4)
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<HH", head, 54, 56, 1)
    return bytes(head) + struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4) + note


def kernel(rows: int = 4, wave: int = 64, believed: int = 64, scratch: int = 0, name: str = "LLGemm1_kernel") -> KernelNote:
    return KernelNote(f"_ZN4vllm14{name}IN3c108BFloat16ELi{rows}EEEvPKT_", wave, rows * believed * 4, scratch)


RIGHT = tuple(kernel(rows) for rows in (2, 4, 8))


def library(folder: Path, code: bytes, arch: str = "gfx936") -> Path:
    ident = f"hipv4-amdgcn-amd-amdhsa--{arch}".encode()
    head = struct.pack("<Q", 1) + struct.pack("<QQQ", 24 + 8 + 24 + len(ident), len(code), len(ident)) + ident
    path = folder / "_rocm_C.abi3.so"
    path.write_bytes(b"\x7fELF host part" + build.MAGIC + head + code)
    return path


def climb_v1(folder: Path, path: Path | None, wavefront: int | None = 64, simulated: str = "") -> Result:
    binding = Binding("1d94:6210", "gfx936", Toolchain("2.10.0", "6.2", "0.18.1"), "hip", "", "b", "e", "d", simulated)
    stage = Stage(binding, subject_of(records_by_id()[BUILT_IN]), "cuda", None, path, wavefront)
    return build.code_object(stage, Trial(binding, folder / "raw", lambda line: None))


def test_every_kernel_of_the_note_is_read() -> None:
    assert kernel_notes(elf(*RIGHT)) == RIGHT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        b"\x7fELF\x01\x01" + bytes(80),
        elf(*RIGHT)[:150],
        elf(*RIGHT)[:400],
        elf(*RIGHT, owner=b"OTHER\0\0\0"),
        elf(*RIGHT).replace(b".name", b".nome"),
        elf(*RIGHT).replace(b"\x82\xaeamdhsa", b"\xc1\xaeamdhsa"),
    ],
)
def test_damaged_metadata_is_an_error(data: bytes) -> None:
    with pytest.raises(NoteError):
        kernel_notes(data)


def test_metadata_nested_without_end_is_an_error() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    code = elf(*RIGHT)
    note = msgpack.encode({"amdhsa.kernels": deep})
    with pytest.raises(NoteError):
        kernel_notes(code[:140] + note + code[140 + len(note) :])


def test_a_right_library_passes(tmp_path: Path) -> None:
    result = climb_v1(tmp_path, library(tmp_path, elf(*RIGHT)))
    assert result.outcome is Outcome.PASSED
    assert result.figures["wavefront"] == 64
    assert result.figures["LDS bytes"] == "1024"


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        (tuple(kernel(rows, believed=32) for rows in (2, 4, 8)), "believed in 32 lanes"),
        (tuple(kernel(rows, wave=32) for rows in (2, 4, 8)), "compiled for 32 lanes"),
        ((kernel(2), kernel(8)), "no LLGemm1_kernel instance Li4EE"),
        ((kernel(4, scratch=52),), "spills 52 bytes"),
        ((kernel(4, name="wvSplitK_hf_"),), "no LLGemm1_kernel in it"),
    ],
)
def test_a_wrong_kernel_is_refused(tmp_path: Path, kernels: tuple[KernelNote, ...], words: str) -> None:
    result = climb_v1(tmp_path, library(tmp_path, elf(*kernels)))
    assert result.outcome is Outcome.FAILED
    assert words in result.why


def test_a_library_for_another_device_is_refused(tmp_path: Path) -> None:
    result = climb_v1(tmp_path, library(tmp_path, elf(*RIGHT), "gfx90a"))
    assert result.outcome is Outcome.FAILED
    assert "it holds gfx90a" in result.why


def test_a_runtime_that_reports_32_lanes_is_refused(tmp_path: Path) -> None:
    assert climb_v1(tmp_path, library(tmp_path, elf(*RIGHT)), wavefront=32).outcome is Outcome.FAILED


def test_without_a_library_it_does_not_run(tmp_path: Path) -> None:
    assert climb_v1(tmp_path, None).outcome is Outcome.NOT_RUN


def test_a_stand_in_without_device_code_is_not_green(tmp_path: Path) -> None:
    path = tmp_path / "stand_in.so"
    path.write_bytes(b"\x7fELF cuda code")
    assert climb_v1(tmp_path, path, simulated="a stand-in").outcome is Outcome.NOT_RUN


@pytest.mark.parametrize("answer", [{"gfx936"}, set()])
def test_a_blind_probe_fails_its_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: set[str]) -> None:
    """A probe that always says yes, and one that always says no."""
    monkeypatch.setattr(build, "code_object_targets", lambda path: frozenset(answer))
    result = climb_v1(tmp_path, library(tmp_path, elf(*RIGHT)))
    assert result.outcome is Outcome.FAILED
    assert "the probe is blind" in result.why
