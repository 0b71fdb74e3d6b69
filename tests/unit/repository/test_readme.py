"""What the README says to run is what the tools take."""

from __future__ import annotations

import re

import pytest

from scripts.common.paths import ROOT
from scripts.upstream.releases import read_pin
from scripts.wheel.version import wheel_version
from tests.unit.repository.test_repository import makefile_targets

README = ROOT / "README.md"


def shell_blocks(text: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", text, re.S)


def make_words(text: str) -> set[str]:
    """Every target that a text calls through make, in code spans and blocks."""
    spans = re.findall(r"`([^`]*)`|(?m:^    (.*)$)", text) + [(b, "") for b in shell_blocks(text)]
    words = set()
    for span in (a or b for a, b in spans):
        for call in re.findall(r"\bmake ([a-z][a-z-]*)", span):
            words.add(call)
    return words


def test_every_make_target_that_the_readme_names_exists():
    named = make_words(README.read_text())
    assert {"apply", "build", "test", "help", "doctor"} <= named
    assert named <= set(makefile_targets())


def unknown_paths(text: str) -> list[str]:
    """Files and folders that a text names and that are not there."""
    named = re.findall(r"`((?:scripts|overlay|csrc|tests|docs|patches|deploy|benchmarks)/[A-Za-z0-9_./-]*)(?:::\w+)?`", text)
    return [name for name in named if not (ROOT / name).exists()]


def test_every_file_and_target_that_the_guide_names_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert unknown_paths(text) == []
    assert make_words(text) <= set(makefile_targets())
    assert unknown_paths("`scripts/nowhere/there.py` and `docs/none.md`") == ["scripts/nowhere/there.py", "docs/none.md"]


def test_a_target_that_does_not_exist_is_found():
    assert make_words("run `make nonsense`") - set(makefile_targets()) == {"nonsense"}


def test_the_three_commands_of_the_readme_are_what_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text()
    blocks = [line for block in shell_blocks(README.read_text()) for line in block.strip().splitlines()]
    for command in (part.strip() for line in blocks for part in line.split("&&")):
        if command != "make help":
            assert command in ci, command


@pytest.mark.parametrize("name", ["UPSTREAM_SDIST", "TOOLS_PYTHON", "STRICT"])
def test_variables_that_the_readme_names_are_read_by_the_tools(name):
    assert name in README.read_text()
    assert any(name in p.read_text() for p in [*(ROOT / "scripts").rglob("*.py"), ROOT / "Makefile"])


CHINESE = ROOT / "README.zh-CN.md"


def commands_of(text: str) -> list[str]:
    """Every line that a reader would run: fenced and indented blocks, in order."""
    found: list[str] = []
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            found.append(line.strip())
    return found


def spans_of(text: str) -> list[str]:
    """Every code span, sorted: file names, variables and short commands."""
    return sorted(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S)))


def differences(english: str, chinese: str) -> list[str]:
    rows = [f"command: {a!r} / {b!r}" for a, b in zip(commands_of(english), commands_of(chinese), strict=False) if a != b]
    if len(commands_of(english)) != len(commands_of(chinese)):
        rows.append("one has more commands than the other")
    left, right = spans_of(english), spans_of(chinese)
    rows += [f"code span only in one of them: {s}" for s in sorted(set(left) ^ set(right))]
    if english.count("\n## ") != chinese.count("\n## "):
        rows.append("one has more sections than the other")
    return rows


def test_both_languages_give_the_same_commands_names_and_sections():
    assert differences(README.read_text(encoding="utf-8"), CHINESE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--max-model-len 32768\n", "--max-model-len 8192\n"),
        ("    make bundle PYTHONS", "    make bundle\n    make bundle PYTHONS"),
        ("`VLLM_ROCM_USE_SKINNY_GEMM=0`", "`VLLM_ROCM_USE_SKINNY_GEMM=1`"),
        ("\n## ", "\n### "),
    ],
)
def test_a_difference_between_the_languages_is_found(old, new):
    english, chinese = README.read_text(encoding="utf-8"), CHINESE.read_text(encoding="utf-8")
    assert old in chinese
    assert differences(english, chinese.replace(old, new, 1)) != []


def test_the_readme_does_not_claim_a_run_on_the_device():
    text = README.read_text()
    assert "Nobody has run this build on a gfx936." in text
    assert "stand-in arch gfx906" in text


def test_no_wheel_is_named_by_a_pattern_and_the_names_are_the_builds() -> None:
    """dist/ may hold several wheels: a pattern would install the wrong one, or none."""
    pin = read_pin()
    tag = "cp38-abi3-manylinux_2_28_x86_64"  # a release that was just adopted has no CPU wheel yet
    assert all(wheel.name.endswith(f"{tag}.whl") for arch, wheel in pin.cpu_wheels.items() if arch == "x86_64")
    cpu, rocm = (wheel_version(pin.version, pin.revision, target) for target in ("cpu", "rocm"))
    for path in (README, CHINESE):
        named = set(re.findall(r"dist/[^\s`]*\.whl", path.read_text(encoding="utf-8")))
        assert named == {f"dist/vllm-{cpu}-{tag}.whl", f"dist/vllm-{rocm}-cp310-cp310-linux_x86_64.whl"}
