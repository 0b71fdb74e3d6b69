"""`python -m vllm.dcu profile` on traces made by hand: its files, its table, its comparison, its errors, and its child processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.dcu.evidence.ladder import Measure
from vllm.dcu.profile import child, runs, verb
from vllm.dcu.profile.report import Kind, ProfileError, load_profile
from vllm.dcu.profile.runs import Phase, Ran, Spec

from tests.unit.dcu.evidence.evidence_samples import BINDING
from tests.unit.dcu.profile.built_traces import Built, step_of

READ = Measure(1000.0, 990.0, 1010.0, 15, "GB/s", "higher")
PLANTED = (("planted::slow", 3.0, (), {"dims": [[1, 64]], "types": ["float"], "launch": [("k_slow", 5000.0)]}),)


def ran(spec: Spec, folder: Path, planted: tuple[Any, ...] = (), eager: bool = True, disturbed: float = 1.0) -> Ran:
    """What a child would leave: a trace of a device, planted into or not, and steps that last as long without the profiler."""
    phases = []
    for name, rows in [("decode", rows) for rows in spec.rows] + [("prefill", spec.prefill)]:
        built = Built().step(step_of(*planted, device=True), 8)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-{rows}.json").write_text(json.dumps({"traceEvents": built.events}))
        lasted = disturbed * (built.now - 1000.0) / 8
        phases.append(Phase(name, rows, tuple(lasted + i for i in range(-2, 3)), f"{name}-{rows}.json"))  # type: ignore[arg-type]
    return Ran(BINDING, eager, not eager, 0.0, READ, tuple(phases), ())


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Run the verb with children that leave hand-made traces; returns the exit code and all output."""

    def run(*argv: str, planted: tuple[Any, ...] = (), eager: bool = True, disturbed: float = 1.0) -> tuple[int, str]:
        asked: list[str] = []

        def child(spec: Spec, folder: Path, seconds: float) -> Ran:
            asked.append(spec.mode)
            return ran(spec, folder, planted, eager or spec.mode == "eager", disturbed)

        monkeypatch.setattr(verb, "run", child)
        monkeypatch.chdir(tmp_path)
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            try:
                code = verb.main(argv)
            except SystemExit as usage:
                code = int(str(usage.code))
        assert asked in ([], ["served"], ["served", "eager"])
        assert (asked == ["served", "eager"]) is (not eager and code == 0)
        return code, text.getvalue()

    return run


def test_the_table_adds_up_and_the_planted_operator_is_named_first(profile: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    code, out = profile("--model", "M", "--rows", "1,4", "--folder", "p", "--", "--enforce-eager", planted=PLANTED)
    assert code == 0, out
    found = load_profile(tmp_path / "p" / "profile.json")
    assert [account.name for account in found.accounts] == ["decode-1", "decode-4", "prefill-128"]
    first = found.accounts[0].suggestions[0]
    assert (first.kind, first.ms) == (Kind.OPERATOR, pytest.approx(5.0, rel=0.1))
    assert first.command == "python -m vllm.dcu profile --model M --rows 1,4 --baseline p/profile.json -- --enforce-eager"
    assert not found.accounts[2].suggestions, "a prefill is bound by other things than a read rate"
    for part in out.split("\n\n"):
        if "calls  what" in part:
            *rows, left, step = [float(row.split()[0]) for row in part.splitlines()[2:]]
            assert sum(rows) + left == pytest.approx(step, abs=0.1 * len(rows))
    assert "1. 5.000 ms  [operator-below-floor] planted::slow" in out
    assert "\033" not in out
    assert "Profile again on an idle machine" not in out


def test_a_step_that_is_shorter_under_the_profiler_is_said_to_be_disturbed(profile: Callable[..., tuple[int, str]]) -> None:
    assert "Profile again on an idle machine" in profile("--model", "M", disturbed=1.2)[1]


@pytest.mark.parametrize(("no_color", "bold"), [("", True), ("1", False)])
def test_a_terminal_gets_bold_heads_unless_no_color_is_set(
    profile: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, no_color: str, bold: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(verb, "_terminal", lambda: True)
    assert ("\033[1m" in profile("--model", "M")[1]) is bold


def test_graphs_take_a_second_run_for_the_names(profile: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    code, out = profile("--model", "M", "--folder", "p", eager=False)
    assert code == 0, out
    assert load_profile(tmp_path / "p" / "profile.json").captured


def test_the_flame_graph_opens_without_a_network_and_holds_the_whole_step(profile: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    profile("--model", "M<&>", "--folder", "p", planted=PLANTED)
    text = (tmp_path / "p" / "flame-decode-1.svg").read_text()
    assert re.findall(r"\w+://[^\"]*", text) == ["http://www.w3.org/2000/svg"], "the name of the format, and no address to load"
    assert not re.search(r"<script|href|@import|url\(", text)
    boxes = {group[0].text: float(group[1].get("width", "0")) for group in ET.fromstring(text) if group.tag.endswith("}g")}
    widest = {name.rpartition(":")[0]: width for name, width in boxes.items() if name}
    assert widest["all of the step"] == 1200.0
    assert widest["gpu_model_runner: forward"] > 1100
    (account,) = [a for a in load_profile(tmp_path / "p" / "profile.json").accounts if a.name == "decode-1"]
    stacks = [line.rpartition(" ") for line in (tmp_path / "p" / "flame-decode-1.txt").read_text().splitlines()]
    assert sum(float(ns) for _, _, ns in stacks) == pytest.approx(account.profiled.median * 1e3, rel=1e-3)
    assert "gpu_model_runner: forward;planted::slow;k_slow" in [stack for stack, _, _ in stacks]


def test_a_baseline_says_what_got_slower_appeared_and_vanished(profile: Callable[..., tuple[int, str]]) -> None:
    assert profile("--model", "M", "--folder", "old")[0] == 0
    assert profile("--model", "M", "--folder", "slow", "--json", "slow.json", planted=PLANTED)[0] == 0
    code, out = profile("--model", "M", "--folder", "again", "--baseline", "old/profile.json")
    assert (code, "nothing beyond the noise" in out) == (0, True), out
    code, out = profile("--model", "M", "--folder", "worse", "--baseline", "old/profile.json", planted=PLANTED)
    assert code == 5
    assert "decode-1: the step is slower" in out
    assert "decode-1: appeared: planted::slow [k_slow], 5000.0 us" in out
    code, out = profile("--model", "M", "--folder", "better", "--baseline", "slow.json", "--rows", "2")
    assert code == 0
    assert "prefill-128: vanished: planted::slow [k_slow], 5000.0 us" in out
    assert "decode-2 was not profiled before" in out
    assert "decode-1 was profiled before and is not now" in out


@pytest.mark.parametrize("touching", [False, True])
def test_a_line_is_slower_or_faster_where_the_ranges_do_not_touch(
    profile: Callable[..., tuple[int, str]], tmp_path: Path, touching: bool
) -> None:
    profile("--model", "M", "--folder", "old")
    data = json.loads((tmp_path / "old" / "profile.json").read_text())
    for account in data["accounts"]:
        (line,) = [line for line in account["lines"] if line["group"] == "attention"]
        account["unaccounted"] -= 50.0
        line.update(us=line["us"] + 50, low=line["low"] + (0 if touching else 50), high=line["high"] + 50)
    (tmp_path / "slow.json").write_text(json.dumps(data))
    _, out = profile("--model", "M", "--folder", "now", "--baseline", "slow.json")
    said = "attention_with_output [k_vllm::unified_attention_with_output] faster: 70.0 us (70.0 to 70.0) before, 20.0 (20.0 to 20.0) now"
    assert (said in out) is not touching, out
    assert ("nothing beyond the noise" in out) is touching


def damaged(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def write(text: str) -> str:
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return write


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:-9], "is not JSON"),
        (damaged(lambda d: d.update(format=2)), "one of 1"),
        (damaged(lambda d: d.update(more=1)), "is no field here"),
        (damaged(lambda d: d["accounts"][0].update(unaccounted=999.0)), "the lines and what is not accounted for are"),
        (damaged(lambda d: d["accounts"][0]["lines"][0].update(us=-1.0)), "between 0"),
        (damaged(lambda d: d["accounts"][0]["lines"][0].update(group="mine")), "one of 'Linears'"),
        (damaged(lambda d: d["accounts"][0]["suggestions"][0].update(figures={})), "a suggestion has figures"),
        (damaged(lambda d: d["accounts"][0]["suggestions"][0].update(kind="magic")), "one of 'capability-shut'"),
    ],
)
def test_a_profile_that_is_damaged_or_does_not_add_up_is_refused(
    profile: Callable[..., tuple[int, str]], tmp_path: Path, change: Callable[[str], str], words: str
) -> None:
    profile("--model", "M", "--folder", "p", planted=PLANTED)
    path = tmp_path / "p" / "profile.json"
    path.write_text(change(path.read_text()))
    code, out = profile("--model", "M", "--baseline", str(path))
    assert code == 1
    assert words in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ((), 2, "--model"),
        (("--model", "M", "--rows", "1,"), 2, "is not N or N,N"),
        (("--model", "M", "--rows", "0"), 2, "is not N or N,N"),
        (("--model", "M", "--steps", "0"), 2, "at least 1"),
        (("--model", "M", "--timeout", "0"), 2, "at least 1"),
        (("--model", "M", "--baseline", "none.json"), 1, "none.json is not there: give the profile.json of an earlier run"),
    ],
)
def test_wrong_usage_is_one_clear_sentence(profile: Callable[..., tuple[int, str]], argv: tuple[str, ...], code: int, words: str) -> None:
    got, out = profile(*argv)
    assert (got, words in out, "Traceback" in out) == (code, True, False), out


def test_a_folder_that_holds_a_profile_is_not_written_over(profile: Callable[..., tuple[int, str]]) -> None:
    profile("--model", "M", "--folder", "p")
    code, out = profile("--model", "M", "--folder", "p")
    assert (code, "p holds a profile already: name a fresh folder" in out) == (1, True)


@pytest.mark.parametrize(
    ("text", "seconds", "words"),
    [
        ("import sys; print('Error: no such model'); sys.exit(3)", 60, "the served run of the model ended with 3: Error: no such model"),
        ("import time; print('loading', flush=True); time.sleep(600)", 1.0, "was not done after 1 s (--timeout)"),
        ("", 60, "left no result"),
    ],
)
def test_a_child_is_bounded_and_nothing_of_it_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, seconds: float, words: str
) -> None:
    made: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(argv: list[str], **more: Any) -> subprocess.Popen[bytes]:
        made.append(real([sys.executable, "-c", text], **more))
        return made[0]

    monkeypatch.setattr(runs.subprocess, "Popen", popen)
    begun = time.monotonic()
    with pytest.raises(ProfileError, match=re.escape(words)):
        runs.run(Spec("M", (), "served", (1,), 4, 8, 8), tmp_path / "served", seconds)
    assert time.monotonic() - begun < 120
    with pytest.raises(ProcessLookupError):
        os.kill(made[0].pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("world", "longest", "sequences", "guesses", "words"),
    [
        (2, 512, 8, 0, "profile sees one process"),
        (1, 27, 8, 0, "28 tokens are more than --max-model-len 27"),
        (1, 28, 8, 1, "48 tokens are more than --max-model-len 28"),
        (1, 512, 3, 0, "--rows 4 needs as many sequences"),
        (1, 28, 4, 0, ""),
        (1, 48, 4, 1, ""),
    ],
)
def test_a_run_that_would_be_another_than_asked_for_is_refused(world: int, longest: int, sequences: int, guesses: int, words: str) -> None:
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=world),
        model_config=SimpleNamespace(max_model_len=longest),
        scheduler_config=SimpleNamespace(max_num_seqs=sequences),
        speculative_config=SimpleNamespace(num_speculative_tokens=guesses) if guesses else None,
    )
    with pytest.raises(ProfileError, match=words) if words else contextlib.nullcontext():
        child._fit(config, Spec("M", (), "served", (1, 4), 4, 8, 8))


@pytest.mark.parametrize("left", [4, 3, 0])
def test_steps_in_which_a_sequence_had_ended_are_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    class Engine:
        """As much of vLLM's as a decode phase asks."""

        vllm_config = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 512), speculative_config=None)

        def step(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(request_id=f"{name}-1f") for name in self.names]

        def abort_request(self, names: list[str]) -> None:
            assert names == self.names

        has_unfinished_requests = staticmethod(lambda: False)
        get_num_unfinished_requests = staticmethod(lambda: left)

    def ask(self: Any, length: int, tokens: int) -> str:
        Engine.names.append(f"profile{len(Engine.names)}")
        return Engine.names[-1]

    Engine.names = []  # type: ignore[attr-defined]
    monkeypatch.setattr(child._Run, "_ask", ask)
    monkeypatch.setattr(child._Run, "_phase", lambda self, name, rows, step: Phase(name, rows, (1.0,), "t"))
    run = child._Run(Engine(), Spec("M", (), "served", (4,), 4, 8, 8), tmp_path, shapes=True)  # type: ignore[arg-type]
    with contextlib.nullcontext() if left == 4 else pytest.raises(ProfileError, match=f"{4 - left} of 4 sequences ended before"):
        assert run.decode(4) == Phase("decode", 4, (1.0,), "t")
