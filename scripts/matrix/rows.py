"""One release of the matrix: what carrying the series gives, what the scan says before and after it, what gfx936 would build."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from scripts.common.files import atomic_write
from scripts.common.git import Repo
from scripts.common.outside import MOST_BYTES, StrictError, read_json
from scripts.common.paths import BUILD
from scripts.drift import contracts
from scripts.drift.contracts import arch_truth, build_set, cmake_eval, native_ops, touches
from scripts.drift.contracts.model import BLOCK, OPEN, REVIEW, WANTED_FILES, WANTED_FOLDERS, Facts, Finding, Tree, tree_from_tar
from scripts.drift.contracts.page import counts
from scripts.drift.scan import facts_of_release
from scripts.rebase.threeway import MOVED, UPSTREAMED
from scripts.rebase.walk import Step

__all__ = ["HOME", "Matrix", "Row", "Subject", "make_row", "patched_tree", "take", "warm"]

HOME = BUILD / "matrix"
#: What gfx936 may have in the native module, by name: our bindings and the selected LLMM1.
ROUTED = ("csrc/rocm/dcu_bindings.cpp", "csrc/rocm/dcu_llmm1.cu")


@dataclass(frozen=True)
class Subject:
    """A release to be judged: the walk's step, the head of its chain, and what it is compared with.

    `before` is its neighbour (the release before it; for the oldest one the one after), `base` the pinned release; each as version,
    head and tree of its chain.
    """

    step: Step
    head: str
    tree: str
    before: tuple[str, str, str]
    base: tuple[str, str, str]
    git_dir: Path


@dataclass(frozen=True)
class Row:
    """A line of the matrix.

    Attributes:
        verdicts: patch -> verdict at this release.
        upstream: findings that the release brought, as it is, by level.
        carried: findings that it brought with the series, by level; BLOCK: what is open there, whoever brought it.
        blocks: key -> sentence of each BLOCK that upstream brought; `closed`: key -> by what of ours it does not hold with the series.
        open_blocks: key -> sentence of each BLOCK that is open with the series.
        reviews: key -> sentence of each REVIEW that it brought, with the series; `unanswered`: of what was not evaluated.
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
    closed: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)

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
    def unanswered(self) -> int:
        """Questions that could not be evaluated, over all releases."""
        return sum(len(r.unanswered) for r in self.rows)

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
    facts = contracts.collect(replace(patched_tree(repo, head, version), pristine=facts_of_release(version)))
    atomic_write(cached, facts.to_json().encode())
    return facts


def _kept(subject: Subject) -> Path:
    """Where the verdict on a release is kept: by everything that it depends on."""
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    inputs = [subject.tree, *subject.before, *subject.base, contracts.tool_id(), own]
    key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    return HOME / "rows" / f"{subject.step.version}-{key}.json"


def warm(subjects: Sequence[Subject]) -> None:
    """Take the pinned release's facts, with and without the series: every row is compared with them."""
    if all(_kept(s).is_file() for s in subjects):
        return
    version, head, tree = subjects[0].base
    facts_of_release(version)
    patched_facts(Repo(subjects[0].git_dir, subjects[0].git_dir.parent), head, tree, version)


def take(subject: Subject) -> None:
    """Take a release's facts, with and without the series, into the cache, so that its neighbour finds them there."""
    if _kept(subject).is_file():
        return
    facts_of_release(subject.step.version)
    patched_facts(Repo(subject.git_dir, subject.git_dir.parent), subject.head, subject.tree, subject.step.version)


def make_row(subject: Subject) -> Row:
    """Judge one release, or read the verdict of an earlier run with the same inputs."""
    repo = Repo(subject.git_dir, subject.git_dir.parent)
    version = subject.step.version
    cached = _kept(subject)
    verdicts = {row.name: row.verdict for row in subject.step.rows}
    with contextlib.suppress(FileNotFoundError, StrictError):
        known: Row = read_json(Row, cached, MOST_BYTES, any_text=True)
        return replace(known, verdicts=verdicts)

    def facts_of(which: tuple[str, str, str]) -> Facts:
        return patched_facts(repo, which[1], which[2], which[0])

    upstream = contracts.judge(facts_of_release(subject.before[0]), facts_of_release(version))
    facts = facts_of((version, subject.head, subject.tree))
    brought = contracts.judge(facts_of(subject.before), facts)
    # A BLOCK that an earlier release opened is open until something closes it: those are counted against the pinned release too.
    standing = contracts.judge(facts_of(subject.base), facts)
    opened = {**_by_key(standing, BLOCK), **_by_key(brought, BLOCK)}
    blocks = _by_key(upstream, BLOCK)
    said = {f"{f.contract}:{f.key}": f.closed for f in (*brought, *standing) if f.closed}
    row = Row(
        version,
        subject.tree,
        verdicts,
        counts(upstream),
        {**counts(brought), BLOCK: len(opened)},
        blocks,
        opened,
        _by_key(brought, REVIEW),
        _routing(facts),
        closed={k: said.get(k) or _closed_by(k) for k in blocks if k not in opened},
        unanswered=_by_key(brought, OPEN),
    )
    atomic_write(cached, json.dumps(asdict(row), indent=1, sort_keys=True).encode())
    return row


def _closed_by(key: str) -> str:
    """By what of ours a BLOCK of the release as it is no longer holds with the series, where its contract does not say so itself."""
    contract, _, name = key.partition(":")
    if contract == arch_truth.ID:
        method = name.removeprefix("RocmPlatform.").removesuffix("()")
        ours = any(t.how == "override" and t.chain[-1] == method for t in touches.touched())
        return f"DcuRocmPlatform.{method}" if ours and name.startswith("RocmPlatform.") else "the sealed arch string (vllm/dcu/detect.py)"
    if contract in (build_set.ID, native_ops.ID):
        return "cmake/dcu.cmake, which keeps every unit but LLMM1's from gfx936"
    return "the series: the carried tree does not show it"


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
