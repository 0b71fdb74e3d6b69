"""ext: only _rocm_C and _dcu_C again, incrementally, into build/vllm (needs the DTK); edits in build/vllm are compiled as they are."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence

from scripts.common import errors
from scripts.common.files import hold
from scripts.common.paths import TREE, shown
from scripts.series.apply import LOCK
from scripts.wheel import device

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Command line of `ext`."""
    argparse.ArgumentParser(prog="ext", description=__doc__).parse_args(argv)
    if not (TREE / "CMakeLists.txt").is_file():
        raise errors.MissingInput(f"{shown(TREE)} holds no tree", "the extension is compiled from it", "run `make apply`")
    plan = device.only_rocm(device.plan())
    with hold(LOCK, "compile _rocm_C"):
        built = device.compile_native(plan)
        for path, file in built.files.items():
            part = TREE / (path + ".part")
            shutil.copyfile(file, part)
            part.replace(TREE / path)
            print(f"{shown(TREE / path)}: {', '.join(plan.made)}" + (f" (stand-in for {';'.join(plan.archs)})" if plan.stand_in else ""))
        if built.left_out:
            print(f"{device.OWN_KERNELS} is left out: {built.left_out}")
    return 0
