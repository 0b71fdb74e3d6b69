# SPDX-License-Identifier: Apache-2.0
"""TEST ONLY, never in the wheel: stands for the vendor's platform plugin, and does to a vLLM what that does, by the same means.

STAND_IN_HCU says by which, separated by commas; without it the plugin only takes the platform:

* `rewrite`: at the first run, installed files are changed as text and marked (`PATCHED_...`), as up to its 0.21 line;
* `import`: a module's functions are replaced right after its import, in every process, as later ones do;
* `method`: the class of the Linear's method is replaced by one of the plugin's own, which computes with a function of its own;
* `transposed`: what it computes with holds its weights transposed.

STAND_IN_HCU_DEVICE=cpu makes the platform one that a CPU can serve, `cpu tensors` one whose tensors lie on the CPU.

Written for this project from what the vendor's public sources do; nothing is copied from them.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

__all__ = ["general", "platform"]

_UTILS, _LINEAR = "vllm.model_executor.layers.utils", "vllm.model_executor.layers.linear"
# module -> (what it looks for, what it puts there); a line that is not there is skipped without a word
REWRITES = {
    "vllm.platforms.rocm": (
        ('for arch in ["gfx90a", "gfx942", "gfx950"])', 'for arch in ["gfx90a", "gfx942", "gfx950", "gfx936", "gfx938"])'),
        ("a line of another release", "never put anywhere"),
    ),
    _UTILS: (("        return rocm_unquantized_gemm\n", "        return default_unquantized_gemm\n"),),
    "vllm.envs": (('if env.startswith("VLLM_") and env', 'if env.startswith("VLLM_") and "HCU" not in env and env'),),
    "vllm.v1.engine.core": (("logger = init_logger(__name__)\n", "logger = init_logger(__name__)  # looked over\n"),),
    "vllm.of.another.release": (("a", "b"),),
}


def means() -> frozenset[str]:
    return frozenset(filter(None, os.environ.get("STAND_IN_HCU", "").split(",")))


def platform() -> str:
    """Entry point: takes the platform over, in every process; the first one on a machine finds the files unchanged."""
    if "rewrite" in means():
        rewrite()
    if means() & {"import", "method"} and not any(isinstance(f, _AfterImport) for f in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
    kind = "Cpu" if os.environ.get("STAND_IN_HCU_DEVICE") == "cpu" else "Hip"
    return f"stand_in_hcu_platform.{kind}StandIn"


def general() -> None:
    """Entry point of the general plugins: once in each process, after the platform."""
    print(f"stand_in_hcu: general plugin in pid {os.getpid()}", file=sys.stderr, flush=True)


def rewrite(package: str | None = None) -> None:
    """Change installed files as text; what was changed before is left alone, and a file that cannot be written too."""
    root = package or next(iter(sys.modules["vllm"].__path__))
    for name, pairs in REWRITES.items():
        path = _source(root, name)
        if path is None:
            continue
        text = path.read_text(encoding="utf-8")
        changed = text
        for i, (old, new) in enumerate(pairs):
            mark = f"# PATCHED_{name.replace('.', '_')}_patch_{i}"
            if mark not in changed and old in changed:
                changed = changed.replace(old, new) + f"\n{mark}\n"
        if changed != text:
            try:
                path.write_text(changed, encoding="utf-8")
            except OSError as error:
                print(f"stand_in_hcu: {error}", file=sys.stderr)


def _source(root: str, name: str) -> Path | None:
    base = Path(root, *name.split(".")[1:])
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _patch_dispatch(module: ModuleType) -> None:
    chosen: Callable[..., object] = module.default_unquantized_gemm

    def stand_in_dispatch() -> Callable[..., object]:
        return chosen

    module.dispatch_unquantized_gemm = stand_in_dispatch  # type: ignore[attr-defined]


def _patch_method(module: ModuleType) -> None:
    """A method class of the plugin's own, that calls none of vLLM's functions; what it computed can be told by `calls`."""
    import torch

    class StandInLinearMethod(module.UnquantizedLinearMethod):  # type: ignore[misc,name-defined]
        calls = 0

        def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            StandInLinearMethod.calls += 1
            weight = layer.weight if "transposed" in means() else layer.weight.t()
            return torch.matmul(x, weight) if bias is None else torch.matmul(x, weight) + bias

    StandInLinearMethod.__name__ = StandInLinearMethod.__qualname__ = "UnquantizedLinearMethod"
    module.UnquantizedLinearMethod = StandInLinearMethod  # type: ignore[attr-defined]


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets a module be imported as ever, and patches it right after."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = {_UTILS: ("import", _patch_dispatch), _LINEAR: ("method", _patch_method)}.get(fullname)
        if patch is None or patch[0] not in means():
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def then_patch(module: ModuleType) -> None:
                run(module)
                patch[1](module)

            spec.loader.exec_module = then_patch  # type: ignore[method-assign]
        return spec


if __name__ == "__main__":
    rewrite(sys.argv[1])
