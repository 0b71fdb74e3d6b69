"""Step a series from the pinned release through every known release to another one: a pure function of its inputs.

Inputs are the pin, the patches, the target and the resolutions a person made. The same inputs give the same commits, so a
killed run loses nothing: the next one walks the same way again, through the object store of the last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from scripts.common import errors
from scripts.common.git import Repo
from scripts.rebase.threeway import CONFLICTS, UPSTREAMED, Carried, Conflict, carry
from scripts.series.commits import apply_series, import_base
from scripts.series.patch import Patch
from scripts.upstream.releases import Artifact, Pin, version_key

__all__ = ["DROPPED", "RESOLVED", "Row", "Step", "Stop", "Walk", "one_release", "path_to", "run_id", "walk"]

RESOLVED = "resolved by hand"
DROPPED = "dropped by hand"


@dataclass(frozen=True)
class Row:
    """One patch at one release: verdict, commit (None: it is not in the series any more), what a reader should know."""

    name: str
    verdict: str
    commit: str | None
    note: str = ""


@dataclass(frozen=True)
class Step:
    """The series at one release."""

    version: str
    base: str
    rows: tuple[Row, ...]

    @property
    def commits(self) -> tuple[str, ...]:
        """Commits of the patches that are still in the series."""
        return tuple(row.commit for row in self.rows if row.commit)


@dataclass(frozen=True)
class Stop:
    """Where a person is needed.

    Attributes:
        version, patch: release and patch file name.
        parent: commit the patch must stand on.
        tree: the merge result, conflict markers in it.
        conflicts: the files.
        rows: verdicts of the patches before it at this release.
    """

    version: str
    patch: str
    parent: str
    tree: str
    conflicts: tuple[Conflict, ...]
    rows: tuple[Row, ...]

    @property
    def key(self) -> str:
        """Name of this place in the table of resolutions."""
        return f"{self.version}/{self.patch}"


@dataclass(frozen=True)
class Walk:
    """All steps done, the first being the pinned release, and where it stopped (None: it reached the target)."""

    steps: tuple[Step, ...]
    stop: Stop | None

    def upstreamed(self) -> dict[str, str]:
        """Patch -> release that has it."""
        return {row.name: step.version for step in self.steps for row in step.rows if row.verdict == UPSTREAMED}


def path_to(pin: Pin, target: str) -> list[str]:
    """Every known release from the pin to the target, both included, in walking order; a downgrade walks down.

    Raises:
        errors.UnknownVersion: the target is not in upstream.toml.
    """
    pin.release(target)
    known = sorted(pin.sdists, key=version_key)
    start, end = known.index(pin.version), known.index(target)
    return known[start : end + 1] if end >= start else known[end : start + 1][::-1]


def run_id(pin: Pin, patches: Sequence[Patch], target: str, onto: str = "") -> str:
    """What a stopped run is bound to: pinned release, target, every byte of the series in order, the commit of a given folder."""
    digest = hashlib.sha256(f"{pin.version}\0{pin.sdist.sha256}\0{target}\0{onto}".encode())
    for patch in patches:
        digest.update(f"{patch.name}\0{len(patch.raw)}\0".encode() + patch.raw)
    return digest.hexdigest()


def walk(
    repo: Repo,
    pin: Pin,
    patches: Sequence[Patch],
    target: str,
    resolutions: Mapping[str, str],
    sdist: Callable[[Artifact], Path],
    tell: Callable[[Step], None] = lambda _step: None,
    onto: tuple[str, str] | None = None,
) -> Walk:
    """Carry the series release by release; stop at the first conflict that `resolutions` has no answer for.

    A resolution is a tree id, or "drop" for a patch that a person takes out at that release. `onto` is a last step after the
    target: the name and the base commit of a tree that somebody gave.

    Raises:
        errors.Fatal: a patch does not fit the pinned release itself, or an sdist is missing.
    """
    messages = {p.name: p.message for p in patches}
    base = import_base(repo, pin.sdist, sdist(pin.sdist))
    commits = apply_series(repo, base, patches)
    rows = tuple(Row(p.name, "pinned", c) for p, c in zip(patches, commits, strict=True))
    steps = [Step(pin.version, base, rows)]
    ways: list[tuple[str, Callable[[], str]]] = []
    for _, version in pairwise(path_to(pin, target)):
        artifact = pin.release(version)
        ways.append((version, partial(_imported, repo, artifact, sdist)))
    if onto:
        name, commit = onto
        ways.append((name, lambda: commit))
    for version, base_of in ways:
        done = one_release(repo, steps[-1], version, base_of(), messages, resolutions)
        if isinstance(done, Stop):
            return Walk(tuple(steps), done)
        steps.append(done)
        tell(done)
    return Walk(tuple(steps), None)


def _imported(repo: Repo, artifact: Artifact, sdist: Callable[[Artifact], Path]) -> str:
    return import_base(repo, artifact, sdist(artifact))


def one_release(
    repo: Repo, before: Step, version: str, base: str, messages: Mapping[str, str], resolutions: Mapping[str, str]
) -> Step | Stop:
    """The series of `before` on another base, or the first patch that needs a person."""
    parent, old_parent = base, before.base
    rows: list[Row] = []
    for row in before.rows:
        if row.commit is None:
            continue
        key = f"{version}/{row.name}"
        carried = _answer(repo, row.commit, old_parent, parent, resolutions.get(key))
        if carried.verdict == CONFLICTS:
            return Stop(version, row.name, parent, carried.tree, carried.conflicts, tuple(rows))
        if carried.verdict in (UPSTREAMED, DROPPED):
            rows.append(Row(row.name, carried.verdict, None, carried.note))
        else:
            parent = repo.commit_tree(carried.tree, parent, messages[row.name])
            rows.append(Row(row.name, carried.verdict, parent, carried.note))
        old_parent = row.commit
    return Step(version, base, tuple(rows))


def _answer(repo: Repo, old: str, old_parent: str, parent: str, resolution: str | None) -> Carried:
    if resolution == "drop":
        return Carried(DROPPED, "")
    if resolution is not None:
        if not repo.has(resolution):
            raise errors.MissingInput(
                f"the resolution {resolution[:12]} is not in build/rebase any more",
                "its objects were deleted while the rebase was under way",
                "start again: `make rebase-abort`, then `make rebase VLLM=x.y.z`",
            )
        return Carried(RESOLVED, resolution)
    return carry(repo, old, old_parent, parent)
