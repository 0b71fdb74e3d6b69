"""Run one verb of a project again and again, each time killed at another moment; run by the tests, in the project's folder.

Standard input: {"verb": [...], "points": N, "then": [[...], ...]}. The verb is killed N times, spread evenly over the whole run: just before
a write, rename, deletion or program start; every fifth time with its children, some milliseconds later. After each kill one of `then`
is run; then the project is put back as it was. Output: one JSON line for the run that was left alone, and one a kill.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))
import scripts.rebase.abort
import scripts.rebase.proceed
import scripts.rebase.start  # noqa: F401 - imported before the forks, so that each of them is cheap
from scripts.cli import run
from scripts.common.paths import ADOPTION

STEPS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "subprocess.Popen", "os.chmod", "os.truncate"}
OUTPUT = Path("build/killed-output.txt")


def is_step(event: str, args: tuple[object, ...]) -> bool:
    if event == "open":
        flags = args[2]
        return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) and "/dev/" not in str(args[0])
    return event in STEPS


def start(verb: list[str], at: int = 0, later: float = 0.0) -> tuple[int, int]:
    """Fork a run that kills itself before step `at`, or its whole group `later` seconds after it.

    Returns its pid and the pipe on which it tells how many steps there were.
    """
    mine, its = os.pipe()
    pid = os.fork()
    if pid:
        os.close(its)
        return pid, mine
    os.setpgid(0, 0)
    OUTPUT.parent.mkdir(exist_ok=True)
    out = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if is_step(event, args):
            count += 1
            if count == at and not later:
                os.kill(os.getpid(), signal.SIGKILL)
            elif count == at and os.fork() == 0:
                time.sleep(later)
                os.killpg(0, signal.SIGKILL)

    sys.addaudithook(hook)
    code = 1
    try:
        code = run(verb)
    finally:
        sys.stdout.flush()
        os.write(its, str(count).encode())
        os._exit(code)


def wait(pid: int, pipe: int) -> tuple[int, int]:
    """(exit code, or minus the signal; steps)."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    steps = os.read(pipe, 20)
    os.close(pipe)
    return status, int(steps or 0)


def git(*argv: str) -> str:
    return subprocess.run(["git", *argv], capture_output=True, text=True, check=True).stdout.strip()


def files() -> dict[str, str]:
    return {p: git("hash-object", p) for p in git("ls-files").splitlines() if Path(p).is_file()}


def state() -> dict[str, object]:
    return {
        "head": git("rev-parse", "HEAD"),
        "subjects": git("log", "--format=%s").splitlines(),
        "status": git("status", "--porcelain"),
        "tree": git("rev-parse", "HEAD^{tree}"),
        "left": sorted(str(p) for p in Path().rglob("*.gfx936-tmp")) + [p.name for p in Path(".git").glob("*.lock")],
        "note": ADOPTION.exists(),
    }


def main() -> None:
    task = json.load(sys.stdin)
    saved, home = Path("build-saved"), Path("build")
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(home, saved, symlinks=True) if home.is_dir() else saved.mkdir()
    before = git("rev-parse", "HEAD")

    def reset() -> None:
        git("reset", "-q", "--hard", before)
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(saved, home, symlinks=True)

    code, steps = wait(*start(task["verb"]))
    print(json.dumps({"whole": code, "steps": steps, "output": OUTPUT.read_text(), **state()}), flush=True)
    reset()
    moments = random.Random(936)
    for number in range(task["points"]):
        at = 1 + number * (steps - 1) // (task["points"] - 1)
        killed, _ = wait(*start(task["verb"], at, moments.uniform(0.0005, 0.004) if number % 5 == 2 else 0.0))
        midway = state()
        other = wait(*start(["apply"]))[0] if midway["note"] else None
        said = OUTPUT.read_text() if midway["note"] else ""
        then = task["then"][number % len(task["then"])]
        again = wait(*start(then))[0]
        row = {"at": at, "killed": killed, "midway": midway, "other": other, "said": said, "then": then, "again": again}
        print(json.dumps({**row, "output": OUTPUT.read_text(), **state()}), flush=True)
        reset()


if __name__ == "__main__":
    main()
