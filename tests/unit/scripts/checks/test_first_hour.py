"""The first hour: what goes back is anonymous, what stopped is named, and what passed is not done again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.checks import first_hour
from scripts.checks.field_report import field_report, rungs_of, scrubbed
from scripts.common import errors
from scripts.machine import facts, memory
from scripts.machine.diagnosis import Finding
from scripts.wheel import build, device, finish
from scripts.wheel.pack import DEFAULT_EPOCH, Entry, write_wheel
from tests.machine import Box, box

PRIVATE = [
    "/home/alice/venv/bin/python", "alice", "node17.lab.example", "node17", "192.168.10.7", "fe80:0:0:0:1ff:fe23:4567:890a", "0000:c1:00.0",
    "GPU-6f3a9b2c11d2", "123e4567-e89b-12d3-a456-426614174000", "aa:bb:cc:dd:ee:ff", "alice@lab.example", "https://mirror.lab/simple/",
    "T1234567890123", "7f3a9b2c11d2ee01", "~/models/secret", "../x/secret", "6001458293",
]  # fmt: skip


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setattr("socket.gethostname", lambda: "node17.lab.example")


@pytest.mark.parametrize("word", PRIVATE)
def test_free_text_loses_whatever_says_whose_it_is(at_home: None, word: str) -> None:
    found = scrubbed(f"import torch fails in {word}: cannot open '{word}' (mode 660)\nand {word}.")
    assert word not in found
    assert found.startswith("import torch fails in <")
    assert "(mode 660)" in found


@pytest.mark.parametrize(
    "text", ["gfx936 by KFD, 1 node(s)", "torch 2.10.0+das.dtk2604, HIP 6.3.26093", "16 GB for 32 job(s), 2.0 GB each", "34816 x 5120"]
)
def test_what_says_nothing_about_anybody_stays(text: str) -> None:
    assert scrubbed(text) == text


def strings(data: Any) -> list[str]:
    if isinstance(data, dict):
        return [s for key, value in data.items() for s in (str(key), *strings(value))]
    return [s for value in data for s in strings(value)] if isinstance(data, list) else [str(data)]


def test_a_report_of_a_machine_full_of_names_has_none_of_them(tmp_path: Path, at_home: None) -> None:
    said = " ".join(PRIVATE)
    climb = {"steps": [{"id": "V2", "result": {"outcome": "failed", "why": said, "figures": {"error": 0.5, "card": said}}}]}
    (tmp_path / "report.json").write_text(json.dumps(climb))
    machine = facts.look(box(tmp_path / "alice").environ)
    step = first_hour.Step("build", "failed", said, 1.0)
    report = field_report(machine, [Finding("torch", False, said, said, said)], [step], {}, rungs_of(tmp_path / "report.json"))
    assert report["rungs"][0]["figures"]["error"] == 0.5
    for word in PRIVATE:
        assert not [s for s in strings(report) if word in s]
    assert report["machine"]["devices"] == [{"arch": "gfx936", "gfx_target_version": 90306}]


@pytest.mark.parametrize(
    "text", ['{"steps": [], "steps": []}', '{"steps": NaN}', "[]", '{"steps": [{"id": "V0"}]}', '{"steps": [[]]}', "{", None]
)
def test_a_damaged_report_of_a_climb_is_a_sentence(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "report.json"
    assert rungs_of(path) == []
    os.mkfifo(path) if text is None else path.write_text(text)
    with pytest.raises(errors.CheckFailed, match="cannot be used"):
        rungs_of(path)


@pytest.fixture
def hour_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """A fit machine, where building is replaced by a wheel that lies ready; `verify` is a program of the fake Python."""
    b = box(tmp_path / "m")
    for name, value in b.environ.items():
        monkeypatch.setenv(name, value)
    for name in ("TARGET", "STAND_IN", "ROCM_PATH", "DTK_ENV", "HIPCXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(memory, "available_gb", lambda: 64.0)
    dist = tmp_path / "dist"
    dist.mkdir()
    for module, name, value in (
        (first_hour, "FOLDER", tmp_path / "hour"), (first_hour, "DIST", dist), (first_hour, "_apply", lambda: ""),
        (first_hour, "_about", lambda wheel: {"wheel": wheel.name, "archs": ["gfx936"], "sha256": "0", "stand_in": ""} if wheel else {}),
        (device, "BUILD", tmp_path / "build"), (finish, "audit", lambda wheel, plan: ""), (finish, "imports", lambda wheel, plan: ""),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    made: list[str] = []

    def packed(target: str) -> Path:
        made.append(target)
        text = 'import json, pathlib, sys\nfolder = pathlib.Path(sys.argv[sys.argv.index("--folder") + 1])\n'
        text += 'folder.mkdir(exist_ok=True)\nprint("climbing with", sys.argv[1:])\n'
        text += 'steps = [{"id": "V0", "result": {"outcome": "passed", "why": "", "figures": {}}}]\n'
        text += '(folder / "report.json").write_text(json.dumps({"steps": steps}))\nimport torch\n'
        files = {"vllm/__init__.py": b"", "vllm/dcu/__init__.py": b"", "vllm/dcu/__main__.py": text.encode()}
        write_wheel(dist / "vllm-1-py3-none-any.whl", "vllm-1.dist-info", [Entry(*row) for row in files.items()], DEFAULT_EPOCH)
        return dist / "vllm-1-py3-none-any.whl"

    monkeypatch.setattr(build, "build", packed)
    monkeypatch.setattr(Box, "made", made, raising=False)
    return b


def steps_of(tmp_path: Path) -> dict[str, str]:
    return {step["name"]: step["outcome"] for step in json.loads((tmp_path / "hour" / "report.json").read_text())["steps"]}


ALL = ("doctor", "apply", "build", "audit", "import", "verify")


def test_the_whole_hour_ends_in_a_page_with_what_is_next_and_the_second_run_builds_nothing(
    hour_box: Box, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert first_hour.main([]) == 0
    assert steps_of(tmp_path) == dict.fromkeys(ALL, "passed")
    page = (tmp_path / "hour" / "page.md").read_text()
    assert "| V0 | passed |" in page
    assert "pip install --no-deps" in page
    assert "--resume" not in capfd.readouterr().out
    assert first_hour.main([]) == 0
    assert hour_box.made == ["rocm"], "built once"  # type: ignore[attr-defined]
    assert "--resume" in capfd.readouterr().out
    assert not list(hour_box.site.glob("vllm*")), "nothing is installed into the Python in use"


def _no_compiler(b: Box) -> None:
    (b.prefix / "lib/llvm/bin/clang++").unlink()


@pytest.mark.parametrize(
    ("plant", "code", "failed", "says"),
    [
        (_no_compiler, errors.CannotBuild, "doctor", "no clang++ in"),
        (lambda b: (b.root / "dev" / "mkfd").unlink(), errors.NotRun, "verify", "no /dev/mkfd"),
    ],
)
def test_what_stopped_it_is_on_the_page_with_its_line(
    hour_box: Box, tmp_path: Path, plant: Callable[[Box], None], code: type[errors.Fatal], failed: str, says: str
) -> None:
    plant(hour_box)
    facts._look.cache_clear()
    with pytest.raises(code):
        first_hour.main([])
    steps = steps_of(tmp_path)
    assert list(steps)[: ALL.index(failed) + 1] == list(ALL[: ALL.index(failed) + 1])
    assert steps[failed] == ("failed" if code is errors.CannotBuild else "not run")
    page = (tmp_path / "hour" / "page.md").read_text()
    assert says in page
    assert "then `make first-hour` again" in page


def test_a_wheel_that_was_changed_since_is_not_believed(hour_box: Box, tmp_path: Path) -> None:
    first_hour.main([])
    (tmp_path / "dist" / "vllm-1-py3-none-any.whl").write_bytes(b"other")
    first_hour.main([])
    assert hour_box.made == ["rocm", "rocm"]  # type: ignore[attr-defined]


def test_a_machine_with_nothing_special_is_told_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_hour.facts, "look", lambda: facts.Machine({}, None, None, facts.Facts("p"), None))
    monkeypatch.delenv("TARGET", raising=False)
    with pytest.raises(errors.CannotBuild, match="no DCU, no DTK") as caught:
        first_hour.main([])
    assert "make apply && make build" in caught.value.do
