"""An arch list that CMake would cut down in silence is refused, each with its own sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.common import errors
from scripts.machine import archs

KNOWN = frozenset({"gfx906", "gfx90a", "gfx936"})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "set but empty"),
        ("  ", "set but empty"),
        ("gfx936;gfx928", "names 'gfx928', which this build does not know"),
        ("gfx936,gfx90a", "has a comma or a blank"),
        ("gfx936 gfx90a", "has a comma or a blank"),
        (" gfx936", "has a comma or a blank"),
        ("gfx936\n", "has a comma or a blank"),
        ("gfx936:sramecc+:xnack-", "with a feature suffix"),
        ("GFX936", "names 'GFX936', which"),
        ("gfx9360", "names 'gfx9360', which"),
        ("gfx936;", "names '', which"),
        ("gfx936;gfx936", "names an arch twice"),
        ("gfx906;gfx90a", "names no DCU"),
    ],
)
def test_c36_a_list_that_would_be_cut_down_is_refused(value: str, says: str) -> None:
    with pytest.raises(errors.UserError, match=says) as caught:
        archs.choose({archs.VARIABLE: value}, KNOWN, "gfx936")
    assert "PYTORCH_ROCM_ARCH" in caught.value.what
    assert caught.value.do


@pytest.mark.parametrize(("value", "expected"), [("gfx936", ("gfx936",)), ("gfx906;gfx936", ("gfx906", "gfx936"))])
def test_a_sound_list_is_taken_in_its_order(value: str, expected: tuple[str, ...]) -> None:
    assert archs.choose({archs.VARIABLE: value}, KNOWN, None) == expected


def test_the_list_to_type_is_in_the_refusal_of_a_comma() -> None:
    with pytest.raises(errors.UserError) as caught:
        archs.choose({archs.VARIABLE: "gfx936, gfx90a"}, KNOWN, None)
    assert "PYTORCH_ROCM_ARCH='gfx936;gfx90a'" in caught.value.do


def test_without_a_list_the_device_decides_and_without_either_nothing_is_guessed() -> None:
    assert archs.choose({}, KNOWN, "gfx936") == ("gfx936",)
    with pytest.raises(errors.CannotBuild, match="PYTORCH_ROCM_ARCH is not set"):
        archs.choose({}, KNOWN, None)


def test_what_is_known_is_read_from_upstreams_cmakelists(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text('set(HIP_SUPPORTED_ARCHS "gfx906;gfx90a")\n')
    assert archs.supported(tmp_path) == {"gfx906", "gfx90a", "gfx936"}
    assert archs.supported(tmp_path / "none") == {"gfx936"}
