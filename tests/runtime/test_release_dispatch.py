"""The behaviour check of the release matrix, and that it fails: the carried dispatch asked on the pinned tree, and broken on purpose."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.common.paths import TREE
from scripts.drift.contracts.model import Tree, tree_from_directory
from scripts.matrix.dispatch import check
from tests.support import not_run

UTILS = "vllm/model_executor/layers/utils.py"
GATE = "vllm/dcu/gate.py"

PLANTS = {
    "swapped arguments in upstream's call of the op": (
        UTILS,
        "return torch.ops.vllm.rocm_unquantized_gemm(x, weight, bias)",
        "return torch.ops.vllm.rocm_unquantized_gemm(weight, x, bias)",
        "failed: the layer's entry hands over x, weight, bias",
    ),
    "swapped arguments in our call of the kernel": (
        GATE,
        "native(weight, x if x.dim() == 2",
        "native(*(lambda a, b, *rest: (b, a, *rest))(weight, x if x.dim() == 2",
        "failed: ",
    ),
    "a rebase that loses the hook": (
        UTILS,
        "op_func=dcu_gate.wrap(rocm_unquantized_gemm_impl)",
        "op_func=rocm_unquantized_gemm_impl",
        "failed: ",
    ),
    "another function chosen for ROCm": (
        UTILS,
        "        return rocm_unquantized_gemm\n",
        "        return default_unquantized_gemm\n",
        "failed: the layer's entry hands over x, weight, bias",
    ),
    "a fake with another shape": (
        UTILS,
        "    return x.new_empty((*x.shape[:-1], weight.shape[0]))\n\n\ndef rocm_unquantized_gemm(",
        "    return x.new_empty((*x.shape[:-1], weight.shape[1]))\n\n\ndef rocm_unquantized_gemm(",
        "failed: the fake result has the shape of the real one",
    ),
    "a gate that takes two rows": (GATE, "if x.numel() != slot.rows * slot.k:", "if False:", "failed: "),
}


def applied() -> Tree:
    """The patched tree of `make apply`, or the installed patched package."""
    if (TREE / GATE).is_file():
        return tree_from_directory(TREE, "applied", patched=True)
    import vllm

    package = Path(vllm.__file__).parent
    if not (package / "dcu" / "gate.py").is_file():
        not_run("neither build/vllm (make apply) nor an installed patched package is here")
    return tree_from_directory(package.parent, "installed", patched=True)


def test_the_carried_dispatch_passes() -> None:
    assert check(Path(sys.executable), [applied()])[0].startswith("passed (")


@pytest.mark.parametrize("name", PLANTS)
def test_the_check_fails_on(name: str) -> None:
    path, old, new, said = PLANTS[name]
    tree = applied()
    text = tree.text(path)
    assert text.count(old) == 1
    text = text.replace(old, new)
    if name.startswith("swapped arguments in our call"):
        text = text.replace("x.view(slot.rows, slot.k), *slot.args)", "x.view(slot.rows, slot.k), *slot.args))")
    planted = Tree("planted", {**tree.files, path: text.encode()}, patched=True)
    outcome = check(Path(sys.executable), [planted])[0]
    assert outcome.startswith(said), outcome
