"""Take a finished rebase over into this repository: two commits that come whole or not at all.

drift and matrix are asked first, as the verbs they are; a BLOCK that the series leaves open ends it. Then both commits are
made in the object store, a note names HEAD before and after, and files, HEAD and index follow. Killed in between, the same
command finishes it, and `make rebase-abort` takes it back; every other verb refuses until then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict

from scripts.common import errors
from scripts.common.files import atomic_write, hold, new_folder, remove_tree, say
from scripts.common.git import Repo, open_repo
from scripts.common.paths import ADOPTION, OVERLAY_ROOTS, ROOT, TREE, shown
from scripts.rebase import bring
from scripts.rebase.result import Result
from scripts.rebase.settle import Note, drop_index, root_repository, settle
from scripts.rebase.state import HOME, LOCK, repository
from scripts.rebase.walk import run_id
from scripts.series.patch import load
from scripts.series.worktree import edits, read_state
from scripts.upstream.releases import Pin, read_pin

__all__ = ["take_over"]

PAGES = HOME / "pages"
NEXT = HOME / "next"
GENERATED = "docs/generated.json"


def take_over(result: Result) -> None:
    """Ask, then adopt. The caller holds no lock: the verbs that are asked take it.

    Raises:
        errors.CheckFailed: drift or matrix refuse the release.
        errors.DirtyTree: uncommitted work would be mixed in, or left behind.
    """
    _clean_ground(root_repository())
    pages = _ask(result.target)
    with hold(LOCK, "adopt"):
        pin, patches = read_pin(), load()
        if run_id(pin, patches, result.target) != result.run:
            raise errors.DirtyTree(
                "the series or the pin changed while drift and matrix were asked", "the answer is for other bytes", "run it again"
            )
        repo = root_repository()
        _clean_ground(repo)
        changed, files = _files(pin, result, pages)
        old = repo.out("rev-parse", "HEAD")
        first = _commit(repo, old, {p: d for p, d in files.items() if not p.startswith(("patches/", "docs/"))}, f"Pin vLLM {result.target}")
        gone = {f"patches/{p.name}": None for p in patches if f"patches/{p.name}" not in files}
        rest = {p: d for p, d in files.items() if p.startswith(("patches/", "docs/"))}
        subject = f"Carry the series to vLLM {result.target} (mechanical: `make rebase`)"
        record = _record(repo, _commit(repo, first, {**rest, **gone}, subject), result.target)
        note = Note(result.target, old, _commit(repo, first, {**rest, **gone, **record}, subject))
        atomic_write(ADOPTION, (json.dumps(asdict(note)) + "\n").encode())
        settle(repo, note, note.new)
    print(f"adopted: vLLM {result.target}, in two commits here")
    for line in changed:
        print(f"  versions.toml: {line}")
    print(
        "what it does not bring along:\n"
        f"  python -m scripts pins    the CPU wheel of {result.target}, from the index\n"
        "  make apply                build/vllm\n"
        "  requirements/serve.in     what serves here: locked for the release before; its texts say how it is locked again\n"
        "  make generate             the pages that are made from the applied tree; until then every check names them\n"
        "  make check                what the project says to it\n"
        "records that were verified with another vLLM close by themselves: `python -m vllm.dcu verify` on the device"
    )


def _clean_ground(repo: Repo) -> None:
    paths = ["patches", "upstream.toml", *OVERLAY_ROOTS, bring.VERSIONS, *bring.TEXTS, "docs"]
    rows = repo.lines("--no-optional-locks", "status", "--porcelain", "-z", "--no-renames", "--", *paths)
    if rows:
        raise errors.DirtyTree(
            f"{len(rows)} file(s) hold uncommitted work, first {rows[0][3:]}",
            "the take-over would mix with it: the series, overlay/, csrc/, docs/ and the version's own files become commits",
            "commit or stash it, then run this again",
        )
    state = read_state() if (TREE / ".git").exists() else None
    if state and edits(open_repo(TREE), state):
        raise errors.DirtyTree(
            f"{shown(TREE)} holds edits",
            "they are made on the pinned release and could not be refreshed any more",
            "`make refresh` first, or `make apply DROP_EDITS=1`",
        )


def _ask(target: str) -> dict[str, bytes]:
    """What drift and matrix say. Returns the pages of docs/ with the target as the pin.

    Raises:
        errors.CheckFailed: one of them refuses.
    """
    remove_tree(PAGES)
    for words, fine in (
        (["drift", target, "--json"], (0, errors.CheckFailed.exit_code, errors.NotRun.exit_code)),
        (["matrix", target, "--json", "--as-pin", str(PAGES)], (0,)),
    ):
        say(f"ADOPT=1 asks `make {words[0]} VLLM={target}`")
        code = subprocess.run([sys.executable, "-m", "scripts", *words], cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode
        if code == errors.NotRun.exit_code and words[0] == "matrix" and _dispatched(target):
            say("the questions that were not evaluated are listed in docs/matrix.md: a person decides what they mean for gfx936")
        elif code not in fine:
            raise errors.CheckFailed(
                f"vLLM {target} is not adopted: `make {words[0]} VLLM={target}` ends with {code}",
                "it says above what is open; adopting would carry that into the pinned release",
                f"close it, then run this again; the carried series is in {shown(HOME / target)}",
            )
    return {f"docs/{p.name}": p.read_bytes() for p in sorted(PAGES.glob("*"))} if PAGES.is_dir() else {}


def _dispatched(target: str) -> bool:
    """Whether the matrix page that was just written says that the carried dispatch was run, and passed."""
    page = PAGES / "matrix.json"
    rows = json.loads(page.read_text(encoding="utf-8"))["rows"] if page.is_file() else []
    return any(row["version"] == target and row["dispatch"].startswith("passed") for row in rows)


def _files(pin: Pin, result: Result, pages: Mapping[str, bytes]) -> tuple[list[str], dict[str, bytes]]:
    """Every file of the two commits, and which limits of versions.toml are other ones now."""
    objects = repository()
    before, after = (bring.said_by(bring.text_of(objects, c)) for c in (result.first, result.last))
    texts = {p: (ROOT / p).read_text(encoding="utf-8") for p in (bring.VERSIONS, *bring.TEXTS) if (ROOT / p).is_file()}
    new = bring.brought(texts, pin.version, result.target, before, after)
    changed = [f"{name}: {after[name].words}" for name in after if after[name] != before.get(name)]
    return changed, {**result.files, **{p: t.encode() for p, t in new.items()}, **pages}


def _record(repo: Repo, commit: str, target: str) -> dict[str, bytes]:
    """The record of generated pages as it is to be: what only `make generate` can make is said to be not made for this release.

    The tools of that very commit write it, in a folder of its own: what they read is what will be here.
    """
    if not (ROOT / GENERATED).is_file():
        return {}
    with new_folder(NEXT) as fresh:
        index = HOME / "adoption-index"
        drop_index(index)
        scratch = Repo(repo.git_dir, fresh, index)
        scratch.out("read-tree", commit)
        scratch.out("checkout-index", "-a", "-f")
        drop_index(index)
        env = {**os.environ, "TOOLS_PYTHON": sys.executable}
        done = subprocess.run([sys.executable, "-m", "scripts", "generate", "--carried", target], cwd=fresh, env=env, check=False)
        data = (fresh / GENERATED).read_bytes()
    remove_tree(NEXT)
    if done.returncode:
        raise errors.CheckFailed(
            f"vLLM {target} is not adopted: its generated pages cannot be accounted for",
            "`make generate` could not say above what they are made from",
            "mend that, then run this again",
        )
    return {GENERATED: data}


def _commit(repo: Repo, parent: str, files: Mapping[str, bytes | None], subject: str) -> str:
    """A commit of `files` (None: gone) on `parent`, in the object store only, at today's date."""
    index = HOME / "adoption-index"
    drop_index(index)
    scratch = repo.with_index(index)
    scratch.out("read-tree", parent)
    rows = ""
    for path, data in files.items():
        blob = scratch.out("hash-object", "-w", "--stdin", "--no-filters", stdin=data) if data is not None else "0" * 40
        rows += f"{'100644' if data is not None else '0'} {blob}\t{path}\n"
    scratch.raw("update-index", "--add", "--index-info", stdin=rows.encode())
    now = f"{int(time.time())} +0000"
    dates = {"GIT_AUTHOR_DATE": now, "GIT_COMMITTER_DATE": now}
    argv = ["commit-tree", scratch.out("write-tree"), "-p", parent, "-F", "-"]
    commit = scratch.raw(*argv, stdin=f"{subject}\n".encode(), env=dates).stdout.decode().strip()
    drop_index(index)
    return commit
