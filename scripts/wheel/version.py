"""The version of the patched wheel: one fact, made here and nowhere else.

`<upstream>+gfx936.<revision>[.<target>]`, both numbers from upstream.toml. File name, METADATA, `vllm.__version__` and
the build manifest all take the string from `wheel_version`; setuptools-scm's guess (which depends on whatever
repository encloses the tree) never enters.
"""

from __future__ import annotations

__all__ = ["SUFFIX", "version_module", "wheel_version"]

# The device build is the product, so it has the plain name. vLLM chooses its CPU platform by the word "cpu" in the
# installed version: that suffix is not decoration.
SUFFIX = {"rocm": "", "cpu": ".cpu", "empty": ".empty"}


def wheel_version(upstream: str, revision: int, target: str, stand_in: str = "") -> str:
    """The full version, e.g. `wheel_version("0.18.1", 1, "cpu") == "0.18.1+gfx936.1.cpu"`.

    `stand_in` is the arch that a device build was really compiled for, where that is not the device: the version says so.
    """
    return f"{upstream}+gfx936.{revision}{SUFFIX[target]}" + (f".standin.{stand_in}" if stand_in else "")


def version_module(version: str, commit: str) -> bytes:
    """The text of `vllm/_version.py` for `version`, with the names that setuptools-scm gives it."""
    public, _, local = version.partition("+")
    parts: tuple[int | str, ...] = (*(int(part) for part in public.split(".")), *([local] if local else []))
    return (
        "# Written by the wheel packer of vLLM for gfx936.\n"
        f"__version__ = version = {version!r}\n"
        f"__version_tuple__ = version_tuple = {parts!r}\n"
        f"__commit_id__ = commit_id = {'g' + commit[:9]!r}\n"
    ).encode()
