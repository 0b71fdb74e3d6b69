"""What a finished rebase gives: the carried series, lock, pin, range-diff, report, and the decisions that were made on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, new_folder
from scripts.common.git import Repo
from scripts.common.paths import shown
from scripts.rebase.report import closing, report
from scripts.rebase.state import HOME, RESOLUTIONS, Decided, RunState
from scripts.rebase.walk import Step, Walk
from scripts.series.commits import Chain, overlay_commit, overlay_files, scratch_index
from scripts.series.export import export_series, series_text
from scripts.series.patch import Patch
from scripts.series.worktree import lock_text
from scripts.upstream.releases import Pin, version_key
from scripts.upstream.update import render

__all__ = ["Result", "carried_chain", "finish", "lay_tree"]


def carried_chain(repo: Repo, step: Step) -> Chain:
    """The whole chain at a release: carried patches and today's overlay on top.

    Raises:
        errors.SeriesError: the release has a file where ours lands.
    """
    commits = step.commits
    head, tree = overlay_commit(repo, commits[-1] if commits else step.base, overlay_files())
    return Chain(step.base, commits, head, tree)


@dataclass(frozen=True)
class Result:
    """A finished run to a known release.

    Attributes:
        target, run: the release, and what the run was bound to.
        first, last: base commits of the pinned release and of the target.
        files: what is to stand in this repository (patches/..., upstream.toml), by path.
    """

    target: str
    run: str
    first: str
    last: str
    files: dict[str, bytes]


def finish(repo: Repo, pin: Pin, patches: Sequence[Patch], walk: Walk, state: RunState) -> Result | None:
    """Write build/rebase/TARGET/ and print the report; for a folder only the report. None where there is nothing to take over."""
    target, last = state.target, walk.steps[-1]
    chain = carried_chain(repo, last)
    print(report(walk), end="")
    print("\n" + closing(walk))
    if gone := walk.upstreamed():
        print(f"\nthe series is shorter: {len(patches)} patches before, {len(chain.patches)} now; upstream has {', '.join(gone)}")
    if state.directory:
        print(f"\ntree {chain.tree}; {state.directory} was only read")
    else:
        result = _written(repo, pin, walk, chain, state)
        print(f"\n{shown(HOME / target)}: patches/, series.lock, upstream.toml, range-diff.txt, report.md; tree {chain.tree}")
        if state.resolutions:
            print(f"the {len(state.resolutions)} decision(s) of yours are kept in {RESOLUTIONS} there; delete it to be asked anew")
    if state.checkout:
        lay_tree(repo, chain.head, Path(state.checkout))
    return None if state.directory else result


def _written(repo: Repo, pin: Pin, walk: Walk, chain: Chain, state: RunState) -> Result:
    first, last, target = walk.steps[0], walk.steps[-1], state.target
    exported = export_series(repo, chain.patches)
    sdists = sorted(pin.sdists.values(), key=lambda a: version_key(a.version))
    same = target == pin.version
    files = {f"patches/{name}": raw for name, raw in exported.items()}
    files["patches/series"] = series_text(list(exported))
    files["patches/series.lock"] = lock_text(target, chain).encode()
    files["upstream.toml"] = render(target, pin.revision if same else 1, sdists, pin.cpu_wheels if same else {})
    notes = {
        "report.md": report(walk).encode(),
        "range-diff.txt": _range_diff(repo, first, last).encode(),
        RESOLUTIONS: Decided(state.run, state.resolutions).to_json(),
    }
    with new_folder(HOME / target) as folder:
        for name, data in {**files, **notes}.items():
            atomic_write(folder / name, data)
    return Result(target, state.run, first.base, last.base, files)


def lay_tree(repo: Repo, commit: str, folder: Path) -> None:
    """The files of a commit in a folder that is new or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise errors.DirtyTree(f"{shown(folder)} is not empty", "laying a tree out would mix with what is there", "name a new folder")
    with new_folder(folder) as fresh, scratch_index(Repo(repo.git_dir, fresh)) as index:
        index.out("read-tree", commit)
        index.out("checkout-index", "-a", "-f")
    print(f"tree laid out in {shown(folder)}")


def _range_diff(repo: Repo, first: Step, last: Step) -> str:
    if not first.commits or not last.commits:
        return "no patches\n"
    done = repo.raw("range-diff", "--no-color", f"{first.base}..{first.commits[-1]}", f"{last.base}..{last.commits[-1]}")
    return done.stdout.decode(errors="replace")
