"""The patched vLLM wheel through pip: `pip wheel . --no-deps --no-build-isolation` is `make apply && make build`.

Nothing is built here: setuptools is only the door that pip knocks at. The wheel is the packer's, byte for byte, and the
tools run in their own environment, so the Python that calls this needs setuptools and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import setuptools
from setuptools.command.dist_info import dist_info

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ModuleNotFoundError:
    raise SystemExit(f"error: setuptools {setuptools.__version__} has no bdist_wheel of its own; install setuptools 77 or newer") from None

ROOT = Path(__file__).resolve().parent


def tools(*argv: str) -> None:
    """Run one verb; its own sentence is the error."""
    code = subprocess.run([sys.executable, "-m", "scripts", *argv], cwd=ROOT, check=False).returncode
    if code:
        raise SystemExit(code)


class PatchedWheel(bdist_wheel):
    """The packer's wheel instead of setuptools' own."""

    def run(self) -> None:
        folder = Path(self.dist_dir).resolve()
        before = set(folder.glob("*.whl"))
        tools("apply")
        tools("build", "--into", str(folder))
        for wheel in set(folder.glob("*.whl")) - before:
            self.distribution.dist_files.append(("bdist_wheel", "any", str(wheel)))


class PatchedDistInfo(dist_info):
    """The metadata that the wheel will have, for pip's look before it builds."""

    def run(self) -> None:
        tools("apply")
        folder = Path(self.output_dir).resolve()
        tools("build", "--metadata-into", str(folder))
        (folder / "vllm.egg-info").mkdir(exist_ok=True)  # setuptools' build_meta insists on finding one beside it


# No version: both commands that would use one are replaced, and the version is made in one place, scripts/wheel/version.py.
setuptools.setup(name="vllm", packages=[], py_modules=[], cmdclass={"bdist_wheel": PatchedWheel, "dist_info": PatchedDistInfo})
