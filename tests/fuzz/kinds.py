"""The kinds of files that come from outside: a good one of each, how it is read, and what is left of it then."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.dcu import manifest
from vllm.dcu.ask.model_config import ModelError
from vllm.dcu.ask.survey import read_config
from vllm.dcu.dispatch.cells import CELL_BYTES, CELLS
from vllm.dcu.dispatch.countfolder import read_process
from vllm.dcu.dispatch.counts import Header, Key
from vllm.dcu.evidence import store
from vllm.dcu.evidence.ladder import Climb, Measure, Step, failed, passed
from vllm.dcu.evidence.report import ReportError, as_json, load_report
from vllm.dcu.profile.report import Account, Group, Line, Linear, Place, Profile, ProfileError, Suggestion, load_profile
from vllm.dcu.profile.report import Kind as Advice
from vllm.dcu.records.record import Record
from vllm.dcu.records.strict import StrictError, parse_json
from vllm.dcu.records.typed import dump, load, read_json

from scripts.common import errors
from scripts.rebase import state as rebase
from scripts.series import worktree
from tests.unit.dcu.evidence.evidence_samples import BINDING, DATE, SITE, entry, rungs, site_record

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        sample: a good file's bytes.
        read: what reads it, for use by a tool or the gate.
        errors: how it may refuse.
        left: what of the file is in the result, as plain data; None where a part is left aside on purpose (then only the form is judged).
        signed: whether entries carry a digest, which a forger would make anew.
        tail: where the JSON lines begin; 0 where the whole file is one JSON text.
        any_text: texts may be long and of any characters.
    """

    sample: bytes
    read: Callable[[Path], Any]
    errors: tuple[type[Exception], ...]
    left: Callable[[Any], Any] | None
    signed: bool = False
    tail: int = 0
    any_text: bool = False


def _lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _json(data: Any) -> bytes:
    return json.dumps(data).encode()


MEASURED = passed({"time": Measure(2.0, 1.0, 3.0, 3, "us", "lower"), "gain": 1.25, "runs": 3, "right": True, "what": "words"})
_ENTRIES = (
    entry(results={"V0": MEASURED, "V2": failed("relative error 0.45", {"error": 0.45})}),
    entry(subject=SITE, record=site_record(), results={name: r for name, r in rungs().items() if name in ("V0", "V2")}),
)
_CLIMB = Climb("verify", SITE, BINDING, DATE, (Step("V0", "the build", "", "all else", MEASURED, 1.5, DATE, ("raw/V0/a.txt",)),))
_KEYS = [Key("hit", "bfloat16", 34816, 5120, "a", None, "1"), Key("miss", "bfloat16", 8, 8, None, "no-record", "other")]
_COUNTS = struct.pack(f"<{CELLS}q", *([7, 9] + [0] * (CELLS - 2))) + _lines(
    {"format": 1, **dump(Header("gfx936", "", ("a",), 7, 1.0, "r"))}, *({"cell": i, **dump(key)} for i, key in enumerate(_KEYS))
)
_MANIFEST = manifest.Manifest(
    "0.18.1+gfx936.1", "rocm", "0.18.1", "0" * 64, (manifest.Patch("a.patch", "1" * 64),), "2" * 40, "3" * 40, "4" * 40,
    ("gfx936",), {"compiler": "clang 17"}, {"__init__.py": "5" * 64},
)  # fmt: skip
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 1000, "num_hidden_layers": 2, "attention_bias": False, "torch_dtype": "bfloat16",
}  # fmt: skip
_STEP = Measure(25.0, 24.0, 26.0, 32, "us", "lower")
_LINES = (
    Line(
        Group.LINEAR,
        Place.DEVICE,
        "aten::linear",
        "Cijk",
        1.0,
        20.0,
        19.0,
        21.0,
        1e6,
        Linear("bfloat16", 1, 8, 8, "F.linear", "a", ("rows",)),
    ),
    Line(Group.GAP, Place.GAP, "forward", "before aten::add", 1.0, 7.0, 6.0, 8.0, 0.0, None),
)
_ADVICE = (Suggestion(Advice.LINEAR, "Linear", 0.01, {"us a step": 20.0, "calls": 1, "graphs": "on"}, "a command", "it is not so"),)
_PROFILE = Profile(
    1, "M", ("--seed", "0"), 128, True, False, BINDING, Measure(900.0, 890.0, 910.0, 15, "GB/s", "higher"),
    (Account("decode", 1, _STEP, _STEP, _LINES, -2.0, _ADVICE),),
)  # fmt: skip
_STATE = {"inputs": "a" * 64, "base": "b" * 40, "head": "c" * 40, "tree": "d" * 40, "moving_to": ""}
_REBASE = dump(rebase.RunState("run", "1.1.0", {"1.1.0 a.patch": "drop"}, "1.1.0 b.patch", "e" * 40, {"vllm/x.py": "content"}))


def _record(path: Path) -> Record:
    found: Record = load(Record, parse_json(path.read_bytes()))
    return found


def _tree_state(path: Path) -> Any:
    place = path.parent / "tree" / ".git"
    place.mkdir(parents=True, exist_ok=True)
    (place / "gfx936-state.json").write_bytes(path.read_bytes())
    return worktree.read_state(place.parent)


def _survey(path: Path) -> None:
    from vllm.dcu.ask.model_config import linears, model_dtype

    config = read_config(path)
    assert model_dtype(config).isprintable()
    linears(config)


KINDS: dict[str, Kind] = {
    "evidence": Kind(
        _json({"format": store.FORMAT, "entries": [store._dump(e) for e in _ENTRIES]}),
        store.read_store,
        (store.EvidenceError,),
        lambda found: {"format": 1, "entries": [store._dump(e) for e in found]},
        signed=True,
    ),
    "record": Kind(_json(dump(site_record())), _record, (StrictError,), dump),
    "report": Kind(_json(as_json(_CLIMB)), load_report, (ReportError,), as_json),
    "step": Kind(_json(dump(_CLIMB.steps[0])), lambda p: read_json(Step, p, 1 << 20), (StrictError,), dump),
    "profile": Kind(_json(dump(_PROFILE)), load_profile, (ProfileError,), dump),
    "counts": Kind(_COUNTS, read_process, (StrictError,), None, tail=CELL_BYTES),
    "manifest": Kind(
        _MANIFEST.to_json(), lambda p: manifest.parse(p.read_bytes()), (manifest.ManifestError,), lambda m: json.loads(m.to_json())
    ),
    "model": Kind(_json(_CONFIG), _survey, (ModelError,), None, any_text=True),
    "tree": Kind(_json(_STATE), _tree_state, (errors.DirtyTree,), dump),
    "rebase": Kind(_json(_REBASE), rebase.read_state, (errors.DirtyTree,), dump, any_text=True),
}
