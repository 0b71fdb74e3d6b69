"""One release of the matrix: what carrying the series gives, what the scan says before and after it, what gfx936 would build."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from scripts.common.files import atomic_write
from scripts.common.git import Repo
from scripts.common.outside import MOST_BYTES, StrictError, read_json
from scripts.common.paths import BUILD
from scripts.drift import contracts
from scripts.drift.contracts import build_set, cmake_eval
from scripts.drift.contracts.model import BLOCK, REVIEW, WANTED_FILES, WANTED_FOLDERS, Facts, Finding, Tree, tree_from_tar
from scripts.drift.contracts.page import counts
from scripts.drift.scan import facts_of_release
from scripts.rebase.threeway import MOVED, UPSTREAMED
from scripts.rebase.walk import Step

__all__ = ["HOME", "Matrix", "Row", "Subject", "make_row", "patched_tree", "warm"]

HOME = BUILD / "matrix"
#: What gfx936 may have in the native module, by name: our bindings and the selected LLMM1.
ROUTED = ("csrc/rocm/dcu_bindings.cpp", "csrc/rocm/dcu_llmm1.cu")


@dataclass(frozen=True)
class Subject:
    """A release to be judged: the walk's step, the head of its chain, and the pinned chain's head to compare with."""

    step: Step
    head: str
    tree: str
    base_version: str
    base_head: str
    base_tree: str
    git_dir: Path


@dataclass(frozen=True)
class Row:
    """A line of the matrix.

    Attributes:
        verdicts: patch -> verdict at this release.
        upstream: findings of the release as it is, by level.
        carried: findings of the release with the series, by level: what the series leaves open.
        blocks: key -> sentence of each upstream BLOCK; `open_blocks`: of those that the series leaves.
        reviews: key -> sentence of each REVIEW with the series; `marks`: key -> digest of its text, which tells a new one.
        routing: sources of _rocm_C for gfx936 with the series, or why it could not be told.
        dispatch: outcome of the behaviour check of the carried dispatch.
    """

    version: str
    tree: str
    verdicts: dict[str, str]
    upstream: dict[str, int]
    carried: dict[str, int]
    blocks: dict[str, str]
    open_blocks: dict[str, str]
    reviews: dict[str, str]
    routing: str
    dispatch: str = ""
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def routed(self) -> bool:
        """Whether gfx936 builds exactly our two sources."""
        return self.routing == "only LLMM1"

    def patches(self) -> str:
        """One cell: how the patches fared."""
        have = list(self.verdicts.values())
        moved, gone = have.count(MOVED), have.count(UPSTREAMED)
        rest = [f"{moved} moved" for _ in [0] if moved] + [f"{gone} upstreamed" for _ in [0] if gone]
        conflicts = have.count("conflicts")
        rest += [f"**{conflicts} conflict**" for _ in [0] if conflicts]
        return f"{len(have) - conflicts} of {len(have)}" + (f" ({', '.join(rest)})" if rest else "")


@dataclass(frozen=True)
class Matrix:
    """All rows, the pin, and where the walk stopped ("": nowhere)."""

    pinned: str
    rows: tuple[Row, ...]
    stopped: str = ""
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def open_blocks(self) -> int:
        """BLOCK findings that the series leaves, over all releases."""
        return sum(len(r.open_blocks) for r in self.rows)


def patched_tree(repo: Repo, head: str, version: str) -> Tree:
    """The tree of a carried chain, read from the object store."""
    there = set(repo.lines("ls-tree", "--name-only", "-z", head))
    data = repo.raw("archive", "--format=tar", head, *sorted(there.intersection({*WANTED_FILES, *WANTED_FOLDERS}))).stdout
    return tree_from_tar(data, version, patched=True)


def patched_facts(repo: Repo, head: str, tree: str, version: str) -> Facts:
    """Facts of a carried tree, taken once a tree id."""
    cached = HOME / "facts" / f"{version}-{tree[:12]}-{contracts.tool_id()[:12]}.json"
    if cached.is_file():
        return Facts.from_json(cached.read_text(encoding="utf-8"))
    facts = contracts.collect(patched_tree(repo, head, version))
    atomic_write(cached, facts.to_json().encode())
    return facts


def warm(subject: Subject) -> None:
    """Take the pinned release's facts, with and without the series."""
    facts_of_release(subject.base_version)
    patched_facts(Repo(subject.git_dir, subject.git_dir.parent), subject.base_head, subject.base_tree, subject.base_version)


def make_row(subject: Subject) -> Row:
    """Judge one release, or read the verdict of an earlier run with the same inputs."""
    repo = Repo(subject.git_dir, subject.git_dir.parent)
    version = subject.step.version
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    key = hashlib.sha256(f"{subject.tree}\0{subject.base_tree}\0{subject.base_version}\0{contracts.tool_id()}\0{own}".encode()).hexdigest()[
        :16
    ]
    cached = HOME / "rows" / f"{version}-{key}.json"
    verdicts = {row.name: row.verdict for row in subject.step.rows}
    with contextlib.suppress(FileNotFoundError, StrictError):
        known: Row = read_json(Row, cached, MOST_BYTES, any_text=True)
        return replace(known, verdicts=verdicts)
    upstream = contracts.judge(facts_of_release(subject.base_version), facts_of_release(version))
    base = patched_facts(repo, subject.base_head, subject.base_tree, subject.base_version)
    facts = patched_facts(repo, subject.head, subject.tree, version)
    carried = contracts.judge(base, facts)
    row = Row(
        version,
        subject.tree,
        verdicts,
        counts(upstream),
        counts(carried),
        _by_key(upstream, BLOCK),
        _by_key(carried, BLOCK),
        _by_key(carried, REVIEW),
        _routing(facts),
        marks={
            f"{f.contract}:{f.key}": hashlib.sha256(f"{f.sentence}\0{f.hunk}".encode()).hexdigest()[:12]
            for f in carried
            if f.level == REVIEW
        },
    )
    atomic_write(cached, json.dumps(asdict(row), indent=1, sort_keys=True).encode())
    return row


def _by_key(findings: list[Finding], level: str) -> dict[str, str]:
    return dict(sorted((f"{f.contract}:{f.key}", f.sentence) for f in findings if f.level == level))


def _routing(facts: Facts) -> str:
    """What the native module would hold for gfx936, by the configure without a compiler."""
    have = facts.of(build_set.ID)
    if "evaluation" in have:
        return have["evaluation"].value
    prefix = f"source:{build_set.NATIVE}:"
    sources = sorted(key.removeprefix(prefix) for key in have if key.startswith(prefix))
    extra = [s for s in sources if s not in ROUTED]
    missing = [s for s in ROUTED if s not in sources]
    if not extra and not missing:
        return "only LLMM1"
    return "; ".join([*(f"also {s}" for s in extra), *(f"not {s}" for s in missing)]) or cmake_eval.ARCH
