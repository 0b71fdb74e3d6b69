"""DCUs in the kernel's KFD topology, read from folders that look like sysfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from vllm.dcu.device import kfd

from tests.fake_sysfs import AMD, HYGON, topology


def test_a_hygon_device_of_version_90306_is_gfx936(tmp_path: Path) -> None:
    assert kfd.dcu_arch(topology(tmp_path, (HYGON, 90306), (HYGON, 90306))) == "gfx936"


@pytest.mark.parametrize(
    ("vendor", "version"), [(HYGON, 90208), (HYGON, 90308), (AMD, 90306), (AMD, 90402), (0, 90306), (HYGON, 90307), (HYGON, 903060)]
)
def test_any_other_vendor_or_version_is_no_dcu_of_ours(tmp_path: Path, vendor: int, version: int) -> None:
    assert kfd.dcu_arch(topology(tmp_path, (vendor, version))) is None


@pytest.mark.parametrize(
    ("environ", "arch"),
    [
        ({}, "gfx936"),
        ({"HIP_VISIBLE_DEVICES": "1,0"}, None),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None),
        ({"HIP_VISIBLE_DEVICES": "2"}, "gfx936"),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}, "gfx936"),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, None),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, "gfx936"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000a2"}, None),
        ({"HIP_VISIBLE_DEVICES": "GPU-00000000000000A3,0"}, "gfx936"),
        ({"HIP_VISIBLE_DEVICES": "GPU-0"}, None),
        ({"HIP_VISIBLE_DEVICES": "-1"}, None),
        ({"GPU_DEVICE_ORDINAL": "0"}, None),
    ],
)
def test_of_several_kinds_the_first_visible_device_decides(tmp_path: Path, environ: dict[str, str], arch: str | None) -> None:
    root = topology(tmp_path, (HYGON, 90306), (HYGON, 90208), (HYGON, 90306))
    assert kfd.dcu_arch(root, environ) == arch
    assert [node.arch for node in kfd.gpu_nodes(root)] == ["gfx936", "gfx928", "gfx936"]


def test_no_topology_no_devices(tmp_path: Path) -> None:
    assert kfd.gpu_nodes(tmp_path / "absent") == ()
    assert kfd.gpu_nodes(topology(tmp_path)) == ()


def test_the_environment_variable_for_tests_names_the_root(tmp_path: Path) -> None:
    root = topology(tmp_path, (HYGON, 90306))
    assert kfd.dcu_arch(environ={kfd.TEST_ROOT_ENV: str(root)}) == "gfx936"


def test_nodes_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    root = topology(tmp_path, *[(HYGON, 90306)] * 11)
    assert [node.number for node in kfd.gpu_nodes(root)] == list(range(1, 12))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gfx_target_version",
        "gfx_target_version x",
        "gfx_target_version -1",
        "gfx_target_version " + "9" * 5000,
        "\0\xff\n",
        "a b c\n" * 9,
    ],
)
def test_a_damaged_properties_file_is_a_node_that_does_not_count(tmp_path: Path, text: str) -> None:
    root = topology(tmp_path, (HYGON, 90306))
    (root / "nodes" / "1" / "properties").write_text(text, encoding="latin-1")
    assert kfd.gpu_nodes(root) == ()


def test_a_properties_file_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    root = topology(tmp_path, (HYGON, 90306))
    (root / "nodes" / "1" / "properties").unlink()
    os.mkfifo(root / "nodes" / "1" / "properties")
    assert kfd.gpu_nodes(root) == ()


def test_a_withheld_node_does_not_hide_the_others(tmp_path: Path) -> None:
    """In a container the kernel answers EPERM for devices of others; a missing file stands for it here."""
    root = topology(tmp_path, (HYGON, 90306), (HYGON, 90306))
    (root / "nodes" / "1" / "properties").unlink()
    assert [node.number for node in kfd.gpu_nodes(root)] == [2]


def test_links_tell_xgmi_from_pcie(tmp_path: Path) -> None:
    root = topology(tmp_path, *[(HYGON, 90306)] * 2, links={(1, 2): 11, (1, 0): 2})
    assert {(link.target, link.is_xgmi) for link in kfd.links(1, root)} == {(2, True), (0, False)}


@pytest.mark.parametrize(
    ("environ", "numbers"),
    [
        ({}, [1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": ""}, [1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "0, 7, 1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0123"}, None),
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000000000000a2,0"}, [2, 1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000000000000a"}, None),
        ({"CUDA_VISIBLE_DEVICES": "first"}, None),
        ({"HIP_VISIBLE_DEVICES": "9" * 5000}, None),
        ({"HIP_VISIBLE_DEVICES": "\u0661"}, None),
        ({"HIP_VISIBLE_DEVICES": "+1"}, None),
        ({"HIP_VISIBLE_DEVICES": "1;0"}, None),
        ({"HIP_VISIBLE_DEVICES": "1,"}, None),
        ({"HIP_VISIBLE_DEVICES": "01"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "1,1"}, [2, 2]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000A3,0", "CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "2,1"}, [3, 2]),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "2"}, []),
        ({"GPU_DEVICE_ORDINAL": "0"}, None),
    ],
)
def test_visible_devices_as_the_runtime_reads_them(tmp_path: Path, environ: dict[str, str], numbers: list[int] | None) -> None:
    nodes = kfd.gpu_nodes(topology(tmp_path, *[(HYGON, 90306)] * 3))
    left = kfd.visible(nodes, environ)
    assert (left if left is None else [node.number for node in left]) == numbers
