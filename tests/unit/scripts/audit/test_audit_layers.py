"""Each rule of the audit holds on the facts it was made for, and fails on a planted fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from vllm.dcu.device.kernelnotes import KernelNote

from scripts.audit.configure import Bench, Command, Configured
from scripts.audit.layers import (
    EXPECTED_ROUTING,
    blast_radius_faults,
    commands_faults,
    diagnosis_faults,
    identical_files_faults,
    routing_faults,
)
from scripts.audit.objects import LLMM1_KERNELS, DeviceCode, llmm1_faults, split_faults
from scripts.audit.toolchain import Toolchain
from scripts.common.programs import cmake_error

GOOD = DeviceCode(
    0, "gfx906", tuple(KernelNote(name, 64, rows * 256, 52 if rows == 16 else 0, 24 if rows == 16 else 0) for name, rows in LLMM1_KERNELS.items()),
    Counter({"v_fmac_f32_e32": 64, "s_endpgm": 8}),
)  # fmt: skip
OTHER = DeviceCode(1, "gfx90a", (KernelNote("wvSplitK_hf_", 64, 65536, 0, 0),), Counter({"v_dot2c_f32_f16_e32": 3120}))


def command(unit: str, archs: str = "", target: str = "_rocm_C", extra: tuple[str, ...] = ()) -> Command:
    offload = frozenset(archs.split(";")) if archs else frozenset()
    return Command(unit, target, offload, ("clang++", *(f"--offload-arch={a}" for a in sorted(offload)), *extra, "-c", unit))


MIXED = [
    command("csrc/rocm/dcu_llmm1.hip", "gfx936", "_rocm_C_dcu"),
    command("csrc/rocm/skinny_gemms.hip", "gfx90a"),
    command("csrc/rocm/attention.hip", "gfx90a"),
    command("csrc/rocm/torch_bindings.cpp", extra=("-DLLMM1=dcu_LLMM1",)),
    command("csrc/cache_kernels.hip", "gfx936;gfx90a", "_C"),
    command("csrc/dcu/gemv.cu", "gfx936", "_dcu_C"),
    command("csrc/dcu/bindings.cpp", target="_dcu_C"),
]


def test_the_split_of_a_mixed_list_is_accepted() -> None:
    assert routing_faults("gfx936;gfx90a", MIXED) == []


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ([*MIXED, command("csrc/rocm/skinny_gemms_int4.hip", "gfx936")], "skinny_gemms_int4.hip is compiled for gfx936, and should not be"),
        ([MIXED[0], command("csrc/rocm/skinny_gemms.hip", "gfx90a;gfx936"), *MIXED[2:]], "skinny_gemms.hip is compiled for gfx90a, gfx936"),
        ([*MIXED[:2], command("csrc/rocm/attention.hip", "gfx936"), *MIXED[3:]], "attention.hip is compiled for gfx936"),
        (MIXED[1:], "dcu_llmm1.hip is not compiled"),
        ([*MIXED[:3], command("csrc/rocm/torch_bindings.cpp"), *MIXED[4:]], "bound to upstream"),
        ([*MIXED[:4], command("csrc/cache_kernels.hip", "gfx90a", "_C"), *MIXED[5:]], "cache_kernels.hip of _C is compiled for gfx90a"),
        (MIXED[:5], "_dcu_C is compiled from nothing"),
        ([*MIXED[:5], command("csrc/dcu/gemv.cu", "gfx936;gfx90a", "_dcu_C"), MIXED[6]], "gemv.cu for gfx90a, gfx936"),
        ([*MIXED, command("csrc/dcu/other.cu", "gfx936", "_dcu_C")], "other.cu for gfx936"),
    ],
)
def test_a_unit_sent_to_the_wrong_arch_is_named(planted: list[Command], says: str) -> None:
    assert any(says in fault for fault in routing_faults("gfx936;gfx90a", planted))


def test_every_list_has_its_own_expectation() -> None:
    assert [unit for unit, archs in EXPECTED_ROUTING["gfx936"].items() if archs] == ["csrc/rocm/dcu_llmm1.hip"]
    assert not any("dcu" in unit for unit in EXPECTED_ROUTING["gfx90a"])


def test_llmm1_alone_is_accepted() -> None:
    assert llmm1_faults(GOOD) == []
    assert split_faults([GOOD, OTHER], "gfx906", frozenset({"gfx90a"})) == []


def with_kernel(index: int, **changes: int) -> DeviceCode:
    kernels = list(GOOD.kernels)
    kernels[index] = msgspec.structs.replace(kernels[index], **changes)
    return replace(GOOD, kernels=tuple(kernels))


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (replace(GOOD, kernels=(*GOOD.kernels, KernelNote("wvSplitK_hf_sml_", 64, 0, 0, 0))), "wvSplitK_hf_sml_ is not LLMM1's"),
        (replace(GOOD, kernels=(*GOOD.kernels, GOOD.kernels[0])), "is there 2 times"),
        (replace(GOOD, kernels=GOOD.kernels[1:]), "is missing"),
        (replace(GOOD, instructions=GOOD.instructions + Counter({"v_dot2c_f32_f16_e32": 1})), "v_dot2c_f32_f16_e32 occurs 1"),
        (replace(GOOD, instructions=GOOD.instructions + Counter({"v_mfma_f32_32x32x8f16": 2})), "v_mfma_f32_32x32x8f16 occurs 2"),
        (replace(GOOD, instructions=GOOD.instructions + Counter({"s_trap": 1})), "s_trap occurs 1"),
        (with_kernel(1, wavefront=32), "compiled for 32 lanes"),
        (with_kernel(1, lds=512), "believed in 32 lanes"),
        (with_kernel(1, scratch=16), "16 bytes of scratch"),
    ],
)
def test_a_planted_fault_in_the_code_object_is_named(planted: DeviceCode, says: str) -> None:
    assert any(says in fault for fault in llmm1_faults(planted))


def test_code_for_an_arch_that_was_not_asked_for_is_named() -> None:
    assert split_faults([GOOD, OTHER], "gfx906", frozenset()) == ["archs besides gfx906: gfx90a; expected none"]
    assert "0 code objects for gfx936, 1 expected" in split_faults([OTHER], "gfx936", frozenset({"gfx90a"}))
    shared = [GOOD, replace(OTHER, bundle=0)]
    assert any("was compiled for other archs" in fault for fault in split_faults(shared, "gfx906", frozenset({"gfx90a"})))


def configured(folder: str) -> Configured:
    bench = Bench(Toolchain(Path("/t"), {}, ""), Path("/p"), "2.10.0", Path("/i"))
    return Configured(Path(folder), Path(folder + "-tree"), "gfx90a", bench)


def test_one_changed_flag_or_unit_is_a_blast_radius() -> None:
    up, down = configured("/up/build"), configured("/down/build")
    theirs = [command("csrc/rocm/attention.hip", "gfx90a", extra=("-I/up/build/csrc", "-O3"))]
    ours = [command("csrc/rocm/attention.hip", "gfx90a", extra=("-I/down/build/csrc", "-O3"))]
    assert commands_faults(up, down, ours, theirs) == []
    flag = [command("csrc/rocm/attention.hip", "gfx90a", extra=("-I/down/build/csrc", "-O3", "-DVLLM_DCU"))]
    assert commands_faults(up, down, flag, theirs) == ["csrc/rocm/attention.hip of _rocm_C: the compile command differs from upstream's"]
    assert any("patched tree only" in f for f in commands_faults(up, down, [*ours, command("csrc/rocm/dcu_llmm1.hip", "gfx90a")], theirs))
    assert any("upstream only" in f for f in commands_faults(up, down, [], theirs))


def test_one_changed_byte_in_a_file_or_an_object_is_found(tmp_path: Path) -> None:
    for side in ("up", "down"):
        (tmp_path / side / "csrc" / "rocm").mkdir(parents=True)
        (tmp_path / side / "csrc" / "rocm" / "attention.cu").write_text("kernel\n")
    (tmp_path / "down" / "csrc" / "rocm" / "dcu_llmm1.cu").write_text("ours\n")
    (tmp_path / "down" / "csrc" / "dcu").mkdir()
    (tmp_path / "down" / "csrc" / "dcu" / "gemv.cu").write_text("ours\n")
    assert identical_files_faults(tmp_path / "up", tmp_path / "down") == []
    (tmp_path / "down" / "csrc" / "rocm" / "attention.cu").write_text("kerne1\n")
    (tmp_path / "down" / "csrc" / "rocm" / "other.cu").write_text("")
    assert identical_files_faults(tmp_path / "up", tmp_path / "down") == [
        "csrc/rocm/other.cu is new and not a dcu_ file",
        "csrc/rocm/attention.cu differs from upstream's",
    ]
    left, right = tmp_path / "up" / "csrc" / "rocm" / "attention.cu", tmp_path / "down" / "csrc" / "rocm" / "attention.cu"
    assert blast_radius_faults(left, left, "attention") == []
    assert "first difference at byte 5" in blast_radius_faults(left, right, "attention")[0]


@pytest.mark.parametrize(
    ("code", "stderr", "says"),
    [
        (1, "x.hip:3:2: error: instruction not supported on this GPU\n1 error generated.\n", None),
        (0, "", "accepted it"),
        (1, "Killed\n", "without a diagnosis"),
        (1, "x: error: instruction not supported on this GPU\ny: error: unknown type name 'half'\n", "unknown type name 'half'"),
    ],
)
def test_a_negative_control_must_fail_for_its_own_reason(code: int, stderr: str, says: str | None) -> None:
    faults = diagnosis_faults(code, stderr, "instruction not supported on this GPU", "forced")
    assert faults == [] if says is None else says in faults[0]


def test_cmakes_first_error_is_unwrapped() -> None:
    text = "CMake Warning at a:1 (message):\n  w\n\n\nCMake Error at b:2 (message):\n  PYTORCH_ROCM_ARCH is\n  wrong.\nCall Stack (most recent call first):\n  c\n"
    assert cmake_error(text) == "PYTORCH_ROCM_ARCH is wrong."
