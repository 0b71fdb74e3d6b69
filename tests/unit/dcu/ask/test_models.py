"""The models made on the spot have the mission's shapes and a tokenizer in which a byte is a token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.serving.toy_models import KINDS, config, shapes, tokenizer, write_folder


@pytest.mark.parametrize("kind", [name for name in KINDS if name.startswith("mission")])
def test_gate_and_up_together_are_the_missions_matrix(kind: str) -> None:
    found = shapes(KINDS[kind])
    gates = [shape for name, shape in found.items() if "gate_proj" in name or "up_proj" in name]
    assert gates == [(17408, 5120)] * (2 * KINDS[kind].layers)


def test_qwen35s_attention_has_the_shape_of_the_27b_models() -> None:
    found = shapes(KINDS["mission-3.5"])
    rows = sum(shape[0] for name, shape in found.items() if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")))
    assert rows == 14336, "q with its output gate, k and v: FACTS of the device's own table"


def test_every_byte_is_one_token_and_no_two_share_a_name() -> None:
    model = tokenizer()["model"]
    assert isinstance(model, dict)
    vocabulary = model["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert vocabulary["a"] == ord("a")
    assert vocabulary["\u0120"] == ord(" "), "a space is spelled as in every byte-level BPE"
    assert model["merges"] == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_folder_is_written_the_same_way_twice(kind: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_folder(KINDS[kind], tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert json.loads((tmp_path / "one" / "config.json").read_text()) == config(KINDS[kind])
