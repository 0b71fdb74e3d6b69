"""What a finished rebase gives: the carried series, lock, pin, range-diff and report; and taking them over when asked."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, new_folder
from scripts.common.git import Repo, clean_environment
from scripts.common.paths import PATCHES, ROOT, SERIES, SERIES_LOCK, UPSTREAM_TOML, shown
from scripts.rebase.report import closing, report, stop_report
from scripts.rebase.state import HOME
from scripts.rebase.threeway import UPSTREAMED
from scripts.rebase.walk import Row, Step, Stop, Walk, one_release
from scripts.series.commits import Chain, apply_series, import_base, overlay_commit, overlay_files, scratch_index
from scripts.series.export import export_series, series_text, write_all
from scripts.series.patch import Patch
from scripts.series.worktree import lock_text
from scripts.upstream.fetch import fetch
from scripts.upstream.releases import Pin, version_key
from scripts.upstream.update import render

__all__ = ["carried_chain", "finish", "onto_directory"]


def carried_chain(repo: Repo, step: Step) -> Chain:
    """The whole chain at a release: carried patches and today's overlay on top.

    Raises:
        errors.SeriesError: the release has a file where ours lands.
    """
    commits = step.commits
    head, tree = overlay_commit(repo, commits[-1] if commits else step.base, overlay_files())
    return Chain(step.base, commits, head, tree)


def finish(repo: Repo, pin: Pin, patches: Sequence[Patch], walk: Walk, target: str, checkout: Path | None, adopt: bool) -> None:
    """Write build/rebase/TARGET/, print the report, and take over when asked."""
    first, last = walk.steps[0], walk.steps[-1]
    chain = carried_chain(repo, last)
    exported = export_series(repo, chain.patches)
    wheels = pin.cpu_wheels if target == pin.version else {}
    toml = render(
        target, 1 if target != pin.version else pin.revision, sorted(pin.sdists.values(), key=lambda a: version_key(a.version)), wheels
    )
    files = {f"patches/{name}": raw for name, raw in exported.items()}
    files["patches/series"] = series_text(list(exported))
    files["patches/series.lock"] = lock_text(target, chain).encode()
    files["upstream.toml"] = toml
    files["report.md"] = report(walk).encode()
    files["range-diff.txt"] = _range_diff(repo, first, last).encode()
    out = HOME / target
    with new_folder(out) as folder:
        for name, data in files.items():
            atomic_write(folder / name, data)
    print(report(walk), end="")
    print("\n" + closing(walk))
    gone = walk.upstreamed()
    if gone:
        print(f"\nthe series is shorter: {len(patches)} patches before, {len(exported)} now")
    print(f"\n{shown(out)}: patches/, series.lock, upstream.toml, range-diff.txt, report.md; tree {chain.tree}")
    if checkout:
        lay_tree(repo, chain.head, checkout)
    if adopt:
        _adopt(target, exported, files)
    else:
        print(f"nothing else was changed; to take it over: make rebase VLLM={target} ADOPT=1")


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


def _git(*argv: str) -> str:
    env = {k: v for k, v in clean_environment().items() if k not in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE")}
    done = subprocess.run(["git", *argv], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise errors.MissingInput(
            f"`git {argv[0]}` refuses here ({(done.stderr.strip().splitlines() or ['no message'])[-1]})",
            "the take-over is two commits of this repository",
            "run it in a clone of the repository; the files are in build/rebase/ all the same",
        )
    return done.stdout


def _adopt(target: str, exported: dict[str, bytes], files: dict[str, bytes]) -> None:
    """Two commits: the version, then the mechanical refresh. Refused where either would swallow other work."""
    paths = [shown(PATCHES), shown(UPSTREAM_TOML)]
    if _git("status", "--porcelain", "--", *paths) or _git("diff", "--cached", "--name-only"):
        raise errors.DirtyTree(
            "patches/, upstream.toml or the index hold uncommitted work",
            "the take-over would mix with it",
            "commit or stash it, then run this again",
        )
    atomic_write(UPSTREAM_TOML, files["upstream.toml"])
    _git("commit", "-q", "-m", f"Pin vLLM {target}", "--", paths[1])
    old: dict[Path, bytes | None] = dict.fromkeys(PATCHES.glob("*.patch"))
    new: dict[Path, bytes | None] = {PATCHES / name: raw for name, raw in exported.items()}
    write_all(old | new | {SERIES: files["patches/series"], SERIES_LOCK: files["patches/series.lock"]})
    _git("add", "-A", "--", paths[0])
    _git("commit", "-q", "-m", f"Carry the series to vLLM {target} (mechanical: `make rebase`)", "--", paths[0])
    print(f"adopted: two commits here; then `python -m scripts pins` for the CPU wheel of {target}, and `make check`")


def onto_directory(repo: Repo, pin: Pin, patches: Sequence[Patch], folder: Path, checkout: Path | None) -> int:
    """Carry the series onto a source tree somebody gives; the folder is only read.

    Raises:
        errors.RebaseConflict: it does not fit; the page says which patch and where.
    """
    if not (folder / "vllm").is_dir():
        raise errors.MissingInput(
            f"{shown(folder)} is no vLLM source tree", "it has no vllm folder", "give the folder that holds CMakeLists.txt and vllm/"
        )
    pinned = import_base(repo, pin.sdist, fetch(pin.sdist))
    commits = apply_series(repo, pinned, patches)
    start = Step(pin.version, pinned, tuple(Row(p.name, "pinned", c) for p, c in zip(patches, commits, strict=True)))
    with scratch_index(Repo(repo.git_dir, folder.resolve())) as index:
        index.out("add", "-A", "-f", ".")
        base = repo.commit_tree(index.out("write-tree"), None, f"the tree of {folder.name}\n")
    done = one_release(repo, start, folder.name, base, {p.name: p.message for p in patches}, {})
    if isinstance(done, Stop):
        print(stop_report(done, 0))
        raise errors.RebaseConflict(
            f"the series does not fit {shown(folder)}: {done.patch}",
            "that tree differs from upstream where the patch stands; nothing in it was changed",
            "resolve it in a copy, or carry the patch by hand",
        )
    chain = carried_chain(repo, done)
    print(report(Walk((start, done), None)), end="")
    for row in done.rows:
        if row.verdict == UPSTREAMED:
            print(f"{row.name}: that tree has it already")
    print(f"\ntree {chain.tree}; {shown(folder)} was only read")
    if checkout:
        lay_tree(repo, chain.head, checkout)
    return 0
