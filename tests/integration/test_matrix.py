"""The matrix command on invented releases: it fails closed, names what is open, and a second run gives the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.common.errors import CheckFailed
from scripts.common.paths import ROOT
from tests.integration.synthetic import Project, lines, make_project

GATE, LIST = "vllm/gate.py", "vllm/list.py"
# The real overlay: the page's chart is drawn by a module of it, and what it touches is what the releases are held against.
OVERLAY = {
    p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8")
    for p in [*(ROOT / "overlay").rglob("*.py"), *(ROOT / "overlay").rglob("*.cmake")]
}
SERIES = [("Hook the gate", {GATE: lines((20, "line 20 with our hook\n"))})]
BASE = {GATE: lines(), LIST: lines(word="item"), "CMakeLists.txt": "# no build\n"}


def project(tmp_path: Path) -> Project:
    conflict = {**BASE, GATE: lines((20, "upstream's own 20\n"))}
    return make_project(tmp_path, {"1.0.0": BASE, "1.1.0": BASE, "1.2.0": conflict, "1.3.0": conflict}, "1.0.0", SERIES, OVERLAY)


def test_a_release_that_cannot_be_judged_is_open_and_a_conflict_ends_the_table(tmp_path: Path) -> None:
    p = project(tmp_path)
    out = tmp_path / "out"
    done = p.run("matrix", "--no-dispatch", "--out", str(out))
    assert done.returncode == CheckFailed.exit_code, done.stderr
    page = (out / "matrix.md").read_text()
    assert "conflicts on the way: hook-the-gate.patch at 1.2.0 (vllm/gate.py)" in page
    assert "upstream's ROCm platform does not run under the probe" in page
    assert "**open** in 1.0.0, 1.1.0" in page
    assert "| 1.3.0 |" not in page
    data = json.loads((out / "matrix.json").read_text())
    assert [row["version"] for row in data["rows"]] == ["1.0.0", "1.1.0"]
    assert "dispatch failed at: none" in done.stderr


def test_a_second_run_reads_what_the_first_one_kept(tmp_path: Path) -> None:
    p = project(tmp_path)
    p.run("matrix", "--no-dispatch", "--out", str(tmp_path / "a"))
    kept = {f: f.stat().st_mtime_ns for f in (p.root / "build" / "matrix").rglob("*.json")}
    assert kept
    p.run("matrix", "--no-dispatch", "--out", str(tmp_path / "b"))
    assert {f: f.stat().st_mtime_ns for f in (p.root / "build" / "matrix").rglob("*.json")} == kept
    for name in ("matrix.md", "matrix.json", "matrix.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_one_release_alone_writes_nothing_to_docs(tmp_path: Path) -> None:
    p = project(tmp_path)
    done = p.run("matrix", "1.1.0", "--no-dispatch")
    assert "| 1.1.0 |" in done.stdout
    assert not (p.root / "docs").exists()
