"""mutants: plant small changes in our Python, a sampled few of all, and see which no test notices.

The tools and the wheel's package are copied to build/mutants. First each suite runs there once and says which test runs which line.
Then each sampled change is written into the copy and the tests that run its line are run, quickest first, until one fails. A test that
fails as well when only a comment was added looks at bytes and does not count. Every result is kept: a run that was stopped goes on, and
what survived is tried again when the tests have changed. Nothing here is part of `make test`: it takes hours.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.checks.planted import Plant, plants
from scripts.common import errors
from scripts.common.files import atomic_write
from scripts.common.git import Repo
from scripts.common.outside import parse_toml
from scripts.common.paths import BUILD, ROOT

__all__ = ["GOALS", "PARTS", "Result", "main"]

PARTS = {"dcu": "overlay/vllm/dcu", "tools": "scripts"}
GOALS = {"dcu": 0.95, "tools": 0.90}
HOME = BUILD / "mutants"
EQUIVALENT = ROOT / "tests" / "equivalent.toml"
_SECONDS = 60.0  # of tests for one change: the quickest first
_SUITES = {"dcu": ("unit", "runtime"), "tools": ("unit", "integration")}


@dataclass(frozen=True)
class Result:
    """What became of one change: killed (by which test), survived, or unreached: no test runs its line in its own process."""

    part: str
    file: str
    name: str
    line: int
    verdict: str
    test: str
    tests: int
    against: str  # of the file and of all tests: what the result holds for


@dataclass(frozen=True)
class Reach:
    """suite -> file (as in the checkout) -> line -> tests; and how long each test took."""

    lines: dict[str, dict[str, dict[int, list[str]]]]
    seconds: dict[str, float]


def _lab() -> Path:
    """A copy of the checkout's files as they are now, with the environments of the original."""
    lab = HOME / "lab"
    kept = lab / "build"
    if lab.exists():
        for path in lab.iterdir():
            if path != kept:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    listed = Repo(ROOT / ".git", ROOT).lines("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in listed:
        target = lab / name
        if (ROOT / name).is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    for name in ("vllm", "env"):
        if (BUILD / name).is_dir() and not (kept / name).exists():
            kept.mkdir(exist_ok=True)
            subprocess.run(["cp", "-al", str(BUILD / name), str(kept / name)], check=True)
    copy = Repo(lab / ".git", lab)  # tests list the checkout's files with it
    copy.raw("init", "-q")
    copy.raw("add", "-A", "--", *sorted({name.split("/")[0] for name in listed}))
    return lab


def _python(lab: Path, suite: str) -> Path:
    return lab / "build/env/serve/bin/python" if suite == "runtime" else Path(sys.executable)


def _installed(lab: Path) -> Path:
    found = sorted((lab / "build/env/serve/lib").glob("python*/site-packages/vllm/dcu"))
    if not found:
        raise errors.MissingInput(
            "no patched wheel is installed in build/env/serve", "the tests of the wheel's package run there", "run `make env` first"
        )
    return found[0]


def _environment(lab: Path) -> dict[str, str]:
    # Without what a pytest around this one set: a controller would take itself for that one's worker.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, "PYTHONPATH": str(lab), "PYTHONDONTWRITEBYTECODE": "1"}


def _reach(lab: Path, part: str, suites: Sequence[str]) -> Reach:
    """Which test runs which line: each suite once under the tracing plugin, or what that said before of the same bytes."""
    found = Reach({}, {})
    for suite in suites:
        kept = HOME / f"reach-{part}-{suite}.json"
        if not kept.is_file() or json.loads(kept.read_text())["state"] != _state():
            _watch(lab, part, suite, kept)
        data = json.loads(kept.read_text())
        found.seconds.update(data["seconds"])
        found.lines[suite] = {file: {int(line): tests for line, tests in of.items()} for file, of in data["lines"].items()}
    return found


def _watch(lab: Path, part: str, suite: str, kept: Path) -> None:
    _tell(f"mutants: which test of {suite} runs which line of {PARTS[part]}")
    root = _installed(lab) if suite == "runtime" else lab / PARTS[part]
    out = HOME / "said" / suite
    shutil.rmtree(out.parent, ignore_errors=True)
    out.parent.mkdir(parents=True)
    more = ["-n", str(os.cpu_count() or 1), "--dist", "loadfile"] if suite != "runtime" else []
    argv = [str(_python(lab, suite)), "-m", "pytest", f"tests/{suite}", "-q", "-p", "tests.reach", "-p", "no:cacheprovider", *more]
    env = {**_environment(lab), "REACH_OUT": str(out), "REACH_ROOTS": str(root)}
    done = subprocess.run(argv, cwd=lab, env=env, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode not in (0, 1):  # a failed test is no test of a change; none at all is no measurement
        raise errors.CheckFailed(
            f"the suite {suite} could not be watched", (done.stdout + done.stderr).strip()[-600:], "correct that, and run it again"
        )
    lines: dict[str, dict[int, list[str]]] = {}
    seconds: dict[str, float] = {}
    for said in sorted(out.parent.iterdir()):
        data = json.loads(said.read_text())
        seconds.update(data["seconds"])
        for test, files in data["lines"].items():
            for file, numbers in files.items():
                of = lines.setdefault(f"{PARTS[part]}/{Path(file).relative_to(root.resolve()).as_posix()}", {})
                for number in numbers:
                    of.setdefault(number, []).append(test)
    atomic_write(kept, json.dumps({"state": _state(), "lines": lines, "seconds": seconds}).encode())


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _state() -> str:
    """Digest of the tests and of our code: what a result rests on."""
    digest = hashlib.sha256()
    for top in ("tests", *PARTS.values()):
        for path in sorted((ROOT / top).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _tests(reach: Reach, suite: str, file: str, plant: Plant) -> list[str]:
    of = reach.lines.get(suite, {}).get(file, {})
    wanted = range(plant.first, plant.last + 1)
    lines = [line for line in of if plant.at_import or line in wanted]
    tests = {test for line in lines for test in of[line]}
    chosen: list[str] = []
    spent = 0.0
    for test in sorted(tests, key=lambda t: reach.seconds.get(t, 1.0)):
        spent += reach.seconds.get(test, 1.0)
        if chosen and spent > _SECONDS:
            break
        chosen.append(test)
    return chosen


def _run(lab: Path, suite: str, tests: Sequence[str], limit: float) -> str:
    """ "" where all pass, else the test that failed first (or what went wrong instead)."""
    argv = [str(_python(lab, suite)), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        done = subprocess.run(
            argv, cwd=lab, env=_environment(lab), capture_output=True, text=True, errors="replace", timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return "it did not end"
    if done.returncode == 0:
        return ""
    failed = [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"pytest ended with {done.returncode}"


@dataclass
class _Bench:
    """The copy in which changes are tried; `blind` are tests that also fail over a comment: they look at bytes."""

    lab: Path
    part: str
    reach: Reach
    suites: tuple[str, ...]
    blind: dict[str, set[str]]
    controlled: set[tuple[str, str]]

    def _write(self, file: str, data: bytes) -> None:
        places = [self.lab / file]
        if self.part == "dcu":
            places.append(_installed(self.lab) / Path(file).relative_to(PARTS["dcu"]))
        for place in places:  # beside, then renamed: the environment is hard-linked with the original
            if place.exists():
                atomic_write(place, data)

    def judge(self, file: str, plant: Plant) -> tuple[str, str, int]:
        """(verdict, test that killed it, tests that ran)."""
        source = (ROOT / file).read_bytes()
        asked = 0
        try:
            for suite in self.suites:
                while tests := [t for t in _tests(self.reach, suite, file, plant) if t not in self.blind.get(file, ())]:
                    self._write(file, plant.applied(source))
                    limit = 30 + 5 * sum(self.reach.seconds.get(t, 1.0) for t in tests)
                    failed = _run(self.lab, suite, tests, limit)
                    asked += len(tests)
                    if not failed:
                        break
                    if failed not in tests or (file, failed) in self.controlled:
                        return "killed", failed, asked
                    self._write(file, source.rstrip(b"\n") + b"\n# a comment\n")
                    self.controlled.add((file, failed))
                    if not _run(self.lab, suite, [failed], limit):
                        return "killed", failed, asked
                    self.blind.setdefault(file, set()).add(failed)
        finally:
            self._write(file, source)
        return ("survived" if asked else "unreached"), "", asked


def _sample(part: str, count: int, seed: int) -> list[tuple[str, Plant]]:
    every = [
        (path.relative_to(ROOT).as_posix(), plant)
        for path in sorted((ROOT / PARTS[part]).rglob("*.py"))
        for plant in plants(path.read_text(encoding="utf-8"))
    ]
    random.Random(seed).shuffle(every)  # noqa: S311  # a sample, no secret
    return every[:count] if count else every


def _known() -> dict[tuple[str, str], Result]:
    kept = HOME / "results.jsonl"
    found = {}
    for line in kept.read_text().splitlines() if kept.is_file() else ():
        result = Result(**json.loads(line))
        found[result.file, result.name] = result
    return found


def _equivalent() -> dict[str, str]:
    listed = parse_toml(EQUIVALENT.read_bytes())
    return {f"{file}: {name}": why for file, of in listed.items() for name, why in of.items()}


def _results(part: str, suites: tuple[str, ...], count: int, seed: int, minutes: float) -> Iterator[Result]:
    HOME.mkdir(parents=True, exist_ok=True)
    lab = _lab()
    state, known = f"{_state()} {' '.join(suites)}", _known()
    bench = _Bench(lab, part, _reach(lab, part, suites), suites, {}, set())
    end = time.monotonic() + 60 * minutes
    chosen = _sample(part, count, seed)
    for number, (file, plant) in enumerate(chosen, 1):
        against = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]
        old = known.get((file, plant.name))
        if old and (old.against == f"{against} {state}" or (old.verdict == "killed" and old.against.startswith(f"{against} "))):
            yield old
            continue
        if minutes and time.monotonic() > end:
            return
        verdict, test, asked = bench.judge(file, plant)
        result = Result(part, file, plant.name, plant.first, verdict, test, asked, f"{against} {state}")
        with (HOME / "results.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(result)) + "\n")
        _tell(f"[{number}/{len(chosen)}] {verdict:9} {file}:{plant.first}: {plant.name}")
        yield result


def main(argv: Sequence[str]) -> int:
    """Command line of `mutants`.

    Raises:
        errors.CheckFailed: a part is below its goal.
    """
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="dcu or tools; both without it")
    parser.add_argument("--suite", action="append", help="only these of the part's suites")
    parser.add_argument("--sample", type=int, default=200, help="changes of each part, 0 for all (200)")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--minutes", type=float, default=0, help="of new work for each part; the next run goes on")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows, low = [], []
    equal = _equivalent()
    for part in args.part or PARTS:
        suites = tuple(suite for suite in _SUITES[part] if suite in (args.suite or _SUITES[part]))
        results = list(_results(part, suites, args.sample, args.seed, args.minutes))
        counted = [r for r in results if f"{r.file}: {r.name}" not in equal]
        killed = sum(r.verdict == "killed" for r in counted)
        share = killed / len(counted) if counted else 0.0
        left = [f"{r.file}:{r.line}: {r.name}: {r.verdict}" for r in counted if r.verdict != "killed"]
        rows.append(
            {
                "part": part,
                "planted": len(results),
                "equivalent": len(results) - len(counted),
                "killed": killed,
                "share": share,
                "left": left,
            }
        )
        if share < GOALS[part]:
            low.append(f"{part}: {share:.1%} of the wanted {GOALS[part]:.0%}")
    if args.json:
        print(json.dumps({"seed": args.seed, "sample": args.sample, "parts": rows}, indent=1))
    else:
        for row in rows:
            print("\n".join(row["left"]))  # type: ignore[arg-type]
        print(f"\n{'part':6} {'planted':>8} {'equal':>6} {'killed':>7} {'share':>6}   seed {args.seed}")
        for row in rows:
            print(f"{row['part']:6} {row['planted']:8} {row['equivalent']:6} {row['killed']:7} {row['share']:6.1%}")
    if low:
        raise errors.CheckFailed(
            "; ".join(low), "the tests do not see the changes listed above", "write a test for each, or say why it changes nothing"
        )
    return 0
