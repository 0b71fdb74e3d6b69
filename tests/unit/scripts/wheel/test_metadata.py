"""METADATA: upstream's own, with this build's version and the requirements of its target."""

from __future__ import annotations

import pytest

from scripts.common import errors
from scripts.wheel import metadata

PKG_INFO = b"""Metadata-Version: 2.4
Name: vllm
Version: 0.18.1
Requires-Dist: torch==2.10.0
Requires-Dist: flashinfer-python==0.6.6
Provides-Extra: bench
Requires-Dist: pandas; extra == "bench"
Dynamic: requires-dist

# vLLM

Version: this line is prose
"""
FILES = {
    "PKG-INFO": PKG_INFO,
    "requirements/common.txt": b"# a comment\nregex # Replace re\nrequests >= 2.26.0\nfastapi[standard] >= 0.115.0\n",
    "requirements/cpu.txt": b'--extra-index-url x\n-r common.txt\n\ntorch==2.10.0+cpu; platform_machine == "x86_64"\n',
    "pyproject.toml": b'[project.scripts]\nvllm = "m:f"\n[project.entry-points."vllm.general_plugins"]\nb = "b:b"\na = "a:a"\n',
}


def test_requirements_follow_includes_and_lose_comments_options_and_local_versions() -> None:
    assert metadata.requirements(FILES, "cpu") == [
        "regex",
        "requests>=2.26.0",
        "fastapi[standard]>=0.115.0",
        'torch==2.10.0; platform_machine == "x86_64"',
    ]


def test_version_and_plain_requirements_are_replaced_and_all_else_is_kept() -> None:
    text = metadata.metadata(FILES, "0.18.1+gfx936.1.empty", "empty").decode()
    assert text == (
        "Metadata-Version: 2.4\nName: vllm\nVersion: 0.18.1+gfx936.1.empty\nRequires-Dist: regex\n"
        "Requires-Dist: requests>=2.26.0\nRequires-Dist: fastapi[standard]>=0.115.0\nProvides-Extra: bench\n"
        'Requires-Dist: pandas; extra == "bench"\nDynamic: requires-dist\n\n# vLLM\n\nVersion: this line is prose\n'
    )


@pytest.mark.parametrize("text", [b"", b"Name: other\nVersion: 1\n\nx", b"Name: vllm\n\nx", b"Name: vllm\nVersion: 1\n"])
def test_a_file_that_is_not_vllms_core_metadata_is_refused(text: bytes) -> None:
    with pytest.raises(errors.MissingInput, match="no usable PKG-INFO"):
        metadata.metadata({**FILES, "PKG-INFO": text}, "1", "empty")


def test_a_missing_requirements_file_is_named() -> None:
    with pytest.raises(errors.MissingInput, match=r"requirements/rocm\.txt is not in the tree"):
        metadata.metadata(FILES, "1", "rocm")


def test_entry_points_are_upstreams_and_ours_in_a_fixed_order() -> None:
    ours = b"dcu_metrics = vllm.dcu.dispatch.metrics:register\n"
    assert metadata.entry_points(FILES) == (b"[console_scripts]\nvllm = m:f\n\n[vllm.general_plugins]\na = a:a\nb = b:b\n" + ours)


def test_an_entry_point_of_upstream_is_not_replaced() -> None:
    taken = FILES["pyproject.toml"].replace(b"a = ", b"dcu_metrics = ")
    assert taken != FILES["pyproject.toml"]
    with pytest.raises(errors.MissingInput, match="upstream has an entry point dcu_metrics"):
        metadata.entry_points({**FILES, "pyproject.toml": taken})


ROCM = {
    **FILES,
    "requirements/common.txt": b"regex\ntorch==2.10.0\ntriton; platform_machine == 'x86_64'\nxgrammar\n",
    "requirements/rocm.txt": b"-r common.txt\nnumba == 0.61.2\namdsmi==7.0.2\nconch-triton-kernels==1.2.1\nsix; python_version > '3.11'\n",
}


def test_c41_the_device_wheel_asks_for_nothing_that_is_the_vendors() -> None:
    assert metadata.requirements(ROCM, "rocm") == ["regex", "xgrammar"]
    assert "torch==2.10.0" in metadata.requirements(ROCM, "empty")  # the same file, for another target


def test_c41_what_upstream_wants_for_amd_devices_is_an_extra_to_be_asked_for() -> None:
    lines = metadata.metadata(ROCM, "1", "rocm").decode().splitlines()
    assert [line for line in lines if line.endswith('extra == "rocm"') or line == "Provides-Extra: rocm"] == [
        "Provides-Extra: rocm",
        'Requires-Dist: numba==0.61.2; extra == "rocm"',
        'Requires-Dist: conch-triton-kernels==1.2.1; extra == "rocm"',
        'Requires-Dist: six; python_version > "3.11" and extra == "rocm"',
    ]
    assert not [line for line in lines if line.startswith(("Requires-Dist: torch", "Requires-Dist: triton", "Requires-Dist: amdsmi"))]
