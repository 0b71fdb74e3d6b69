"""What the README says to serve and to ask is taken by the installed vLLM's own parsers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from vllm.dcu.__main__ import VERBS
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SERVE = [shlex.split(line)[2:] for line in re.findall(r"(?m)^    (vllm serve .*)$", TEXT)]


def test_the_readme_serves_the_mission_and_several_devices() -> None:
    assert len(SERVE) >= 4
    assert ["Qwen/Qwen3.5-27B", "--dtype", "bfloat16", "--max-model-len", "32768"] in SERVE


@pytest.mark.parametrize("words", SERVE, ids=" ".join)
def test_vllm_takes_every_serve_line(words: list[str]) -> None:
    make_arg_parser(FlexibleArgumentParser()).parse_args(words)


def test_a_flag_that_vllm_does_not_have_is_refused() -> None:
    with pytest.raises(SystemExit):
        make_arg_parser(FlexibleArgumentParser()).parse_args([*SERVE[-1], "--no-such-flag"])


def test_every_verb_that_the_readme_names_exists() -> None:
    assert {"manifest", "survey", "counters", "explain", "verify"} <= set(re.findall(r"python -m vllm\.dcu ([a-z]+)", TEXT)) <= set(VERBS)
