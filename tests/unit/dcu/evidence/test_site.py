"""What the gate makes of the site's evidence: exact match opens, a difference demotes, a simulation opens nothing on hardware."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from vllm.dcu.ask.explain import explain
from vllm.dcu.dispatch.reasons import Reason
from vllm.dcu.dispatch.rules import Call, standing_reasons
from vllm.dcu.env import Mode, Switches, evidence_file
from vllm.dcu.evidence.binding import Binding
from vllm.dcu.evidence.ladder import Outcome, failed
from vllm.dcu.evidence.site import OPENING, Site, State, holds_up_to, observe_site, status_of
from vllm.dcu.evidence.store import RUNG_IDS, add
from vllm.dcu.records.catalog import CATALOG, records_by_id
from vllm.dcu.records.record import Toolchain

from tests.unit.dcu.evidence.evidence_samples import BINDING, BUILT_IN, SIMULATED, SITE, WRONG, context, entry, rungs, site_of, site_record

CALL = Call("bfloat16", 1, 34816, 5120)
HIP_6_3 = replace(BINDING, toolchain=replace(BINDING.toolchain, hip="6.3.26093"))


def reasons(binding: Binding, site: Site, record: str = BUILT_IN, switches: Switches | None = None) -> tuple[Reason, ...]:
    found = context(binding, site)
    if switches is not None:
        found = replace(found, switches=switches)
    records = {r.id: r for r in CATALOG + site.records}
    return standing_reasons(records[record], found)


def test_without_site_evidence_the_catalogue_decides() -> None:
    assert reasons(BINDING, Site()) == ()
    assert reasons(HIP_6_3, Site()) == (Reason.TOOLCHAIN,)


def test_an_exact_match_opens_what_the_catalogue_keeps_shut() -> None:
    assert reasons(HIP_6_3, site_of(entry(HIP_6_3), binding=HIP_6_3)) == ()


def test_an_exact_match_opens_a_record_of_the_site() -> None:
    site = site_of(entry(subject=SITE, record=site_record()))
    assert reasons(BINDING, site, SITE) == ()
    assert explain(Call("bfloat16", 1, 14336, 5120), context(site=site), CATALOG + site.records).taken == SITE


@pytest.mark.parametrize("name", ["device", "hip_runtime", "dtk", "build", "extension", "driver", "blas"])
def test_any_other_field_of_the_binding_demotes(name: str) -> None:
    now = replace(BINDING, **{name: "other"})
    assert reasons(now, site_of(entry(), binding=now)) == (Reason.SITE_LAPSED,)


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({"torch": "2.10.1"}, "V2"),
        ({"hip": "6.2.1"}, "V1"),
        ({"vllm": "0.18.2"}, ""),
    ],
)
def test_a_changed_version_string_demotes_to_the_rung_that_still_holds(change: dict[str, str], holds: str) -> None:
    now = replace(BINDING, toolchain=replace(BINDING.toolchain, **change))
    site = site_of(entry(), binding=now)
    assert Reason.SITE_LAPSED in reasons(now, site)
    assert site.status[BUILT_IN].state is State.LAPSED
    assert site.status[BUILT_IN].holds == holds


def test_another_blas_takes_the_comparison_with_it_and_what_stands_on_that() -> None:
    """What `F.linear` computes with: every rung that was measured against it, to the end-to-end claim."""
    now = replace(BINDING, blas="librocblas.so.5 and another hash")
    status = site_of(entry(), binding=now).status[BUILT_IN]
    assert (status.state, status.holds) == (State.LAPSED, "V2")
    assert "another blas" in status.sentence


def test_a_demotion_says_once_what_differs_and_which_command_verifies_again() -> None:
    (note,) = site_of(entry(), binding=HIP_6_3).notes
    assert "another hip;" in note
    assert "up to V1 still holds" in note
    assert f"python -m vllm.dcu verify --capability {BUILT_IN}" in note


def test_another_python_does_not_demote() -> None:
    now = replace(BINDING, toolchain=replace(BINDING.toolchain, python="3.12.1"))
    assert reasons(now, site_of(entry(), binding=now)) == ()


def test_a_copied_file_opens_nothing_on_another_toolchain(tmp_path: Path) -> None:
    """The whole file of a machine with HIP 6.3, copied to this process: nothing of it fits."""
    add(tmp_path / "evidence.json", entry(HIP_6_3, subject=SITE, record=site_record(HIP_6_3)))
    site = observe_site(tmp_path / "evidence.json", "gfx936", BINDING.toolchain)
    assert Reason.SITE_LAPSED in reasons(BINDING, site, SITE)


@pytest.mark.parametrize("ident", [r for r in RUNG_IDS if r in OPENING])
def test_each_rung_that_failed_shuts(ident: str) -> None:
    site = site_of(entry(results=rungs(**{ident: WRONG})))
    assert reasons(BINDING, site) == (Reason.SITE_FAILED,)
    assert f"{ident} failed on this site" in site.notes[0]


@pytest.mark.parametrize("ident", OPENING)
def test_each_rung_that_is_missing_keeps_a_site_record_shut(ident: str) -> None:
    results = {name: r for name, r in rungs().items() if name != ident}
    site = site_of(entry(subject=SITE, record=site_record(), results=results))
    assert reasons(BINDING, site, SITE) == (Reason.SITE_UNFINISHED,)


def test_a_site_record_opens_without_a_claim_end_to_end() -> None:
    results = {name: r for name, r in rungs().items() if name != "V7"}
    assert reasons(BINDING, site_of(entry(subject=SITE, record=site_record(), results=results)), SITE) == ()


def test_slower_end_to_end_shuts() -> None:
    site = site_of(entry(results=rungs(V7=failed("slower beyond the noise"))))
    assert reasons(BINDING, site) == (Reason.SITE_FAILED,)


def test_a_climb_that_is_not_finished_changes_nothing_for_the_catalogue() -> None:
    site = site_of(entry(results={"V0": rungs()["V0"]}))
    assert reasons(BINDING, site) == ()
    assert reasons(HIP_6_3, site_of(entry(HIP_6_3, results={"V0": rungs()["V0"]}), binding=HIP_6_3)) == (Reason.TOOLCHAIN,)


def test_a_failure_stays_on_a_later_toolchain_until_a_climb_passes() -> None:
    wrong = entry(results=rungs(V2=WRONG))
    assert Reason.SITE_FAILED in reasons(HIP_6_3, site_of(wrong, binding=HIP_6_3))
    right = entry(HIP_6_3, date="2026-11-30T09:00:00Z")
    assert reasons(HIP_6_3, site_of(wrong, right, binding=HIP_6_3)) == ()


def test_force_opens_what_lapsed_and_never_what_failed() -> None:
    forced = Switches(capabilities={BUILT_IN: Mode.FORCE})
    assert reasons(HIP_6_3, site_of(entry(), binding=HIP_6_3), switches=forced) == ()
    assert reasons(BINDING, site_of(entry(results=rungs(V2=WRONG))), switches=forced) == (Reason.SITE_FAILED,)


def test_simulated_evidence_opens_nothing_on_hardware() -> None:
    simulated = entry(replace(HIP_6_3, simulated=SIMULATED.simulated))
    site = site_of(simulated, binding=HIP_6_3)
    assert site == Site()
    assert reasons(HIP_6_3, site) == (Reason.TOOLCHAIN,)


def test_simulated_evidence_whose_label_was_taken_off_is_another_binding_than_its_hash(tmp_path: Path) -> None:
    """And with the hash made anew it still lacks what only a DCU's process can name."""
    bare = Binding("", "gfx936", Toolchain("2.10.0", "6.2.0", "0.18.1"), "", "", "tree", "", "")
    status = status_of(BUILT_IN, [entry(bare)], bare)
    assert status.state is State.UNFINISHED
    assert "device, hip_runtime, extension, driver cannot be read here" in status.sentence


def test_hardware_evidence_says_nothing_about_a_simulation() -> None:
    assert site_of(entry(results=rungs(V2=WRONG)), binding=SIMULATED) == Site()


def test_a_refused_file_shuts_everything_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    file.write_text("{")
    site = observe_site(file, "gfx936", BINDING.toolchain)
    assert reasons(BINDING, site) == (Reason.SITE_REFUSED,)
    assert "Move the file away" in site.notes[0]


def test_without_a_file_nothing_is_read(tmp_path: Path) -> None:
    assert observe_site(tmp_path / "evidence.json", "gfx936", BINDING.toolchain) == Site()


def test_a_rung_holds_only_above_rungs_that_hold() -> None:
    assert holds_up_to(entry(), ()) == "V7"
    assert holds_up_to(entry(results=rungs(V1=WRONG)), ()) == "V0"
    assert holds_up_to(entry(), {"driver"}) == "V1"


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"VLLM_DCU_EVIDENCE": "/e.json", "HOME": "/h"}, "/e.json"),
        ({"VLLM_CONFIG_ROOT": "/c", "HOME": "/h"}, "/c/dcu/evidence.json"),
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/vllm/dcu/evidence.json"),
        ({"HOME": "/h"}, "/h/.config/vllm/dcu/evidence.json"),
        ({}, None),
    ],
)
def test_where_the_file_is(environ: dict[str, str], path: str | None) -> None:
    assert evidence_file(environ) == (None if path is None else Path(path))


def test_the_opening_rungs_are_all_but_the_claim_end_to_end() -> None:
    assert set(RUNG_IDS) - set(OPENING) == {"V7"}
    assert rungs()["V7"].outcome is Outcome.PASSED
    assert BUILT_IN in records_by_id()


PAIR = "hcu.Platform of vllm-hcu 0.18.1"


@pytest.mark.parametrize(
    ("then", "now", "state"),
    [
        ("", "", State.VERIFIED),
        (PAIR, PAIR, State.VERIFIED),
        ("", PAIR, State.NONE),
        (PAIR, "", State.NONE),
        (PAIR, f"{PAIR}.post1", State.LAPSED),
        (PAIR, f"{PAIR}, rewrote 1", State.LAPSED),
    ],
)
def test_evidence_counts_with_the_platform_that_it_was_seen_with(then: str, now: str, state: State) -> None:
    found = status_of(BUILT_IN, [entry(replace(BINDING, platform=then))], replace(BINDING, platform=now))
    assert found.state is state
    assert (state is State.LAPSED) == ("verified with another platform;" in found.sentence)
    broken = status_of(
        BUILT_IN, [entry(replace(BINDING, platform=then), results=rungs(V2=failed("wrong")))], replace(BINDING, platform=now)
    )
    assert broken.state is State.FAILED, "what failed on this device is not forgotten with a platform"
