# SPDX-License-Identifier: Apache-2.0
"""What a decision of the gate rests on: a handful of vLLM's files, and that they run as they were built.  Standard library only.

A vendor's plugin may have rewritten an installed vLLM, and uninstalling it undoes nothing. So a process that decides anything looks once
(a millisecond) at the files in which our hooks are and at those that call them: bytes against the manifest, and that the code which runs
comes from them and not from a compiled form or another package. `replaced` looks at the functions themselves, for patches made at import.
"""

import functools
import importlib.util
import json
import marshal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.machinery import SOURCE_SUFFIXES
from logging import Logger
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from vllm.dcu.device.marks import FILE_NAME, marks

__all__ = [
    "AS_BUILT",
    "RESTS_ON",
    "Footing",
    "close_families",
    "footing",
    "look",
    "look_again",
    "other_code",
    "replaced",
    "say_once",
    "when_replaced",
]

RESTS_ON: tuple[str, ...] = (
    "envs.py",
    "platforms/__init__.py",
    "platforms/rocm.py",
    "model_executor/layers/utils.py",
    "model_executor/layers/linear.py",
    "model_executor/layers/vocab_parallel_embedding.py",
)
"""The files that our patches touch, and the two that call the operator."""

_OWN = (
    ("model_executor/layers/utils", "dispatch_unquantized_gemm"),
    ("model_executor/layers/utils", "rocm_unquantized_gemm"),
    ("model_executor/layers/linear", "UnquantizedLinearMethod.apply"),
    ("model_executor/layers/linear", "dispatch_unquantized_gemm"),
    ("model_executor/layers/vocab_parallel_embedding", "UnquantizedEmbeddingMethod.apply"),
    ("model_executor/layers/vocab_parallel_embedding", "dispatch_unquantized_gemm"),
)
"""The functions through which a Linear comes to the operator, by module; one that a module imported lies in utils.py."""


@dataclass(frozen=True)
class Footing:
    """What was found.

    Attributes:
        version: of the build, empty without a manifest.
        edits: one phrase for each file that is not the build's as it runs.
        unknown: why nothing can be said, empty where it can.
        digest: hash of the edited files together, empty where there is none: what rewrote them is told apart by it.
        foreign: those of the phrases that are not the doing of the plugin that has the platform.
    """

    version: str = ""
    edits: tuple[str, ...] = ()
    unknown: str = ""
    digest: str = ""
    foreign: tuple[str, ...] = ()

    def beside(self) -> "Footing":
        """The same for a process that stands beside the plugin: what the plugin did is not held against it."""
        return replace(self, edits=self.foreign)

    @property
    def sentence(self) -> str:
        """The one line for people: file, mark, remedy. Empty where all is as built."""
        again = f"pip install --force-reinstall --no-deps of the wheel{f' of vllm {self.version}' if self.version else ''}"
        if self.unknown:
            return f"DCU: every capability is shut: {self.unknown}. Remedy: {again}."
        if not self.edits:
            return ""
        more = f" (and {len(self.edits) - 1} more)" if len(self.edits) > 1 else ""
        return f"DCU: every capability is shut: {self.edits[0]}{more}. Remedy: {again}; `python -m vllm.dcu manifest` lists the files."


AS_BUILT = Footing()


@functools.cache
def footing() -> Footing:
    """How this process's vLLM stands; read once, the answer is kept."""
    return look(Path(next(iter(sys.modules["vllm"].__path__))))


def look(package: Path, plugin: Path | None = None) -> Footing:
    """How the vllm in the folder (or zip) `package` stands. `plugin`: where the plugin that has the platform lies."""
    try:
        raw = json.loads(_read(package / "dcu" / FILE_NAME) or b"", object_pairs_hook=_once)
        version, hashes = str(raw["version"]), dict(raw["files"])
    except (ValueError, KeyError, TypeError):
        return Footing(unknown=f"{package} has no build manifest that can be read, so that nothing says which files it was built of")
    found: list[str] = []
    foreign: list[str] = []
    digest = sha256()
    for name in RESTS_ON:
        data = _read(package / name)
        marked = marks(data or b"")
        if phrase := _fault(package, name, data, hashes.get(name, ""), marked):
            found.append(phrase)
            digest.update(data or phrase.encode())
            if not marked and not (plugin and Path(_origin(name) or "/").resolve().is_relative_to(plugin)):
                foreign.append(phrase)
    return Footing(version, tuple(found), "", digest.hexdigest() if found else "", tuple(foreign))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _fault(package: Path, name: str, data: bytes | None, built: str, marked: tuple[str, ...]) -> str:
    """What is wrong with one file, as a phrase that names it; empty where it is the build's and is what runs."""
    path = package / name
    origin = _origin(name)
    if origin and not origin.endswith(tuple(SOURCE_SUFFIXES)):
        return f"{path} is not what runs: its code comes from {origin}"
    if origin and Path(origin) != path:
        return f"{path} is not what runs: {_module(name)} comes from {origin}"
    if data is None:
        return f"{path} is missing"
    if sha256(data).hexdigest() != built:
        return f"{path} is not the file that was built ({f'mark {marked[0]}' if marked else 'no mark'})"
    if compiled := _unchecked(path, data):
        return f"{path} is not what runs: {compiled} was compiled from another text"
    return ""


def _origin(name: str) -> str | None:
    """Where the code of one of the files came from, if its module is loaded."""
    return getattr(sys.modules.get(_module(name)), "__file__", None)


def _module(name: str) -> str:
    return "vllm." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _read(path: Path) -> bytes | None:
    """The bytes of a file of the package, which may lie in a zip; None where there is none. What is no regular file is never waited for."""
    try:
        return path.read_bytes() if path.is_file() or not path.exists() else None
    except OSError:
        loader: Any = getattr(sys.modules.get("vllm"), "__loader__", None)
        try:
            return bytes(loader.get_data(str(path)))
        except (OSError, AttributeError):
            return None


def _unchecked(path: Path, source: bytes) -> Path | None:
    """The compiled form of `path`, where Python runs it without asking whether the source is still the same, and it is not."""
    try:
        compiled = Path(importlib.util.cache_from_source(str(path)))
        if not compiled.is_file():
            return None
        with compiled.open("rb") as file:
            head = file.read(16)
    except (OSError, NotImplementedError):
        return None
    if head[:4] != importlib.util.MAGIC_NUMBER or head[4:8] != b"\1\0\0\0":
        return None
    return compiled if head[8:16] != importlib.util.source_hash(source) else None


def other_code(package: Path) -> Iterator[str]:
    """One sentence for each of the files whose compiled form says something else than its text. Compiles them: for tools, not for a start."""
    for name in RESTS_ON:
        path = package / name
        try:
            compiled = Path(importlib.util.cache_from_source(str(path)))
            if not (compiled.is_file() and path.is_file()):
                continue
            data, text = compiled.read_bytes(), path.read_bytes()
        except (OSError, NotImplementedError):
            continue
        if data[:4] != importlib.util.MAGIC_NUMBER or (data[4:8] == b"\0\0\0\0" and data[8:16] != _stamp(path)):
            continue  # Python compiles anew
        try:
            code: Any = marshal.loads(data[16:])  # noqa: S302  (what Python itself is about to run)
        except (ValueError, EOFError, TypeError):
            code = None
        if code != _compile(path, text):
            yield f"{compiled} holds other code than {path.name}, and runs in its place: delete it"


def _stamp(path: Path) -> bytes:
    stat = path.stat()
    return (int(stat.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + (stat.st_size & 0xFFFFFFFF).to_bytes(4, "little")


def _compile(path: Path, text: bytes) -> CodeType:
    code: CodeType = compile(text, str(path), "exec", dont_inherit=True)
    return code


def replaced() -> tuple[str, ...]:
    """A phrase for each function between a Linear and the operator that is not the one of its own file."""
    found = []
    package = next(iter(sys.modules["vllm"].__path__))
    for name, function in _OWN:
        value: Any = sys.modules.get(f"vllm.{name.replace('/', '.')}")
        if value is None:
            continue
        for part in function.split("."):
            value = getattr(value, part, None)
        code = getattr(value, "__code__", None)
        home = "model_executor/layers/utils" if "." not in function else name
        if code is None or (code.co_filename, code.co_name) != (f"{package}/{home}.py", function.rpartition(".")[2]):
            found.append(f"{name}.py: {function} was replaced in memory by {f'code of {code.co_filename}' if code else 'another object'}")
    return tuple(found)


_listeners: list[Callable[[], None]] = []


def when_replaced(shut: Callable[[], None]) -> None:
    """Have `shut` called if `look_again` finds a function replaced."""
    _listeners.append(shut)


def look_again(logger: Logger) -> None:
    """Before the first forward: say once which function was replaced, and have every capability shut, as no call need arrive any more."""
    if phrases := replaced():
        for shut in _listeners:
            shut()
        more = f" (and {len(phrases) - 1} more)" if len(phrases) > 1 else ""
        say_once(
            logger, f"DCU: every capability is shut: {phrases[0]}{more}. Remedy: uninstall that package or leave it out of VLLM_PLUGINS."
        )


def close_families(rocm: ModuleType) -> tuple[str, ...]:
    """On a DCU: no predicate of `vllm.platforms.rocm` but its own may say yes. Closes those that do; returns their names."""
    opened = [name for name, value in vars(rocm).items() if name.startswith("_ON_") and name != "_ON_GFX936" and value]
    for name in opened:
        setattr(rocm, name, False)
    for name, value in list(vars(rocm).items()):
        if name.startswith("on_") and name != "on_gfx936" and callable(value) and _says_yes(value):
            setattr(rocm, name, _never)
            opened.append(name)
    return tuple(opened)


def _says_yes(predicate: Callable[[], object]) -> bool:
    try:
        return bool(predicate())
    except Exception:
        return True  # whatever it is, it is not upstream's predicate


def _never() -> bool:
    return False


_said: set[str] = set()


def say_once(logger: Logger, sentence: str) -> None:
    """Warn of `sentence`, if it is one and this process has not yet."""
    if sentence and sentence not in _said:
        _said.add(sentence)
        logger.warning("%s", sentence)
