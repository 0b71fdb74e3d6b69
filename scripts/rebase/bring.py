"""What another pin brings along besides the series: the limits of versions.toml and the release that the READMEs name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scripts.common.git import Repo

__all__ = ["TEXTS", "VERSIONS", "Said", "brought", "said_by", "text_of"]

VERSIONS = "versions.toml"
TEXTS = ("README.md", "README.zh-CN.md")
_BUILD = ("requirements/build/rocm.txt", "requirements/rocm-build.txt")


@dataclass(frozen=True)
class Said:
    """What a release says of a limit: `at_least <= version < below`, and in which words of which file."""

    at_least: str
    below: str
    words: str


def text_of(repo: Repo, commit: str) -> Callable[[str], str]:
    """A reader of the files of a commit; "" for one that is not there."""

    def read(path: str) -> str:
        return repo.raw("cat-file", "blob", f"{commit}:{path}", ok=(0, 128)).stdout.decode("utf-8", "replace")

    return read


def said_by(read: Callable[[str], str]) -> dict[str, Said]:
    """The limits that a release states in its own files, by the row of versions.toml they bound."""
    found: dict[str, Said] = {}
    project = read("pyproject.toml")
    build, path = next(((read(p), p) for p in _BUILD if read(p)), ("", ""))
    for name, text, pattern, where in (
        ("python", project, r'(?m)^requires-python = ">=([\d.]+),<([\d.]+)"', "pyproject.toml"),
        ("setuptools", project, r'"setuptools>=([\d.]+),<([\d.]+)"', "pyproject.toml"),
        ("cmake", build, r"(?m)^cmake>=([\d.]+),<([\d.]+)$", path),
    ):
        if match := re.search(pattern, text):
            found[name] = Said(match[1], match[2], f"{where} has {match[0]}".replace('"', ""))
    torch = re.search(r'TORCH_SUPPORTED_VERSION_ROCM "([\d.]+)"', read("CMakeLists.txt"))
    built = re.search(r"(?m)^torch==([\d.]+)", build)
    if torch and built:
        numbers = sorted((_minor(torch[1]), _minor(built[1])))
        words = f"CMakeLists.txt is written for torch {torch[1]}, {path} builds with {built[1]}"
        found["torch"] = Said(_dotted(numbers[0]), _dotted((numbers[1][0], numbers[1][1] + 1)), words)
    return found


def brought(texts: Mapping[str, str], pinned: str, target: str, before: Mapping[str, Said], after: Mapping[str, Said]) -> dict[str, str]:
    """The files of `texts` as they are to be with `target` pinned.

    A limit is written anew only where the release says other words than the pinned one did; it is then known to no one.
    """
    out = {path: _named(text, pinned, target) for path, text in texts.items() if path != VERSIONS}
    if VERSIONS in texts:
        blocks = re.split(r"(?m)^(?=\[|# Not a version)", _named(texts[VERSIONS], pinned, target))
        for i, block in enumerate(blocks):
            name = block[1 : block.index("]")] if block.startswith("[") else ""
            if name == "vllm":
                blocks[i] = _with(block, at_least=target, below=_next(target), known=f"{target}, the pin")
            elif name in after and after[name] != before.get(name):
                known = f"nobody with {target}: taken from its files when it was adopted"
                blocks[i] = _with(
                    block, at_least=after[name].at_least, below=after[name].below, known=known, why=f"vLLM {target}: {after[name].words}"
                )
        out[VERSIONS] = "".join(blocks)
    return out


def _named(text: str, pinned: str, target: str) -> str:
    return re.sub(rf"(?<![\d.]){re.escape(pinned)}(?!\.?\d)", target, text)


def _with(block: str, **fields: str) -> str:
    for key, value in fields.items():
        block = re.sub(rf'(?m)^{key} = ".*"$', f'{key} = "{value}"'.replace("\\", r"\\"), block)
    return block


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _dotted(parts: tuple[int, int]) -> str:
    return f"{parts[0]}.{parts[1]}"


def _next(version: str) -> str:
    *head, last = version.split(".")
    return ".".join([*head, str(int(last) + 1)])
