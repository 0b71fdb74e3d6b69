"""Every system call of a verb on this project's files, made to fail: what a person reads, what is left, and whether the next run completes.

    python -m tests.faults.campaign [VERB ...]        every call, each with two kinds of error: hours, by hand (docs/hostile-input.md)

EVERY=n takes every n-th call, KINDS=n as many errors for each, FROM=n begins at call n. SIGTERM ends it with what was seen until then.

A test climbs a few of them each time (`tests/integration/test_faults.py`).
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.cli import VERBS
from scripts.common.errors import catalogue
from tests.conftest import TINY, base_environment, copy_repository, make_sdist, pin_to
from tests.integration.synthetic import lines, make_project

__all__ = ["CASES", "KINDS", "Found", "Lab", "build_library", "lab", "run_case"]

HERE = Path(__file__).parent
KINDS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EMFILE, errno.EDQUOT)
_DOCUMENTED = {0, *(code for code, _, _ in catalogue())}
_KEPT = ("patches", "overlay", "csrc", "dist", "cache", "upstream.toml", "build")
_UNFINISHED = (".given", ".part", ".partial", ".gfx936-tmp")  # never taken for whole
_SOURCES = {
    **TINY,
    "LICENSE": b"Apache-2.0\n",
    "PKG-INFO": b"Metadata-Version: 2.4\nName: vllm\nVersion: 0.18.1\nRequires-Dist: regex\n\nvLLM\n",
    "pyproject.toml": b'[project]\nname = "vllm"\n[project.scripts]\nvllm = "vllm:main"\n',
    "requirements/common.txt": b"regex\n",
    "requirements/rocm.txt": b"-r common.txt\n",
    "requirements/cpu.txt": b"-r common.txt\n",
}


@dataclass(frozen=True)
class Case:
    """A verb, and how the checkout is made ready for it."""

    argv: tuple[str, ...]
    prepare: Callable[[Path, Path], dict[str, str]]
    again: tuple[str, ...] = ()  # how a person goes on, where the same command has nothing left to do


@dataclass
class Lab:
    """A server of one case: its checkout, a copy of its state before, and the state after an undisturbed run."""

    root: Path
    before: Path
    plan: Path
    case: Case
    server: subprocess.Popen[str]
    old: dict[str, str] = field(default_factory=dict)
    new: dict[str, str] = field(default_factory=dict)

    def restore(self) -> None:
        """The checkout as it was before."""
        for name in _KEPT:
            subprocess.run(["rm", "-rf", str(self.root / name)], check=True)
            if (self.before / name).exists():
                subprocess.run(["cp", "-a", str(self.before / name), str(self.root / name)], check=True)

    def run(self, at: int = 0, kind: int = 0, argv: tuple[str, ...] = ()) -> tuple[int, int, str, str]:
        """(exit code, calls counted, which call failed, what was said) of one run in which call number `at` fails with `kind`."""
        with self.plan.open("r+b") as plan:  # in place: it is mapped
            plan.write(struct.pack("qqqq96s", 0, at, kind, 0, b""))
        said = self.plan.with_name("said")
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps({"argv": list(argv or self.case.argv), "out": str(said)}) + "\n")
        self.server.stdin.flush()
        code = int(self.server.stdout.readline())
        count, _, _, _, what = struct.unpack("qqqq96s", self.plan.read_bytes())
        return code, count, what.rstrip(b"\0").decode(), said.read_text(errors="replace")

    def state(self) -> dict[str, str]:
        """Digest of each file that a run is for; what git and the locks keep for themselves is left out."""
        found = {}
        for top in _KEPT:
            place = self.root / top
            for path in [place] if place.is_file() else sorted(place.rglob("*")):
                name = path.relative_to(self.root).as_posix()
                inner = any(part.startswith(".") or part in ("objects", "tmp", "work") for part in name.split("/"))
                if path.is_file() and not inner and "journal" not in name and path.suffix not in _UNFINISHED:
                    found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found


def build_library(folder: Path) -> Path:
    """`inject.c`, compiled."""
    made = folder / "inject.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(HERE / "inject.c"), "-ldl"], check=True, capture_output=True)
    return made


def _tiny(root: Path, folder: Path) -> dict[str, str]:
    copy_repository(root)
    ours = root / "overlay/vllm/dcu"
    reader = {p: p.read_bytes() for p in (*ours.glob("*.py"), *ours.glob("records/*.py"), *ours.glob("device/*.py"))}
    for top in ("patches", "overlay", "csrc"):
        shutil.rmtree(root / top)
        (root / top).mkdir()
    for path, data in reader.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "requirements/tools.txt").write_text("# none\n")
    (root / "patches/series").write_text("")
    (root / "overlay/vllm/dcu/new.py").write_text("NEW = 1\n")
    sdist = make_sdist(folder / "vllm-0.18.1.tar.gz", _SOURCES)
    pin_to(root, sdist)
    return {"UPSTREAM_SDIST": str(sdist), "GFX936_CACHE": str(root / "cache")}


def _verb(root: Path, env: dict[str, str], *argv: str) -> None:
    whole = {**base_environment(root.parent), **env}
    done = subprocess.run([sys.executable, "-m", "scripts", *argv], cwd=root, env=whole, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _fresh(root: Path, folder: Path) -> dict[str, str]:
    env = _tiny(root, folder)
    _verb(root, env, "refresh")
    shutil.rmtree(root / "build")
    shutil.rmtree(root / "cache")
    return env


def _changed(root: Path, folder: Path) -> dict[str, str]:
    """Applied, and then the sources here changed with their lock: `apply` moves the tree."""
    env = _tiny(root, folder)
    _verb(root, env, "refresh")
    kept = shutil.copytree(root / "build", folder / "kept", symlinks=True)
    (root / "overlay/vllm/dcu/new.py").write_text("NEW = 2\n")
    _verb(root, env, "refresh")
    shutil.rmtree(root / "build")
    shutil.copytree(kept, root / "build", symlinks=True)
    return env


def _edited(root: Path, folder: Path) -> dict[str, str]:
    """Applied, and then edited in the tree: `refresh` writes a patch and a new file."""
    env = _tiny(root, folder)
    _verb(root, env, "refresh")
    (root / "build/vllm/vllm/one.py").write_bytes(TINY["vllm/one.py"].replace(b"line 7\n", b"line seven\n"))
    (root / "build/vllm/vllm/dcu/other.py").write_text("OTHER = 1\n")
    return env


def _applied(root: Path, folder: Path) -> dict[str, str]:
    env = _tiny(root, folder)
    _verb(root, env, "refresh")
    return env


def _tracked(root: Path, folder: Path) -> dict[str, str]:
    env = _applied(root, folder)
    for argv in (["init", "-q"], ["add", "-A", "--", "scripts", "patches", "upstream.toml", "Makefile"]):
        subprocess.run(["git", *argv], cwd=root, check=True)
    return env


def _releases(root: Path, folder: Path) -> dict[str, str]:
    gate = {"vllm/gate.py": lines()}
    moved = {"vllm/gate.py": lines((1, "another first line\n"))}
    made = make_project(folder, {"1.0.0": gate, "1.1.0": moved}, "1.0.0", [("Hook the gate", {"vllm/gate.py": lines((20, "ours\n"))})], {})
    shutil.rmtree(root)
    made.root.rename(root)
    return {"GFX936_CACHE": str(root / "cache")}


CASES: dict[str, Case] = {
    "fetch": Case(("fetch",), _fresh),
    "apply": Case(("apply",), _fresh),
    "apply again": Case(("apply",), _changed),
    "refresh": Case(("refresh", "--patch", "change-one.patch"), _edited, ("refresh",)),
    "build": Case(("build", "--target", "empty"), _applied),
    "bundle": Case(("bundle", "--pythons", "3.11"), _tracked),
    "rebase": Case(("rebase", "1.1.0"), _releases),
}


@contextmanager
def lab(name: str, folder: Path, library: Path, plant: Callable[[Path], object] = lambda root: None) -> Iterator[Lab]:
    """A server for the case `name`, with the states before and after; `plant` may change the tools of its checkout."""
    case, root = CASES[name], folder / "checkout"
    root.mkdir(parents=True)
    env = case.prepare(root, folder)
    (root / "tmp").mkdir(exist_ok=True)
    plant(root)
    before = folder / "before"
    before.mkdir()
    for top in _KEPT:
        if (root / top).exists():
            subprocess.run(["cp", "-a", str(root / top), str(before / top)], check=True)
    plan = folder / "plan"
    plan.write_bytes(bytes(128))
    environment = {
        **base_environment(folder), **env, "LD_PRELOAD": str(library), "FAULT_PLAN": str(plan), "FAULT_ROOT": str(root),
        "TMPDIR": str(root / "tmp"), "PIP_NO_INDEX": "1",
    }  # fmt: skip
    argv = [
        sys.executable,
        str(HERE / "server.py"),
        str(plan),
        "scripts.cli",
        "run",
        *(f"scripts.{module}" for module, _ in VERBS.values()),
    ]
    with subprocess.Popen(argv, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        made = Lab(root, before, plan, case, server)
        try:
            made.old = made.state()
            code, _, _, said = made.run()
            assert code == 0, said
            made.new = made.state()
            yield made
        finally:
            server.stdin.close()


@dataclass
class Found:
    """What a campaign saw: calls there are, runs, the last call tried, exit codes, and a sentence for each fault."""

    calls: int = 0
    runs: int = 0
    last: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def _judge(there: Lab, code: int, said: str) -> str:
    if code not in _DOCUMENTED or "Traceback" in said:
        return f"exit {code}: {said.strip().splitlines()[-1] if said.strip() else 'nothing said'}"
    if code and "error: " not in said:
        return f"exit {code} without a sentence"
    now = there.state()
    if code == 0 and now != there.new:
        return "exit 0, and the state is not the new one"
    for name, digest in now.items():
        if digest not in (there.old.get(name), there.new.get(name)):
            return f"{name} is neither as before nor as after"
    if code == 0:
        return ""
    again, _, _, words = there.run()
    if again and there.case.again:
        again, _, _, words = there.run(argv=there.case.again)
    if again or there.state() != there.new:
        return f"the next run does not complete (exit {again}: {words.strip()[-200:]})"
    return ""


def run_case(
    there: Lab, every: int = 1, kinds: int = 2, most: int = 0, errors: Sequence[int] = KINDS, found: Found | None = None, first: int = 0
) -> Found:
    """Let each `every`-th call from `first` on fail, with `kinds` of the errors in turn; with `most`, as many calls at even distances."""
    there.restore()
    found = Found() if found is None else found
    found.calls = there.run()[1]
    turn = itertools.cycle(errors)
    every = max(every, found.calls // most) if most else every
    for at in range(first or 1 + every // 2, found.calls + 1, every):
        found.last = at
        for kind in itertools.islice(turn, kinds):
            there.restore()
            code, _, what, said = there.run(at, kind)
            found.runs += 1
            found.codes[code] += 1
            if why := _judge(there, code, said):
                found.faults.append(f"call {at} ({what}, {errno.errorcode[kind]}): {why}")
    return found


def main(names: list[str]) -> int:
    bad = 0
    every, kinds, first = (int(os.environ.get(name, default)) for name, default in (("EVERY", "1"), ("KINDS", "2"), ("FROM", "0")))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in names or list(CASES):
        found = Found()
        try:
            with tempfile.TemporaryDirectory(prefix="gfx936-faults-") as folder:
                library = build_library(Path(folder))
                with lab(name, Path(folder) / "lab", library) as there:
                    run_case(there, every, kinds, found=found, first=first)
        finally:
            codes = dict(sorted(found.codes.items()))
            print(
                f"{name}: {found.calls} calls, to {found.last}: {found.runs} faults, exit codes {codes}, {len(found.faults)} wrong",
                flush=True,
            )
            for line in found.faults:
                print("  " + line, flush=True)
        bad += len(found.faults)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
