"""The way of a Linear, walked: from the layer through its quant method and the dispatch to the operator, the gate and the kernel.

The release's own Python runs with a stand-in torch (`walk.py`): nothing is concluded from the text. What the way depends on and
the stand-ins do not know is *not evaluated*; a layer whose call does not arrive is a BLOCK, whatever it did before.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from scripts.common.paths import ROOT
from scripts.drift.contracts.alone import Unanswered, say_of
from scripts.drift.contracts.model import BLOCK, OPEN, Fact, Facts, Finding, Tree, line_of
from scripts.drift.contracts.touches import touched

ID = "way"
ARCH = "gfx936"
SECONDS = 120.0
HOLDS = ("layer:", "operator", "platform")
UTILS = "vllm/model_executor/layers/utils.py"
PLATFORMS = "vllm/platforms/__init__.py"
LINEAR = "vllm/model_executor/layers/linear.py"
EMBEDDING = "vllm/model_executor/layers/vocab_parallel_embedding.py"
#: What the walk runs of a release; the rest of it is stand-ins.
FILES = (
    "pyproject.toml",
    "setup.py",
    "vllm/platforms",
    "vllm/envs.py",
    "vllm/_aiter_ops.py",
    "vllm/dcu",
    "vllm/model_executor/custom_op.py",
    "vllm/model_executor/parameter.py",
    "vllm/model_executor/utils.py",
    "vllm/model_executor/determinism",
    "vllm/model_executor/layers/batch_invariant.py",
    "vllm/model_executor/layers/logits_processor.py",
    "vllm/model_executor/layers/quantization/base_config.py",
    UTILS,
    LINEAR,
    EMBEDDING,
)


@cache
def walked(tree: Tree) -> dict[str, Any]:
    """What `walk.py` says of a tree; {"error": ...} where it could not run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree.write(folder, *FILES)
        if not tree.patched:  # the gate is ours: beside a release as it is, it is called as the hook would
            for path in sorted((ROOT / "overlay" / "vllm").rglob("*.py")):
                target = folder / path.relative_to(ROOT / "overlay")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
        try:
            said: dict[str, Any] = say_of("walk.py", name, ARCH, seconds=SECONDS)
        except Unanswered as error:
            return {"error": str(error)}
    return said


def functions(tree: Tree) -> tuple[tuple[str, str], ...]:
    """(file, name) of every function of the release that a Linear's way goes through, as seen by running it."""
    return tuple((path, name) for path, name in walked(tree).get("ran", ()))


def collect(tree: Tree) -> list[Fact]:
    """One fact a layer class, one for the operator, one for the platform that would be chosen."""
    said = walked(tree)
    if "error" in said:
        return [Fact(ID, "walk", said["error"], UTILS, 1)]
    facts = []
    for name, answer in said["layers"].items():
        path = next((p for p in (LINEAR, EMBEDDING) if f"class {name}(" in tree.text(p)), LINEAR)
        facts.append(_fact(f"layer:{name}", answer, path, _line(tree, path, f"class {name}(")))
    facts.append(_fact("operator", said["operator"], UTILS, _line(tree, UTILS, 'op_name="rocm_unquantized_gemm"')))
    facts.append(_fact("platform", said["platform"], PLATFORMS, _line(tree, PLATFORMS, "def resolve_current_platform_cls_qualname")))
    return facts


def arrives(facts: Facts) -> bool:
    """Whether the tree has our gate at the operator's registration and every layer that was walked arrives there."""
    have = facts.of(ID)
    operator = json.loads(have["operator"].value) if "operator" in have else {}
    layers = [json.loads(f.value) for key, f in have.items() if key.startswith("layer:")]
    return operator.get("hooked") is True and bool(layers) and all(answer.get("value", "") == "" for answer in layers)


def judge(base: Facts, new: Facts) -> list[Finding]:
    """BLOCK for a way that does not arrive; *not evaluated* for one that the stand-ins cannot follow and could before."""
    found = []
    before = base.of(ID)
    for key, fact in sorted(new.of(ID).items()):
        kind, _, name = key.partition(":")
        if key == "walk":
            found.append(_finding(BLOCK, fact, f"upstream's layers do not run under the walk ({fact.value})."))
            continue
        answer = json.loads(fact.value)
        if "unknown" in answer:
            if key not in before or before[key].value != fact.value:
                found.append(_finding(OPEN, fact, f"not evaluated: the way of {name or key} ({answer['unknown']})."))
        elif kind == "platform":
            if why := _platform(answer):
                found.append(_finding(BLOCK, fact, why))
        elif answer["value"]:
            subject = f"a {name}'s call does not arrive at the gate" if kind == "layer" else "the operator is not ours alone to hook"
            found.append(_finding(BLOCK, fact, f"{subject}: {answer['value']}."))
    return found


def _platform(answer: dict[str, str]) -> str:
    hooked = {t.chain[-1] for t in touched() if t.how == "wrap" and t.module == "vllm.platforms"}
    if not hooked & set(answer["by"].split(",")):
        return (
            f"the platform on a DCU is {answer['value']}, named by {answer['by'] or 'no function'}, and not by "
            f"{', '.join(sorted(hooked))}, which our hook wraps: our platform is never chosen."
        )
    if answer["value"] not in ("vllm.platforms.rocm.RocmPlatform", "vllm.dcu.platform.DcuRocmPlatform"):
        return f"the platform on a DCU is {answer['value']}: our class, which extends RocmPlatform, is never chosen."
    return ""


def _fact(key: str, answer: dict[str, Any], path: str, line: int) -> Fact:
    return Fact(ID, key, json.dumps(answer, sort_keys=True), path, line)


def _finding(level: str, fact: Fact, sentence: str) -> Finding:
    return Finding(level, ID, fact.key, fact.path, fact.line, sentence)


def _line(tree: Tree, path: str, token: str) -> int:
    return line_of(tree.text(path), max(tree.text(path).find(token), 0))
