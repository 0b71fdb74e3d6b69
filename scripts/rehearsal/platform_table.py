"""platform-table: docs/platform-table.md, every arch-dependent answer of upstream and of the patched tree, by running both.

`--check` compares instead of writing: for every arch but gfx936 the two trees must agree cell by cell, on gfx936 none of
upstream's predicates may hold, and the file must be what this run says.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, say
from scripts.common.git import Repo, open_repo
from scripts.common.paths import ROOT, TREE, shown
from scripts.rehearsal.scenarios import FAKES, PROBES, Zygote, link_tree, zygote
from scripts.runtime.environment import ensure_serving
from scripts.series.worktree import read_state

__all__ = ["DCU", "OTHERS", "Table", "archs_of", "compare", "differences", "main", "measure", "render", "trees"]

DCU = "gfx936:sramecc+:xnack-"
OTHERS = ("gfx928", "gfx999")
"""Besides what upstream knows: another DCU, and a gfx9 that nobody knows."""

SWITCHES = {
    "VLLM_ROCM_USE_AITER": "1",
    "VLLM_ROCM_USE_AITER_FP4_ASM_GEMM": "1",
    "VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS": "1",
    "VLLM_ROCM_USE_AITER_PAGED_ATTN": "1",
    "VLLM_ROCM_USE_AITER_TRITON_ROPE": "1",
    "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION": "1",
    "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1",
    "VLLM_ROCM_CUSTOM_PAGED_ATTN": "1",
    "VLLM_ROCM_FP8_MFMA_PAGE_ATTN": "1",
    "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "FP",
}
"""Everything that is off by default and can be asked for; what is on by default needs no asking."""

DOCUMENT = ROOT / "docs" / "platform-table.md"
Table = dict[str, dict[str, str]]
"""arch -> row -> cell."""


def archs_of(upstream: Path) -> list[str]:
    """Every arch that upstream names: those it builds for and those that rocm.py tells apart."""
    built = re.search(r'set\(HIP_SUPPORTED_ARCHS "([^"]+)"\)', (upstream / "CMakeLists.txt").read_text(encoding="utf-8"))
    assert built, "upstream's CMakeLists.txt has no HIP_SUPPORTED_ARCHS"
    known = set(built.group(1).split(";"))
    known |= set(re.findall(r'"(gfx[0-9a-f]{3,4})"', (upstream / "vllm/platforms/rocm.py").read_text(encoding="utf-8")))
    return sorted(known - {"gfx936"}, key=lambda name: (len(name), name))


def measure(runner: Zygote, package: Path, archs: Sequence[str]) -> Table:
    """Ask the vllm `package` every question for every arch.

    Raises:
        errors.CheckFailed: the package cannot answer.
    """
    code = (PROBES / "arch_table.py").read_text(encoding="utf-8")
    table: Table = {}
    with tempfile.TemporaryDirectory(prefix="gfx936-table-") as folder:
        tree = link_tree(package, Path(folder) / "tree")
        for arch in archs:
            answer = runner.run(code, [tree, FAKES], {"FAKE_AMDSMI_ARCH": arch, **SWITCHES}, device=arch)
            if answer.error is not None:
                raise errors.CheckFailed(
                    f"the table could not be measured for {arch}", f"{answer.error}\n{answer.traceback}", "read the error above"
                )
            table[arch] = dict(answer.value)
    return table


_CLOSED = (
    (r"rocm\.(_ON_|on_)", "False"),
    (r"platform\.(supports_fp8|is_fp8_fnuz|supports_mx|is_navi|use_custom_allreduce)\(\)", "False"),
    (r"rocm\.use_rocm_custom_paged_attention", r"0 of \d+ .*"),
    (r"is_aiter_found_and_supported|rocm_aiter_ops\.|QuickAllReduce\.|ROCmFP8", "False"),
    (r"attention", r"(Triton|Rocm|Flex)Attention\w*Backend|TritonMLABackend|TRITON_ATTN|TORCH_SDPA|raises ValueError"),
    (r"quantization .*(fp8|fp4)", "raises ValueError"),
    (r"unquantized GEMM", r"generic \(F\.linear\)"),
    (r"envs\.VLLM_ROCM_FP8_MFMA_PAGE_ATTN", "False"),
    (r"envs\.VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "NONE"),
)
"""On gfx936: rows that begin like this may only answer like that."""


def differences(upstream: Table, patched: Table) -> list[str]:
    """Every broken rule, one sentence each; empty means that only gfx936 changed, and that it is shut."""
    found = []
    for arch, rows in patched.items():
        base = upstream[arch]
        if arch == DCU:
            for row, value in rows.items():
                rule = next((closed for begin, closed in _CLOSED if re.match(begin, row)), None)
                if rule and (row in base or not row.startswith("rocm.")) and not re.fullmatch(rule, value):
                    found.append(f"{arch}: {row} is {value}: an unverified path is open")
            continue
        found += [f"{arch}: {row} is gone (upstream: {base[row]})" for row in base if row not in rows]
        for row, value in rows.items():
            if row not in base and value != "False":
                found.append(f"{arch}: {row}, which the series adds, is {value}, not False")
            elif row in base and value != base[row]:
                found.append(f"{arch}: {row} is {value}, upstream has {base[row]}")
    return found


def _matrix(rows: Sequence[str], columns: Sequence[tuple[str, Mapping[str, str]]]) -> list[str]:
    lines = ["| | " + " | ".join(name for name, _ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    short = {"True": "yes", "False": "no"}
    for row in rows:
        cells = [short.get(value := cells.get(row, "-"), value).replace("|", "\\|") for _, cells in columns]
        lines.append(f"| `{row}` | " + " | ".join(cells) + " |")
    return lines


def render(upstream: Table, patched: Table) -> str:
    """The document. Columns of other archs hold both trees' common answer."""
    others = [arch for arch in patched if arch != DCU]
    columns = [("gfx936 upstream", upstream[DCU]), ("**gfx936 patched**", patched[DCU])]
    columns += [(arch, patched[arch]) for arch in others]
    names = list(dict.fromkeys(row for rows in patched.values() for row in rows))
    varying = [r for r in names if len({cells.get(r) for _, cells in columns}) > 1]
    constant = [r for r in names if r not in varying]
    return "\n".join(
        [
            "# What each arch gets",
            "",
            "Written by `make platform-table`, checked by the tests; never edited by hand. Every cell is the answer of the real code in",
            "a process of its own whose amdsmi names that arch (a stand-in module: no such device is here), with an `aiter` package",
            "present, so that only the arch decides. For every arch but gfx936 the patched tree's answer equals upstream's, cell by",
            "cell; the check fails otherwise. gfx928 is another DCU, gfx999 a gfx9 that nobody knows. `-`: that tree has no such row.",
            "Rows with `(switches on)` were asked with every AITER switch, fp8 and quick all-reduce asked for by environment.",
            "",
            f"## Answers that depend on the arch ({len(varying)})",
            "",
            *_matrix(varying, columns),
            "",
            f"## Answers that do not ({len(constant)})",
            "",
            *_matrix(constant, [("every arch, both trees", patched[DCU])]),
            "",
        ]
    )


def trees(folder: Path, *more: str) -> tuple[Path, Path]:
    """(upstream, patched): the base commit and the head of build/vllm, unpacked below `folder`: the package, CMakeLists.txt
    and what `more` names.

    Raises:
        errors.MissingInput: nothing was applied yet.
    """
    state = read_state()
    if state is None:
        raise errors.MissingInput(f"{shown(TREE)} is missing", "both trees come from it", "run `make apply` first")
    repo, found = open_repo(TREE), []
    for name, commit in (("upstream", state.base), ("patched", state.head)):
        target = folder / name
        target.mkdir()
        Repo(repo.git_dir, target, folder / f"{name}.index").out("checkout", "-q", commit, "--", "vllm", "CMakeLists.txt", *more)
        found.append(target)
    return found[0], found[1]


def compare(python: Path | str, folder: Path) -> tuple[Table, Table]:
    """Both tables, the two trees measured at the same time."""
    upstream, patched = trees(folder)
    archs = [DCU, *archs_of(upstream), *OTHERS]

    def measured(tree: Path) -> Table:
        with zygote(python) as runner:
            return measure(runner, tree / "vllm", archs)

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(measured, tree) for tree in (upstream, patched)]
        return jobs[0].result(), jobs[1].result()


def main(argv: Sequence[str]) -> int:
    """Command line of `platform-table`."""
    parser = argparse.ArgumentParser(prog="platform-table", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a rule is broken or the file is stale")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gfx936-table-") as folder:
        upstream, patched = compare(ensure_serving(), Path(folder))
    broken = differences(upstream, patched)
    text = render(upstream, patched)
    if args.check and (not DOCUMENT.is_file() or DOCUMENT.read_text(encoding="utf-8") != text):
        broken.append(f"{shown(DOCUMENT)} is not what the code answers")
    if broken:
        raise errors.CheckFailed(
            "\n".join(broken),
            "on every device but gfx936 not one decision may differ from upstream's",
            "correct the patch; where the answers on gfx936 changed on purpose, run `make platform-table` and review the difference",
        )
    if not args.check:
        atomic_write(DOCUMENT, text.encode())
    cells = sum(len(rows) for arch, rows in patched.items() if arch != DCU)
    say(f"{len(patched)} archs, {cells} cells besides gfx936's equal to upstream's")
    return 0
