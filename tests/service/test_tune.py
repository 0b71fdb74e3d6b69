"""`tune` on a whole simulated gfx936, as a person gives it: a fresh store becomes a server that hits N=1 and N=2 on two shapes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from vllm.dcu.dispatch.countfiles import merge, read_folder

from scripts.common.paths import ROOT
from scripts.serving.ready import ready_python
from scripts.serving.server import model_folder, server_environment, serving

UP, DOWN = "1024x256", "256x512"
FAST = {"GEMV 3": 50.0, "GEMV 9": 60.0}
TIMES = {f"{shape}n{n}": FAST for shape in (UP, DOWN) for n in (1, 2)}
SERVE = ("--max-model-len", "256", "--dtype", "bfloat16", "--max-num-seqs", "2", "--seed", "0", "--enforce-eager")


class Machine:
    """The simulated machine: a folder with its evidence, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, ready_python()
        self.model = model_folder("tiny", self.python)
        (folder / "sim").mkdir()

    def extra(self, **more: str) -> dict[str, str]:
        return {
            "PYTHONPATH": str(ROOT / "scripts" / "rehearsal" / "plugin"),
            "GFX936_SIM_ARCH": "gfx936:sramecc+:xnack-",
            "GFX936_SIM_LOG": str(self.folder / "sim"),
            "GFX936_SIM_TIMES": json.dumps(TIMES),
            "VLLM_DCU_EVIDENCE": str(self.folder / "evidence.json"),
            **more,
        }

    def argv(self, *words: str) -> list[str]:
        stand_in = str(ROOT / "scripts" / "rehearsal" / "gfx936_stand_in.py")
        evidence = ["--stand-in", stand_in, "--evidence", "evidence.json"]
        return [str(self.python), "-m", "vllm.dcu", "tune", *evidence, *words]

    def env(self, **more: str) -> dict[str, str]:
        return server_environment(self.python, self.folder / "cache", self.extra(**more))

    def tune(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        given = ("--model", str(self.model), "--rows", "1,2", "--tokens", "4", "--rounds", "1", "--prompts", "1", *words, "--", *SERVE)
        return subprocess.run(
            self.argv(*(given if "--model" not in words else words)), cwd=self.folder, env=self.env(**more), capture_output=True, text=True, check=False
        )  # fmt: skip

    def states(self) -> Mapping[str, str]:
        """Capability -> its verdict, for those with a record of V2."""
        entries = json.loads((self.folder / "evidence.json").read_text())["entries"]
        return {e["subject"]: e["rungs"].get("V5", e["rungs"]["V2"])["outcome"] for e in entries}


def idents(variant: int) -> set[str]:
    return {f"site-gemv-gfx936-bfloat16-n{n}-m{m}-k{k}-v{variant}" for n in (1, 2) for m, k in ((1024, 256), (256, 512))}


def hits(machine: Machine, prompts: list[str]) -> dict[str, int]:
    """What a server of this machine, with nothing but the store, counts for one request."""
    stats = machine.folder / f"stats-{len(prompts)}"
    extra = machine.extra(VLLM_DCU_STATS_DIR=str(stats))
    with serving(machine.python, machine.model, machine.folder / "server.log", arguments=SERVE, environment=extra) as server:
        server.complete(prompts, 4)
        server.stop()
    return {ident: count for group in merge(read_folder(stats)[0]) for ident, count in group["hits"].items() if count}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """One machine; the tests below go on where the one before them left it."""
    return Machine(tmp_path_factory.mktemp("simulated"))


def test_a_killed_run_loses_nothing_that_was_finished(machine: Machine) -> None:
    words = (
        "--model",
        str(machine.model),
        "--rows",
        "1,2",
        "--tokens",
        "4",
        "--rounds",
        "1",
        "--prompts",
        "1",
        "--folder",
        "t",
        "--",
        *SERVE,
    )
    env = machine.env(GFX936_SIM_FAULT="wrong-variant:3")
    with (machine.folder / "killed.log").open("w") as log:
        process = subprocess.Popen(machine.argv(*words), cwd=machine.folder, env=env, stderr=log, stdout=log, start_new_session=True)
    deadline = time.monotonic() + 300
    while "V2S" not in (machine.folder / "killed.log").read_text():
        assert process.poll() is None, (machine.folder / "killed.log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(json.loads((machine.folder / "tuned.json").read_text())["entries"]) == 8


def test_it_goes_on_and_a_wrong_variant_is_refused_by_name_while_the_rest_opens(machine: Machine) -> None:
    done = machine.tune("--folder", "t", "--resume", GFX936_SIM_FAULT="wrong-variant:3")
    assert done.returncode == 3, done.stdout + done.stderr[-3000:]
    assert "8 of 8 items were measured on this very binding before" in done.stderr
    for ident in idents(3):
        assert f"{ident} is taken out: " in done.stdout
    assert done.stdout.count("V2 failed: ") >= 3, "of the killed run the store may hold one already"
    assert machine.states() == {**dict.fromkeys(idents(3), "failed"), **dict.fromkeys(idents(9), "passed")}
    data: dict[str, Any] = json.loads((machine.folder / "t" / "tune.json").read_text())
    won = {(row["m"], row["k"], row["n"]): row["winner"] for row in data["rows"]}
    assert won[512, 256, 1] == "F.linear"
    assert data["end_to_end"].startswith("not run: the device is simulated")


def test_a_server_with_that_store_hits_both_n_of_both_shapes(machine: Machine) -> None:
    found = hits(machine, ["ab", "cd"]) | hits(machine, ["ab"])
    assert set(found) == idents(9)


def test_a_second_run_measures_and_climbs_nothing(machine: Machine) -> None:
    done = machine.tune("--folder", "second")
    assert "8 of 8 items were measured" in done.stderr
    assert "measuring" not in done.stderr
    assert "[1/9]" not in done.stderr, "no rung was climbed"
    assert done.stdout.count("verified before") == 4


def test_export_goes_where_the_binding_is_equal_and_an_expired_one_is_measured_again(machine: Machine) -> None:
    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            machine.argv(*words), cwd=machine.folder, env=machine.env(**more), capture_output=True, text=True, check=False
        )

    done = run("--export", "sent.json")
    assert "4 capabilities" in done.stdout, done.stderr
    there = ("--evidence", "there.json", "--import", "sent.json")
    other = run(*there, GFX936_SIM_HIP="6.3.1")
    assert other.stdout.count("not imported: it was seen with another hip") == 4, other.stderr
    same = run(*there)
    assert same.stdout.count("on another machine of this very binding, and imported") == 4, same.stderr
    again = machine.tune("--folder", "third", "--budget", "0.01", GFX936_SIM_HIP="6.3.1")
    assert "[1/8] measuring" in again.stderr
    assert again.returncode == 3, "the variant that failed stays shut on a later toolchain too"
    assert "Left for the next run" in again.stdout
