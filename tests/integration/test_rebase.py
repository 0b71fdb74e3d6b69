"""The rebase, on invented releases: each verdict, each way to go on, each interruption; and nothing of the pinned version moves."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.common.errors import RebaseConflict, UserError
from tests.integration.synthetic import Project, lines, make_project

GATE = "vllm/gate.py"
LIST = "vllm/list.py"
OVERLAY = {"overlay/vllm/dcu/__init__.py": "# ours\n"}
OUR_GATE = (20, "line 20 with our hook\n")
OUR_LIST = (5, "item 5 for gfx936\n")
SERIES = [
    ("Hook the gate", {GATE: lines(OUR_GATE)}),
    ("Name the device", {LIST: lines(OUR_LIST, word="item")}),
]


def project(tmp_path: Path, **releases: dict[str, str]) -> Project:
    """Pinned at 1.0.0; `v1_1_0={...}` gives the files of 1.1.0 that differ from it."""
    base = {GATE: lines(), LIST: lines(word="item")}
    table = {"1.0.0": base, **{name[1:].replace("_", "."): {**base, **files} for name, files in releases.items()}}
    table = {v: {p: t for p, t in files.items() if t != "deleted"} for v, files in sorted(table.items())}
    return make_project(tmp_path, table, "1.0.0", SERIES, OVERLAY)


def verdicts(done: Project, version: str, output: str) -> list[str]:
    """Cells of the table's row of a release."""
    row = next(line for line in output.splitlines() if line.startswith(f"| {version} |"))
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_a_series_applies_where_upstream_changed_elsewhere(tmp_path: Path) -> None:
    p = project(tmp_path, v1_1_0={GATE: lines((1, "another first line\n"))})
    before = p.snapshot()
    done = p.run("rebase", "1.1.0")
    assert done.returncode == 0, done.stderr
    assert verdicts(p, "1.1.0", done.stdout) == ["applies", "applies"]
    assert p.snapshot() == before
    assert list(p.result("1.1.0")) == ["hook-the-gate.patch", "name-the-device.patch"]
    assert 'version = "1.1.0"' in (p.root / "build/rebase/1.1.0/upstream.toml").read_text()


def test_moved_context_is_told_apart_from_a_plain_application(tmp_path: Path) -> None:
    p = project(tmp_path, v1_1_0={GATE: lines((18, "upstream wrote here\n"))})
    done = p.run("rebase", "1.1.0")
    assert verdicts(p, "1.1.0", done.stdout) == ["applies with moved context", "applies"]


def test_a_patch_that_upstream_has_is_named_with_its_release_and_leaves_the_series(tmp_path: Path) -> None:
    """Upstream has the patch already: it is named, and the series is reported shorter."""
    p = project(tmp_path, v1_1_0={}, v1_2_0={LIST: lines(OUR_LIST, word="item")}, v1_3_0={LIST: lines(OUR_LIST, word="item")})
    done = p.run("rebase", "1.3.0")
    assert done.returncode == 0, done.stderr
    assert verdicts(p, "1.2.0", done.stdout) == ["applies", "upstreamed"]
    assert verdicts(p, "1.3.0", done.stdout) == ["applies", "gone"]
    assert "`name-the-device.patch`: upstreamed by release 1.2.0; it leaves the series." in done.stdout
    assert "the series is shorter: 2 patches before, 1 now" in done.stdout
    assert list(p.result("1.3.0")) == ["hook-the-gate.patch"]


def test_a_patch_is_recognised_as_upstream_although_its_surroundings_were_rewritten(tmp_path: Path) -> None:
    """Upstream has it: three-way says conflict, but every hunk can be taken out of upstream's text."""
    around = lines(OUR_LIST, (9, "rewritten 9\n"), (1, "rewritten 1\n"), word="item")
    p = project(tmp_path, v1_1_0={LIST: around.replace("item 6\n", "item 6\nitem 6b\n")})
    done = p.run("rebase", "1.1.0")
    assert verdicts(p, "1.1.0", done.stdout)[1].startswith("upstreamed"), done.stdout


def test_every_known_release_on_the_way_is_stepped_on_where_a_jump_would_conflict(tmp_path: Path) -> None:
    """1.1.0 takes our patch, 1.2.0 goes on from there: seen from 1.0.0 alone, 1.2.0 contradicts the patch."""
    taken, later = {LIST: lines(OUR_LIST, word="item")}, {LIST: lines((5, "item 5 for gfx936 and others\n"), word="item")}
    stepping = project(tmp_path / "a", v1_1_0=taken, v1_2_0=later)
    done = stepping.run("rebase", "1.2.0")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines() if " apply" in line] == ["1.1.0", "1.2.0"]
    jumping = project(tmp_path / "b", v1_2_0=later)
    assert jumping.run("rebase", "1.2.0").returncode == RebaseConflict.exit_code


def test_a_downgrade_steps_down(tmp_path: Path) -> None:
    p = project(tmp_path, v0_8_0={GATE: lines((2, "old 2\n"))}, v0_9_0={}, v1_1_0={})
    done = p.run("rebase", "0.8.0")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines() if " apply" in line] == ["0.9.0", "0.8.0"]


def conflicted(tmp_path: Path) -> Project:
    return project(
        tmp_path,
        v1_1_0={GATE: lines((20, "upstream's own 20\n"))},
        v1_2_0={GATE: lines((20, "upstream's own 20\n"), (3, "three\n"))},
    )


def stopped(tmp_path: Path) -> Project:
    p = conflicted(tmp_path)
    done = p.run("rebase", "1.2.0")
    assert done.returncode == RebaseConflict.exit_code
    return p


def test_a_conflict_stops_with_three_lists_and_the_commands_to_go_on(tmp_path: Path) -> None:
    p = conflicted(tmp_path)
    before = p.snapshot()
    done = p.run("rebase", "1.2.0")
    assert done.returncode == RebaseConflict.exit_code
    text = done.stdout
    assert "stopped at vLLM 1.1.0 after 0 release(s): hook-the-gate.patch" in text
    assert f"conflicted files:\n  {GATE}: lines 20-24\n" in text
    assert "patches to files that upstream deleted, moved or replaced:\n  none" in text
    assert "broken patches (git could not merge them at all):\n  none" in text
    assert f"$EDITOR build/rebase/work/{GATE}\n  make rebase-continue\n" in text
    assert "make rebase-continue DROP=1" in text
    assert "make rebase-abort" in text
    assert p.snapshot() == before


def test_it_goes_on_with_the_corrected_file_and_keeps_the_correction(tmp_path: Path) -> None:
    p = stopped(tmp_path)
    (p.root / "build/rebase/work" / GATE).write_text(lines((20, "upstream's own 20 with our hook\n")))
    done = p.run("rebase-continue")
    assert done.returncode == 0, done.stderr
    assert verdicts(p, "1.1.0", done.stdout) == ["resolved by hand", "applies"]
    assert verdicts(p, "1.2.0", done.stdout) == ["applies", "applies"]
    assert "+upstream's own 20 with our hook" in p.result("1.2.0")["hook-the-gate.patch"]
    assert not (p.root / "build/rebase/state.json").exists()


def test_markers_left_in_a_file_are_refused(tmp_path: Path) -> None:
    p = stopped(tmp_path)
    done = p.run("rebase-continue")
    assert done.returncode == RebaseConflict.exit_code
    assert f"{GATE} still has conflict markers" in done.stderr


def test_a_patch_can_be_left_out_by_a_decision_that_is_written_down(tmp_path: Path) -> None:
    p = stopped(tmp_path)
    done = p.run("rebase-continue", "--drop")
    assert verdicts(p, "1.1.0", done.stdout) == ["dropped by hand", "applies"]
    assert list(p.result("1.2.0")) == ["name-the-device.patch"]


def test_a_patch_to_a_deleted_file_is_in_its_own_list_and_asks_for_the_new_place(tmp_path: Path) -> None:
    p = project(tmp_path, v1_1_0={GATE: "deleted", "vllm/elsewhere.py": "a different text\n"})
    done = p.run("rebase", "1.1.0")
    assert f"patches to files that upstream deleted, moved or replaced:\n  hook-the-gate.patch: {GATE}" in done.stdout
    refused = p.run("rebase-continue")
    assert f"{GATE} is still in build/rebase/work" in refused.stderr
    work = p.root / "build/rebase/work"
    (work / GATE).unlink()
    (work / "vllm/elsewhere.py").write_text("a different text\nwith our hook\n")
    assert p.run("rebase-continue").returncode == 0
    assert "vllm/elsewhere.py" in p.result("1.1.0")["hook-the-gate.patch"]


def test_a_file_that_upstream_only_moved_is_followed(tmp_path: Path) -> None:
    p = project(tmp_path, v1_1_0={GATE: "deleted", "vllm/layers/gate.py": lines((2, "two\n"))})
    done = p.run("rebase", "1.1.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "+++ b/vllm/layers/gate.py" in p.result("1.1.0")["hook-the-gate.patch"]


def test_abort_forgets_the_run_and_nothing_else(tmp_path: Path) -> None:
    p = conflicted(tmp_path)
    before = p.snapshot()
    p.run("rebase", "1.2.0")
    assert p.run("rebase-abort").returncode == 0
    assert p.snapshot() == before
    assert p.run("rebase-abort").returncode == UserError.exit_code
    assert p.run("rebase-continue").returncode == UserError.exit_code


def test_a_stopped_run_refuses_another_target_and_another_series(tmp_path: Path) -> None:
    p = stopped(tmp_path)
    other = p.run("rebase", "1.1.0")
    assert other.returncode == RebaseConflict.exit_code
    assert "`make rebase VLLM=1.2.0` is under way" in other.stderr
    patch = p.root / "patches" / "name-the-device.patch"
    patch.write_text(patch.read_text().replace("Why: a test.", "Why: another."))
    go_on = p.run("rebase-continue")
    assert go_on.returncode == RebaseConflict.exit_code
    assert "the series, the pin or the given folder changed" in go_on.stderr


def test_the_same_command_again_keeps_what_a_person_corrected(tmp_path: Path) -> None:
    p = stopped(tmp_path)
    work = p.root / "build/rebase/work" / GATE
    work.write_text("half done\n")
    assert p.run("rebase", "1.2.0").returncode == RebaseConflict.exit_code
    assert work.read_text() == "half done\n"


def test_a_damaged_state_is_refused_with_the_way_out(tmp_path: Path) -> None:
    p = stopped(tmp_path)
    (p.root / "build/rebase/state.json").write_text("{")
    done = p.run("rebase-continue")
    assert "is damaged" in done.stderr
    assert "make rebase-abort" in done.stderr


HOSTILE = """
[commit]\n gpgSign = true\n[core]\n autocrlf = true\n hooksPath = /nonexistent/hooks\n[diff]\n noprefix = true\n mnemonicPrefix = true\n[color]\n ui = always
[merge]\n conflictStyle = diff3\n renames = false\n[diff "x"]\n textconv = false\n[user]\n useConfigOnly = true
"""


def test_the_users_git_configuration_and_an_empty_home_change_no_byte(tmp_path: Path) -> None:
    """A user's git configuration, identity, hooks and the owner of the tree change nothing."""
    files = {GATE: lines((18, "eighteen\r\n"))}
    plain, hostile = project(tmp_path / "a", v1_1_0=files), project(tmp_path / "b", v1_1_0=files)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(HOSTILE)
    assert plain.run("rebase", "1.1.0", env={"HOME": str(tmp_path / "nowhere")}).returncode == 0
    done = hostile.run("rebase", "1.1.0", env={"HOME": str(home), "GIT_DIR": "/nonexistent", "GIT_EXTERNAL_DIFF": "false"})
    assert done.returncode == 0, done.stderr
    assert plain.result("1.1.0") == hostile.result("1.1.0")


def test_an_overlay_file_that_upstream_now_has_is_refused_by_name(tmp_path: Path) -> None:
    p = project(tmp_path, v1_1_0={"vllm/dcu/__init__.py": "# theirs\n"})
    done = p.run("rebase", "1.1.0")
    assert done.returncode != 0
    assert "vllm/dcu/__init__.py exists upstream" in done.stderr


def test_there_and_back_gives_the_same_bytes(tmp_path: Path) -> None:
    p = project(tmp_path, v1_1_0={GATE: lines((18, "eighteen\n"))}, v1_2_0={GATE: lines((18, "eighteen\n"), (40, "forty\n"))})
    before = {q.name: q.read_bytes() for q in (p.root / "patches").glob("*.patch")}
    assert p.run("rebase", "1.2.0").returncode == 0
    result = p.root / "build/rebase/1.2.0"
    for name in before:
        (p.root / "patches" / name).write_bytes((result / "patches" / name).read_bytes())
    (p.root / "upstream.toml").write_bytes((result / "upstream.toml").read_bytes())
    assert p.run("rebase", "1.0.0").returncode == 0
    assert {q.name: q.read_bytes() for q in (p.root / "build/rebase/1.0.0/patches").glob("*.patch")} == before


def test_a_given_tree_is_carried_onto_and_only_read(tmp_path: Path) -> None:
    p = project(tmp_path, v1_1_0={})
    given = tmp_path / "vendor"
    (given / "vllm").mkdir(parents=True)
    (given / "vllm/gate.py").write_text(lines((1, "vendor's first\n")))
    (given / "vllm/list.py").write_text(lines(word="item"))
    (given / "vllm/vendor.py").write_text("x\n")
    before = {q: q.read_bytes() for q in given.rglob("*") if q.is_file()}
    done = p.run("rebase", "--dir", str(given), "--checkout", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert {q: q.read_bytes() for q in given.rglob("*") if q.is_file()} == before
    assert (tmp_path / "out/vllm/gate.py").read_text() == lines((1, "vendor's first\n"), OUR_GATE)
    assert (tmp_path / "out/vllm/vendor.py").read_text() == "x\n"
    assert (tmp_path / "out/vllm/dcu/__init__.py").is_file()
    (given / "vllm/gate.py").write_text(lines((20, "vendor's own 20\n")))
    refused = p.run("rebase", "--dir", str(given))
    assert refused.returncode == RebaseConflict.exit_code
    assert "conflicted files:\n  vllm/gate.py: lines 20-24" in refused.stdout


def test_the_state_is_readable_and_holds_no_path_of_this_machine(tmp_path: Path) -> None:
    p = stopped(tmp_path)
    state = json.loads((p.root / "build/rebase/state.json").read_text())
    assert state["stop"] == "1.1.0/hook-the-gate.patch"
    assert state["conflicts"] == {GATE: "content"}
    assert str(tmp_path) not in json.dumps(state)


def test_the_series_is_applied_to_another_release_twice_without_change_and_edits_are_kept(tmp_path: Path) -> None:
    p = project(tmp_path, v1_1_0={GATE: lines((18, "eighteen\n"))})
    first = p.run("apply", "--version", "1.1.0", "--json")
    assert first.returncode == 0, first.stderr
    assert '"changed": true' in first.stdout
    gate = p.root / "build/vllm-1.1.0" / GATE
    assert gate.read_text() == lines((18, "eighteen\n"), OUR_GATE)
    assert '"changed": false' in p.run("apply", "--version", "1.1.0", "--json").stdout
    gate.write_text("mine\n")
    refused = p.run("apply", "--version", "1.1.0")
    assert "was edited since it was laid out" in refused.stderr
    assert gate.read_text() == "mine\n"
