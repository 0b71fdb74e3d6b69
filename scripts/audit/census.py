"""census: docs/native-census.md, every native op and its standing in a gfx936 build (CHECK=1: only compare).

Read from vLLM's own build: the real CMakeLists.txt is configured for gfx936, each binding unit is preprocessed with its
real command, and what remains in it is what the extension registers. Nothing is compiled.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.audit.configure import Command, Configured, commands, configure, run_unit
from scripts.audit.verb import bench_of, upstream_tree
from scripts.common import errors
from scripts.common.files import atomic_write, say
from scripts.common.paths import ROOT, TREE, shown
from scripts.upstream.releases import read_pin

__all__ = ["CENSUS", "Op", "main", "registered", "render", "take"]

CENSUS = ROOT / "docs" / "native-census.md"
_OURS = {
    "csrc/rocm/dcu_bindings.cpp": "csrc/rocm/dcu_llmm1.cu (text of csrc/rocm/skinny_gemms.cu)",
    "csrc/dcu/bindings.cpp": "csrc/dcu/gemv.cu",
}
_STANDINGS = {
    "record": "compiled for gfx936 by this project; opened by a capability record only",
    "built": "upstream's, built for gfx936, not verified by this project",
    "declared": "declared by upstream without code for ROCm: a call fails by name",
    "absent": "not built for gfx936: absent from the bindings, a call fails by name",
    "other": "not built for any ROCm device",
}


@dataclass(frozen=True)
class Op:
    """One op: the torch library it is registered in, its name, the unit that defines it, and its standing."""

    library: str
    name: str
    unit: str
    standing: str


def registered(text: str, main_file: str) -> dict[tuple[str, str], str]:
    """(library, op) -> function name, from preprocessed text with line markers; "" where no function is bound."""
    kept, mine = [], False
    for line in text.splitlines():
        if marker := re.match(r'# \d+ "([^"]*)"', line):
            mine = marker[1].endswith((main_file, ".inc"))
        elif mine:
            kept.append(line)
    return _ops("\n".join(kept))


def _ops(text: str) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    library = ""
    pattern = re.compile(
        r'TORCH_LIBRARY_init_(?P<lib>\w+)\s*\(|\.def\(\s*(?P<def>(?:"(?:[^"\\]|\\.)*"\s*)+)(?:,\s*&?(?P<deffunc>[\w:]+))?'
        r'|\.impl\(\s*"(?P<impl>\w+)"\s*,[^,]*,\s*&?(?P<func>[\w:]+)'
    )
    for match in pattern.finditer(text):
        if match["lib"]:
            library = match["lib"]
        elif match["def"]:
            schema = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match["def"]))
            found.setdefault((library, re.split(r"[(\s]", schema.strip(), maxsplit=1)[0]), _last(match["deffunc"]))
        elif (library, match["impl"]) in found:
            found[library, match["impl"]] = _last(match["func"])
    return found


def _last(name: str | None) -> str:
    return (name or "").rpartition("::")[2]


def _written(source: str) -> set[str]:
    """Op names that a binding file holds before preprocessing, whatever its conditions say."""
    return {name for _, name in _ops(re.sub(r"(?m)//.*$", "", source))}


def _unit_of(function: str, target: str, sources: Mapping[str, Mapping[str, str]]) -> str:
    definition = re.compile(rf"(?m)^[A-Za-z_][\w:<>,&*\s]*?\b{re.escape(function)}\s*\([^;{{]*\)\s*\{{") if function else None
    if definition:
        for unit, text in sources[target].items():
            if definition.search(text):
                return unit
    return "(header)"


def _sources(found: Iterable[Command], tree: Path) -> dict[str, dict[str, str]]:
    texts: dict[str, dict[str, str]] = {}
    for command in found:
        unit = command.unit.removesuffix(".hip") + ".cu" if command.unit.endswith(".hip") else command.unit
        if not (tree / unit).is_file():
            unit = unit.replace("hip", "cuda")  # hipify renames such a file
        text = (tree / unit).read_text(encoding="utf-8", errors="replace") if (tree / unit).is_file() else ""
        texts.setdefault(command.target, {})[unit] = re.sub(r"(?m)//.*$", "", text)
    return texts


def take(built: Configured) -> list[Op]:
    """The census of a configured gfx936 build.

    Raises:
        errors.CheckFailed: a binding unit cannot be preprocessed, or registers nothing.
    """
    found = commands(built)
    sources = _sources(found, built.tree)
    ops: list[Op] = []
    names: set[str] = set()
    for command in found:
        if not command.unit.endswith("bindings.cpp"):
            continue
        # Headers come from the sources: the build's copy of them is made when it compiles.
        done = run_unit(command, built, ["-E", f"-I{built.tree / 'csrc'}"], Path("/dev/stdout"))
        here = registered(done.stdout, command.unit) if not done.returncode else {}
        if not here:
            raise errors.CheckFailed(
                f"{command.unit} registers no op", done.stderr.strip()[-200:] or "none was found in it", "adapt scripts/audit/census.py"
            )
        for (library, name), function in here.items():
            mine = command.unit in _OURS
            unit = _OURS[command.unit] if mine else _unit_of(function, command.target, sources)
            # A declaration whose implementation is registered elsewhere, in a unit that only CUDA builds.
            bound = mine or bool(function)
            ops.append(Op(library, name, unit if bound else "", "record" if mine else "built" if bound else "declared"))
            names.add(name)
    for file in sorted(built.tree.glob("csrc/**/torch_bindings.cpp")):
        if file.parent.name == "cpu":
            continue
        rocm = file.parent.name == "rocm"
        extension = {"rocm": "_rocm_C", "moe": "_moe_C"}.get(file.parent.name, "_C")
        for name in sorted(_written(file.read_text(encoding="utf-8")) - names):
            ops.append(Op(extension, name, "", "absent" if rocm else "other"))
    return sorted(ops, key=lambda op: (op.library, op.name))


def render(ops: Sequence[Op], version: str) -> str:
    """The document."""
    counts = {key: sum(op.standing == key for op in ops) for key in _STANDINGS}
    lines = [
        "# Native code in a gfx936 build",
        "",
        f"Generated by `make census` from vLLM {version} with the series applied; do not edit. The build of vLLM's own",
        "CMakeLists.txt is configured for `PYTORCH_ROCM_ARCH=gfx936` and its binding units are preprocessed: no device and",
        "no compiler for gfx936 took part. **That an op is built says nothing about its result on a DCU.**",
        "",
        "| standing | ops |",
        "|---|---|",
        *(f"| {text} | {counts[key]} |" for key, text in _STANDINGS.items()),
        "",
        "In a mixed list (`gfx906;gfx936`) the ops of `_rocm_C` that are absent here are bound for the other archs, with no",
        "code object for gfx936. `cumem_allocator` is built as upstream's; it registers no op and holds no device code.",
        "",
        "| library | op | unit | standing |",
        "|---|---|---|---|",
        *(
            f"| `{op.library}` | `{op.name}` | {f'`{op.unit}`' if op.unit else '-'} | {_STANDINGS[op.standing].partition(':')[0]} |"
            for op in ops
        ),
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    """Command line of `census`."""
    parser = argparse.ArgumentParser(prog="census", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare with what is there")
    args = parser.parse_args(argv)
    bench = bench_of()
    upstream_tree()
    text = render(take(configure(bench, TREE, "gfx936")), read_pin().version)
    if args.check:
        if not CENSUS.is_file() or CENSUS.read_text(encoding="utf-8") != text:
            raise errors.CheckFailed(f"{shown(CENSUS)} is out of date", "the build registers other ops than it lists", "run `make census`")
        say(f"{shown(CENSUS)} is what the build registers")
        return 0
    atomic_write(CENSUS, text.encode())
    print(shown(CENSUS))
    return 0
