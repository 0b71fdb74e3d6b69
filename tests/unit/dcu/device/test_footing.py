"""The files that a decision rests on are the ones that our patches touch, and those that call the operator."""

from __future__ import annotations

import re

import pytest
from vllm.dcu.device.footing import RESTS_ON, Footing
from vllm.dcu.env import package_name

from scripts.series import patch


def test_every_file_of_the_package_that_a_patch_touches_is_looked_at() -> None:
    touched = {name for p in patch.load() for name in re.findall(r"(?m)^\+\+\+ b/vllm/(\S+)$", p.raw.decode())}
    assert touched <= set(RESTS_ON)
    assert set(RESTS_ON) - touched == {"model_executor/layers/linear.py", "model_executor/layers/vocab_parallel_embedding.py"}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            Footing("1", ("a is not",)),
            "DCU: every capability is shut: a is not. Remedy: pip install --force-reinstall --no-deps of the wheel of vllm 1;",
        ),
        (Footing("1", ("a", "b", "c")), "shut: a (and 2 more)."),
        (Footing(unknown="no manifest"), "shut: no manifest. Remedy: pip install --force-reinstall --no-deps of the wheel."),
    ],
)
def test_one_line_names_file_and_remedy(found: Footing, words: str) -> None:
    assert words in found.sentence
    assert not Footing("1").sentence


@pytest.mark.parametrize("name", ["vllm_hcu", "VLLM.HCU", " vllm-hcu ", "vllm__hcu"])
def test_names_of_packages_are_compared_as_pip_does(name: str) -> None:
    assert package_name(name) == "vllm-hcu"
