"""generate: write every generated page, table, lock and matrix that is stale (--check: only name them, and fail).

What takes a second is made again and compared. Of the rest `docs/generated.json` says what it was made from and what it came to: the
sha256 of its inputs and of each file. A page is stale where its inputs changed, and edited where only the page did; both are refused.
`make rebase ... ADOPT=1` records what it cannot make (`--carried VERSION`): such a page is named at every check until it is made.
What was measured on a device cannot be made again here: `--measured PAGE` records one that was just brought back from there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.common import errors
from scripts.common.files import atomic_write, hold, say
from scripts.common.outside import MOST_BYTES, StrictError, read_json
from scripts.common.paths import BUILD, ROOT

__all__ = ["PAGES", "Page", "faults", "main"]

RECORD = "docs/generated.json"
NOT_MADE = "not made for"
"""Key of an entry of the record: the release that the page is not about yet."""
PATCHES = ("upstream.toml", "patches/series", "patches/*.patch")
REGION = "overlay/cmake/dcu.cmake:set.VLLM_DCU_REGION_SHA256"
"""A file, a colon and a regular expression: only the lines that match count."""


@dataclass(frozen=True)
class Page:
    """Files that one command makes.

    Attributes:
        files: what it writes, relative to the repository.
        command: what makes them (a verb of the tools, or `vllm.dcu ...`); empty where a device is needed.
        check: what compares them in a second; without it they are compared with `docs/generated.json`.
        inputs: globs of what the files say something about, for that record.
        device: for pages that only a device makes: the command to run there.
        counts: that its command ends with 15 where the files are written and something on them was not evaluated.
    """

    files: tuple[str, ...]
    command: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    device: str = ""
    counts: bool = False


PAGES = (
    Page(("patches/series.lock",), ("refresh",), check=("apply",)),
    Page(
        ("docs/capabilities.md", "docs/reasons.md", "docs/environment.md"),
        ("vllm.dcu", "docs", "docs", "--write"),
        check=("vllm.dcu", "docs", "docs"),
    ),
    Page(
        ("docs/platform-table.md",),
        ("platform-table",),
        inputs=(*PATCHES, *(f"overlay/vllm/dcu/{name}.py" for name in ("arch", "detect", "platform", "device/*"))),
    ),
    Page(("docs/native-census.md",), ("census",), inputs=(*PATCHES, "csrc/**/*", "overlay/cmake/*")),
    Page(
        ("docs/matrix.md", "docs/matrix.json", "docs/matrix.svg"),
        ("matrix",),
        inputs=(*PATCHES, "csrc/**/*", "overlay/cmake/*"),
        counts=True,
    ),
    Page(
        ("docs/evidence/gpu-rehearsal.md", "docs/evidence/gpu-rehearsal.json"),
        inputs=(REGION,),
        device="run `python benchmarks/gpu_rehearsal.py` on a CUDA GPU",
    ),
    Page(
        ("docs/evidence/v2-h200.md", "docs/evidence/v2-h200.json"),
        inputs=("overlay/vllm/dcu/verify/rungs/cases.py", "overlay/vllm/dcu/verify/rungs/numbers.py"),
        device="run `python3 benchmarks/gpu_v2.py` on a CUDA GPU",
    ),
    Page(
        ("docs/evidence/gemv-h200.md", "docs/evidence/gemv-h200.json"),
        inputs=("csrc/dcu/gemv*",),
        device="run `python benchmarks/gemv_report.py` on a CUDA GPU",
    ),
    Page(
        ("docs/evidence/tune-h200.md", "docs/evidence/tune-h200.json", "docs/evidence/tune-h200.svg"),
        inputs=("csrc/dcu/gemv*",),
        device="run `python benchmarks/tune_rehearsal.py` on a CUDA GPU",
    ),
    Page(
        ("docs/evidence/field-report.md",),
        inputs=("overlay/vllm/dcu/arch.py",),
        device="it is a copy of public texts: compare it with them",
    ),
    Page(
        ("docs/evidence/verify-h200.md",),
        inputs=(REGION,),
        device="run `python -m vllm.dcu verify --stand-in benchmarks/cuda_stand_in.py` on a CUDA GPU",
    ),
    Page(
        ("docs/evidence/bench-h200.txt", "docs/evidence/bench-h200.svg"),
        inputs=(REGION,),
        device="run `python -m vllm.dcu bench --stand-in benchmarks/cuda_stand_in.py` on a CUDA GPU",
    ),
)


def _parts(root: Path, inputs: Sequence[str]) -> Iterator[bytes]:
    for pattern in inputs:
        glob, _, word = pattern.partition(":")
        found = sorted(p for p in root.glob(glob) if p.is_file() and "__pycache__" not in p.parts)
        if not found:
            raise errors.MissingInput(
                f"nothing matches {glob}", "a generated page is about it", "restore it, or correct PAGES in scripts/checks/generate.py"
            )
        for path in found:
            text = path.read_bytes()
            if word:
                text = b"\n".join(line for line in text.splitlines() if re.search(word.encode(), line))
            yield path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(text).digest()


def _inputs(root: Path, page: Page) -> str:
    return hashlib.sha256(b"".join(_parts(root, page.inputs))).hexdigest()


def _content(root: Path, name: str) -> str:
    path = root / name
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


def _entry(root: Path, page: Page) -> dict[str, str]:
    """What the record says of a page: the digest of its inputs under "inputs", and of each file under its name."""
    return {"inputs": _inputs(root, page), **{name: _content(root, name) for name in page.files}}


def _record(root: Path) -> dict[str, dict[str, str]]:
    path = root / RECORD
    try:
        found: dict[str, dict[str, str]] = read_json(Mapping[str, Mapping[str, str]], path, MOST_BYTES)
    except FileNotFoundError:
        return {}
    except StrictError as error:
        raise errors.UserError(f"{RECORD} cannot be used", str(error), f"git checkout {RECORD}") from None
    return found


def remedy(page: Page) -> str:
    """The command that brings a page up to date."""
    if page.command:
        return "make generate"
    return f"{page.device}, bring the files back, then `make generate MEASURED={page.files[0]}`"


def faults(root: Path = ROOT, pages: Sequence[Page] = PAGES) -> list[tuple[Page, str]]:
    """Pages that are not what their inputs make, one sentence each, with the command that mends it."""
    record, found = _record(root), []
    for page in pages:
        if page.check:
            if error := _run(page.check)[1]:
                found.append((page, f"{page.files[0]} is not what the sources make ({error}): {remedy(page)}"))
            continue
        said, now = record.get(page.files[0], {}), _entry(root, page)
        if said.get("inputs") != now["inputs"]:
            found.append((page, f"{page.files[0]} is stale, what it is made from has changed: {remedy(page)}"))
        for name in page.files:
            if said.get(name) != now[name]:
                found.append((page, f"{name} is not as its command wrote it: {remedy(page)}"))
    return found


def _run(words: Sequence[str]) -> tuple[int, str]:
    """Run what makes or compares a page: its exit code, and its last words where that is not 0."""
    module = ["vllm.dcu", *words[1:]] if words[0] == "vllm.dcu" else ["scripts", *words]
    say("+ python -m " + " ".join(module))
    path = os.pathsep.join([str(ROOT / "overlay"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", *module],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    last = next((line for line in done.stderr.splitlines() if line.startswith("error")), f"exit {done.returncode}")
    return done.returncode, last if done.returncode else ""


def _save(page: Page, **more: str) -> None:
    record = {**_record(ROOT), page.files[0]: {**_entry(ROOT, page), **more}}
    known = {p.files[0] for p in PAGES if p.inputs}
    text = json.dumps({name: record[name] for name in sorted(record) if name in known}, indent=1) + "\n"
    atomic_write(ROOT / RECORD, text.encode())


def _measured(name: str) -> None:
    page = next((p for p in PAGES if name in p.files), None)
    if page is None or page.command:
        raise errors.UserError(
            f"{name} is no page that a device makes",
            "only such a page is taken as it is",
            "give one of: " + ", ".join(p.files[0] for p in PAGES if not p.command),
        )
    _save(page)
    say(f"recorded: {', '.join(page.files)}")


def not_made() -> list[tuple[Page, str]]:
    """Pages that are still about the release before the pinned one, one sentence each."""
    record = _record(ROOT)
    said = [(p, record.get(p.files[0], {}).get(NOT_MADE)) for p in PAGES if p.inputs]
    return [(p, f"{p.files[0]} was not made for vLLM {version} yet: {remedy(p)}") for p, version in said if version]


def _carried(version: str) -> None:
    for page in dict.fromkeys(page for page, _ in faults(ROOT, [p for p in PAGES if p.inputs and p.command])):
        _save(page, **{NOT_MADE: version})


def main(argv: Sequence[str]) -> int:
    """Command line of `generate`."""
    parser = argparse.ArgumentParser(prog="generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is stale or was edited")
    parser.add_argument("--measured", metavar="PAGE", help="record a page that was just measured on a device")
    parser.add_argument("--carried", metavar="VERSION", help="record stale pages as not made for this release, which was just adopted")
    args = parser.parse_args(argv)
    if args.carried:
        _carried(args.carried)
        return 0
    if args.measured:
        _measured(args.measured)
        return 0
    if args.check:
        if found := faults(ROOT, PAGES):
            for _, sentence in found:
                print(sentence)
            raise errors.CheckFailed(
                f"{len(found)} generated file(s) are not what the sources make",
                "a page that nobody made says what nobody checked",
                "run `make generate`; a page from a device is made there",
            )
        for _, sentence in not_made():
            print(f"not made: {sentence}")
        say(f"{sum(len(page.files) for page in PAGES)} generated files are what their sources make")
        return 0
    with hold(BUILD / ".generate.lock", "generate"):
        late = dict(not_made())
        left = []
        for page in dict.fromkeys([*(page for page, _ in faults(ROOT, PAGES)), *late]):
            if not page.command:
                continue
            code, said = _run(page.command)
            if code and page in late and not page.counts:  # what was just adopted may bring what this machine has not: it stays named
                left.append(f"{late[page]} ({said.removeprefix('error: ')})")
                continue
            if code and not (page.counts and code == errors.NotRun.exit_code):
                raise errors.CheckFailed(
                    said, f"{page.files[0]} is made by it", "mend that, then run `make generate` again: what was written is kept"
                )
            if page.inputs:
                _save(page)
            print("\n".join(f"written: {name}" for name in page.files) + (f"\n{said.removeprefix('error: ')}" if said else ""))
    left += [sentence for page, sentence in faults(ROOT, PAGES) if not page.command]
    if left:
        raise errors.NotRun("\n".join(left), "what they need is not on this machine", "run the command where it is; every check names them")
    return 0
