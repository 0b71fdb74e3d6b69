"""One version, in every place that shows one."""

from __future__ import annotations

import pytest
from packaging.version import Version

from scripts.wheel.version import SUFFIX, version_module, wheel_version


@pytest.mark.parametrize(
    ("target", "expected"),
    [("rocm", "0.18.1+gfx936.1"), ("cpu", "0.18.1+gfx936.1.cpu"), ("empty", "0.18.1+gfx936.1.empty")],
)
def test_the_version_is_upstream_revision_and_target(target: str, expected: str) -> None:
    assert wheel_version("0.18.1", 1, target) == expected
    assert str(Version(expected)) == expected, "a version that tools normalise would have two spellings"


def test_a_later_revision_is_a_later_version_and_both_satisfy_the_upstream_pin() -> None:
    assert Version(wheel_version("0.18.1", 10, "rocm")) > Version(wheel_version("0.18.1", 9, "rocm")) > Version("0.18.1")


@pytest.mark.parametrize("target", sorted(SUFFIX))
def test_the_version_module_says_the_same(target: str) -> None:
    version = wheel_version("0.18.1", 3, target)
    names: dict[str, object] = {}
    exec(version_module(version, "0123456789abcdef"), names)  # the module is code: run it, do not match its text
    assert names["__version__"] == names["version"] == version
    assert names["__version_tuple__"] == (0, 18, 1, version.split("+")[1])
    assert names["__commit_id__"] == "g012345678"
