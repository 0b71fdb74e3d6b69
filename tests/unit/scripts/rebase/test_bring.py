"""What another pin brings along: only what the release itself says otherwise is written anew, and nobody has seen it work."""

from __future__ import annotations

import pytest

from scripts.common.outside import parse_toml
from scripts.common.paths import ROOT
from scripts.rebase.bring import VERSIONS, brought, said_by

LIMITS = (ROOT / VERSIONS).read_text(encoding="utf-8")


def release(
    python: str = ">=3.10,<3.14", torch: str = "2.10.0", built: str = "2.10.0", cmake: str = ">=3.26.1,<4", where: str = "rocm-build.txt"
) -> dict[str, str]:
    """The files of a release that state a limit."""
    return {
        "pyproject.toml": f'requires = [\n  "setuptools>=77.0.3,<81.0.0",\n]\nrequires-python = "{python}"\n',
        "CMakeLists.txt": f'set(TORCH_SUPPORTED_VERSION_ROCM "{torch}")\n',
        f"requirements/{where}": f"torch=={built}\ncmake{cmake}\n",
    }


def after(new: dict[str, str], old: dict[str, str] | None = None) -> dict[str, dict[str, str]]:
    """versions.toml with 9.9.9 adopted, read."""
    pinned = parse_toml(LIMITS.encode())["vllm"]["at_least"]
    said = [said_by(lambda path, files=files: files.get(path, "")) for files in (old or release(), new)]  # type: ignore[misc]
    text = brought({VERSIONS: LIMITS}, pinned, "9.9.9", *said)[VERSIONS]
    assert pinned not in text
    return parse_toml(text.encode())


def test_a_release_that_says_the_same_changes_the_limit_of_vllm_alone() -> None:
    now, before = after(release()), parse_toml(LIMITS.encode())
    assert (now["vllm"]["at_least"], now["vllm"]["below"], now["vllm"]["known"]) == ("9.9.9", "9.9.10", "9.9.9, the pin")
    assert [n for n in now if now[n] != before[n] and now[n].get("at_least") != before[n].get("at_least")] == ["vllm"]


@pytest.mark.parametrize(
    ("new", "row", "bounds", "words"),
    [
        (release(python=">=3.11,<3.15"), "python", ("3.11", "3.15"), "requires-python = >=3.11,<3.15"),
        (
            release(torch="2.13.0", built="2.11.0"),
            "torch",
            ("2.11", "2.14"),
            "written for torch 2.13.0, requirements/rocm-build.txt builds with 2.11.0",
        ),
        (release(torch="2.14.0", built="2.12.0+rocm7.14.0"), "torch", ("2.12", "2.15"), "builds with 2.12.0"),
        (release(cmake=">=4.1,<5", where="build/rocm.txt"), "cmake", ("4.1", "5"), "requirements/build/rocm.txt has cmake>=4.1,<5"),
    ],
)
def test_a_limit_that_the_release_moves_is_moved_and_known_to_no_one(
    new: dict[str, str], row: str, bounds: tuple[str, str], words: str
) -> None:
    found = after(new)[row]
    assert (found["at_least"], found["below"]) == bounds
    assert found["known"].startswith("nobody with 9.9.9")
    assert words in found["why"]
    assert found["do"] == parse_toml(LIMITS.encode())[row]["do"]


def test_a_release_without_these_files_moves_nothing_it_does_not_state() -> None:
    assert after({})["torch"]["at_least"] == parse_toml(LIMITS.encode())["torch"]["at_least"]


def test_only_the_pinned_number_itself_is_replaced() -> None:
    text = "vLLM **1.2.3**: vllm-1.2.3.tar.gz, 1.2.3+gfx936.1, `1.2.3`; not 11.2.3, 1.2.30, 1.2.3.4. The end is 1.2.3."
    new = brought({"README.md": text}, "1.2.3", "2.0.0", {}, {})["README.md"]
    assert new == "vLLM **2.0.0**: vllm-2.0.0.tar.gz, 2.0.0+gfx936.1, `2.0.0`; not 11.2.3, 1.2.30, 1.2.3.4. The end is 2.0.0."
