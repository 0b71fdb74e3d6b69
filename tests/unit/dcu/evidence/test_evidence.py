"""The evidence store: what is damaged, forged, or written by others is refused; concurrent and killed writers lose nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vllm.dcu.dispatch.rules import standing_reasons
from vllm.dcu.evidence.ladder import failed, passed
from vllm.dcu.evidence.site import observe_site
from vllm.dcu.evidence.store import Entry, EvidenceError, add, forget, read_store
from vllm.dcu.records.catalog import records_by_id
from vllm.dcu.records.record import RecordError, Toolchain, Verdict

from tests.unit.dcu.evidence.evidence_samples import BINDING, BUILT_IN, SIMULATED, SITE, context, entry, rungs, site_record

Edit = Callable[[dict[str, Any]], object]
MEASURE = {"median": 2.0, "low": 1.0, "high": 3.0, "runs": 3, "unit": "us", "better": "lower", "measure": True}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "dcu" / "evidence.json"


def reforge(store: Path, edit: Edit, rehash: bool = True) -> None:
    """Edit the file's first entry by hand; with `rehash` as a forger who knows how the hash is made."""
    data = json.loads(store.read_text())
    first = data["entries"][0]
    edit(first)
    if rehash:
        content = {k: v for k, v in first.items() if k != "digest"}
        first["digest"] = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    store.write_text(json.dumps(data))


def test_no_file_is_no_evidence(store: Path) -> None:
    assert read_store(store) == ()


def test_what_was_added_is_read_back(store: Path) -> None:
    add(store, entry())
    add(store, entry(subject=SITE, record=site_record()))
    assert read_store(store) == (entry(), entry(subject=SITE, record=site_record()))


def test_a_later_climb_takes_over_the_rungs_it_did_not_run(store: Path) -> None:
    add(store, entry(results={"V0": passed({"a": 1}), "V2": passed({"a": 1})}))
    add(store, entry(results={"V2": failed("wrong now"), "V3": passed({"a": 1})}))
    (found,) = read_store(store)
    assert {name: r.outcome.value for name, r in found.rungs.items()} == {"V0": "passed", "V2": "failed", "V3": "passed"}


def test_evidence_of_another_toolchain_is_an_entry_of_its_own(store: Path) -> None:
    other = replace(BINDING, toolchain=Toolchain("2.10.0", "6.3.0", "0.18.1"))
    add(store, entry())
    add(store, entry(other, results={"V2": failed("wrong")}))
    assert [e.binding for e in read_store(store)] == [BINDING, other]


def test_forget_drops_one_capability(store: Path) -> None:
    add(store, entry())
    add(store, entry(subject=SITE, record=site_record()))
    assert forget(store, BUILT_IN) == 1
    assert [e.subject for e in read_store(store)] == [SITE]


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}", '{"format": 1}', '{"format": 2, "entries": []}', "\x00\x00", "[" * 100_000])
def test_a_damaged_file_is_refused_and_says_what_to_do(store: Path, text: str) -> None:
    store.parent.mkdir()
    store.write_text(text)
    with pytest.raises(EvidenceError, match="Move the file away and verify again"):
        read_store(store)


@pytest.mark.parametrize("tenths", range(1, 10))
def test_a_truncated_file_is_refused(store: Path, tenths: int) -> None:
    add(store, entry())
    data = store.read_bytes()
    store.write_bytes(data[: len(data) * tenths // 10])
    with pytest.raises(EvidenceError):
        read_store(store)


def flip(first: dict[str, Any]) -> None:
    first["rungs"]["V2"]["figures"]["seen"] = 2


def test_an_edited_entry_is_refused(store: Path) -> None:
    add(store, entry())
    reforge(store, flip, rehash=False)
    with pytest.raises(EvidenceError, match="changed after it was written"):
        read_store(store)


def test_a_missing_hash_is_refused(store: Path) -> None:
    add(store, entry())
    reforge(store, lambda e: e.pop("digest"), rehash=False)
    with pytest.raises(EvidenceError, match=r"field 'entries\[0\]\.digest': is missing"):
        read_store(store)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda e: e["rungs"]["V2"].update(figures={}), "no figure"),
        (lambda e: e["rungs"]["V2"].update(outcome="not run", why="x"), "did not run"),
        (lambda e: e["rungs"]["V2"].update(outcome="green"), "'green' is not one of"),
        (lambda e: e["rungs"]["V2"].update(outcome="failed", why=""), "says why"),
        (lambda e: e["rungs"].clear(), "holds no rung"),
        (lambda e: e["rungs"].update(V9=e["rungs"]["V2"]), "rungs that do not exist: V9"),
        (lambda e: e["rungs"]["V2"].update(date="2099-01-01T00:00:00Z"), "in the future"),
        (lambda e: e["rungs"]["V2"].update(date="yesterday"), "'yesterday' is not a date"),
        (lambda e: e["rungs"]["V2"].update(date="2026-02-31T00:00:00Z"), "no date"),
        (lambda e: e["binding"].update(arch="sm_90"), "not a DCU"),
        (lambda e: e["binding"].update(arch="gfx928"), "not a DCU"),
        (lambda e: e["binding"].update(driver=6), "6 is not a text"),
        (lambda e: e["binding"].pop("extension"), "extension"),
        (lambda e: e.update(subject="llmm1-everything"), "no capability of this build"),
        (lambda e: e.update(more=1), "more': is no field here"),
        (lambda e: e["rungs"]["V2"]["figures"].update(error=float("nan")), "NaN is not a finite number"),
        (lambda e: e["rungs"]["V2"]["figures"].update(error=float("-inf")), "-Infinity is not a finite number"),
        (lambda e: e["rungs"]["V2"]["figures"].update(error=None), "error': None is not"),
        (lambda e: e["rungs"]["V2"]["figures"].update(error=[1]), "error': a list of 1 entries is not"),
        (lambda e: e["rungs"]["V2"]["figures"].update(seen=2**63), "not a number of 64 bits"),
        (lambda e: e["rungs"]["V2"]["figures"].update(seen=10**400), "beyond 64 bits"),
        (lambda e: e["rungs"]["V2"]["figures"].update(time=MEASURE | {"low": 3.0}), "between the lowest and the highest"),
        (lambda e: e["rungs"]["V2"]["figures"].update(time=MEASURE | {"runs": 0}), "at least one value"),
        (lambda e: e["rungs"]["V2"]["figures"].update(time=MEASURE | {"runs": 3.0}), "3.0 is not a whole number"),
        (lambda e: e["rungs"]["V2"]["figures"].update(time=MEASURE | {"more": 1}), "is no field here"),
        (lambda e: e["rungs"]["V2"]["figures"].update(time={"measure": True}), "is missing"),
        (lambda e: e["rungs"]["V2"].update(why="x" * 10_000_000), "one line of at most"),
        (lambda e: e["rungs"]["V2"].update(why="two\nlines"), "printable characters"),
        (lambda e: e["rungs"]["V2"].update(why="\x1b[2J"), "printable characters"),
        (lambda e: e["rungs"].update(V2=None), "V2': None is not an object"),
        (lambda e: e.update(rungs=[]), "rungs': a list of 0 entries is not an object"),
        (lambda e: e.update(binding=None), "binding': None is not an object"),
        (lambda e: e["binding"].update(extension="ee"), "'ee' is not a sha256"),
        (lambda e: e["binding"].update(device="DCU"), "'DCU' is not PCI ids"),
    ],
)
def test_what_no_climb_can_have_shown_is_refused_even_with_a_right_hash(store: Path, edit: Edit, words: str) -> None:
    add(store, entry())
    reforge(store, edit)
    with pytest.raises(EvidenceError, match=words):
        read_store(store)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda e: e["record"]["contract"].update(k=17408), "K=17408 is above 8192"),
        (lambda e: e["record"]["contract"].update(m=14338), "M=14338 is not a positive multiple"),
        (lambda e: e["record"]["target"].update(wavefront=32), "wrong above K=4096"),
        (lambda e: e["record"]["target"]["toolchain"].update(hip="6.3"), "another toolchain"),
        (lambda e: e["record"].update(id="site-other"), "carries the record of"),
        (lambda e: e["record"]["evidence"][0].update(on_hardware=False), "rehearsal opens nothing"),
        (lambda e: e["record"].update(kernel="wvSplitK"), "not a kernel that the gate can call"),
    ],
)
def test_a_forged_site_record_is_refused_even_with_a_right_hash(store: Path, edit: Edit, words: str) -> None:
    add(store, entry(subject=SITE, record=site_record()))
    reforge(store, edit)
    with pytest.raises(EvidenceError, match=words):
        read_store(store)


def test_a_site_record_may_not_replace_one_of_the_build(store: Path) -> None:
    with pytest.raises(EvidenceError, match="replaces a record of the build"):
        add(store, entry(record=replace(site_record(), id=BUILT_IN)))


def test_an_open_record_cannot_even_be_made_of_a_simulation() -> None:
    with pytest.raises(RecordError, match="a rehearsal opens nothing"):
        site_record(SIMULATED)


def test_a_simulation_that_carries_a_hardware_record_is_refused(store: Path) -> None:
    with pytest.raises(EvidenceError, match="makes hardware evidence of a simulation"):
        add(store, entry(SIMULATED, subject=SITE, record=site_record()))


def test_a_negative_record_of_a_simulation_is_kept_as_one(store: Path) -> None:
    closed = site_record(SIMULATED, Verdict.CLOSED)
    add(store, entry(SIMULATED, subject=SITE, record=closed))
    assert read_store(store)[0].record == closed


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_is_refused(store: Path, mode: int) -> None:
    add(store, entry())
    store.chmod(mode)
    with pytest.raises(EvidenceError, match="others may write it"):
        read_store(store)


def test_a_file_of_another_user_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(store, entry())
    owner = store.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner == 0:
        os.chown(store, 4242, -1)
    with pytest.raises(EvidenceError, match="belongs to user"):
        read_store(store)


def test_a_fifo_in_its_place_is_refused_and_does_not_block(store: Path) -> None:
    store.parent.mkdir()
    os.mkfifo(store)
    with pytest.raises(EvidenceError, match="not a regular file"):
        read_store(store)


def test_a_huge_file_is_refused_unread(store: Path) -> None:
    store.parent.mkdir()
    with store.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(EvidenceError, match="bytes are more than"):
        read_store(store)


def test_nothing_is_added_to_a_file_that_is_refused(store: Path) -> None:
    add(store, entry())
    reforge(store, flip, rehash=False)
    before = store.read_bytes()
    with pytest.raises(EvidenceError):
        add(store, entry(subject=SITE, record=site_record()))
    assert store.read_bytes() == before


@pytest.mark.parametrize("where", ["", "entries[0]", "entries[0].rungs.V2"])
def test_a_key_that_stands_twice_is_refused(store: Path, where: str) -> None:
    """With the last of two keys believed, a second and empty `entries` would take a failure back."""
    add(store, entry(results=rungs(V2=failed("wrong"))))
    text = store.read_text()
    twice = {"": ('"format": 1,', '"format": 1, "entries": [],'), "entries[0]": ('"subject":', '"subject": "x", "subject":')}
    old, new = twice.get(where, ('"outcome": "failed"', '"outcome": "failed", "outcome": "passed"'))
    store.write_text(text.replace(old, new))
    with pytest.raises(EvidenceError, match="stands twice in one object"):
        read_store(store)


@pytest.mark.parametrize("kind", ["folder", "socket", "device", "file as folder", "a name too long"])
def test_what_is_no_file_shuts_with_a_sentence(store: Path, kind: str) -> None:
    place = store
    if kind == "folder":
        store.mkdir(parents=True)
    elif kind == "socket":
        store.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(store))
    else:
        place = {"device": Path("/dev/zero"), "file as folder": Path(__file__) / "x"}.get(kind, Path("/tmp/" + "x" * 5000))
    with pytest.raises(EvidenceError, match=r"is not used: it .*Move the file away"):
        read_store(place)
    site = observe_site(place, "gfx936", BINDING.toolchain)
    assert site.problem
    assert standing_reasons(records_by_id()[BUILT_IN], context(site=site))


def test_what_a_failed_kernel_left_is_kept_and_read_back(store: Path) -> None:
    """A kernel that gives NaN, and words with colours and line ends, must not cost the evidence that it failed."""
    add(store, entry(results=rungs(V2=failed("\x1b[31mwrong\n" + "x" * 9999, {"error": float("nan"), "high": float("inf")}))))
    (found,) = read_store(store)
    assert found.rungs["V2"].figures == {"error": "nan", "high": "inf"}
    assert found.rungs["V2"].why.isprintable()


@pytest.mark.parametrize("kind", ["nothing", "{", '{"format": 1, "entries": [], "entries": []}'])
def test_every_error_is_one_short_printable_line(store: Path, kind: str) -> None:
    store.parent.mkdir()
    store.write_text(kind)
    with pytest.raises(EvidenceError) as refusal:
        read_store(store)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 1000


def test_the_file_is_private_to_its_user(store: Path) -> None:
    add(store, entry())
    assert store.stat().st_mode & 0o077 == 0


WRITER = (
    "import sys; from dataclasses import replace; from pathlib import Path\n"
    "from vllm.dcu.evidence.store import add\n"
    "from tests.unit.dcu.evidence.evidence_samples import BINDING, entry\n"
    "for i in range(10): add(Path(sys.argv[1]), entry(replace(BINDING, driver=f'{sys.argv[2]}-{i}')))\n"
)


def start(code: str, *argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *argv], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def test_concurrent_writers_lose_nothing(store: Path) -> None:
    writers = [start(WRITER, str(store), str(number)) for number in range(4)]
    assert [writer.wait(120) for writer in writers] == [0] * 4
    assert {e.binding.driver for e in read_store(store)} == {f"{n}-{i}" for n in range(4) for i in range(10)}


def test_a_writer_without_the_lock_would_lose_entries_which_is_why_there_is_one(store: Path) -> None:
    """The control of the test above: read, then write late, is how an entry gets lost."""
    from vllm.dcu.evidence import store as evidence

    add(store, entry())
    stale = list(read_store(store))
    add(store, entry(subject=SITE, record=site_record()))
    evidence._write(store, stale)
    assert len(read_store(store)) == 1


KILLED = (
    "import os, signal, sys; from pathlib import Path\n"
    "from vllm.dcu.evidence import ladder; from vllm.dcu.evidence.store import add\n"
    "from tests.unit.dcu.evidence.evidence_samples import SITE, entry, site_record\n"
    "point = sys.argv[2]\n"
    "def die(*a, **k): os.kill(os.getpid(), signal.SIGKILL)\n"
    "if point == 'before-sync': ladder.os.fsync = die\n"
    "if point == 'before-rename': Path.replace = die\n"
    "add(Path(sys.argv[1]), entry(subject=SITE, record=site_record()))\n"
)


@pytest.mark.parametrize("point", ["before-sync", "before-rename"])
def test_a_killed_writer_leaves_the_old_file_and_no_lock(store: Path, point: str) -> None:
    add(store, entry())
    assert start(KILLED, str(store), point).wait(60) == -signal.SIGKILL
    assert read_store(store) == (entry(),)
    add(store, entry(subject=SITE, record=site_record()), seconds=5)
    assert len(read_store(store)) == 2


def test_a_held_lock_is_named(store: Path) -> None:
    import fcntl

    add(store, entry())
    with store.with_name("evidence.json.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EvidenceError, match="another process has held"):
            add(store, entry(), seconds=0.1)


def test_an_empty_climb_is_not_kept(store: Path) -> None:
    with pytest.raises(EvidenceError, match="holds no rung"):
        add(store, Entry(BUILT_IN, BINDING, {}, {}))


def test_samples_cover_every_rung() -> None:
    assert all(r.figures for r in rungs().values())
