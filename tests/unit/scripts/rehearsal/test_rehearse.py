"""The scenes of a rehearsal: what makes each server what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.rehearsal import verb
from scripts.rehearsal.drive import Folders
from scripts.rehearsal.records import CAPABILITY
from scripts.rehearsal.report import FAULT_FINDERS
from scripts.rehearsal.verb import FULL, SHORT, Scene, environment

FOLDERS = Folders(Path("/stats"), Path("/log"))


def test_scenes_have_names_of_their_own_and_the_short_form_is_part_of_the_full_one() -> None:
    names = [scene.name for scene in FULL]
    assert len(set(names)) == len(names)
    assert set(SHORT) < set(FULL)


def test_both_models_are_served_eager_and_compiled_and_every_fault_is_planted() -> None:
    served = {(scene.model, scene.compiled) for scene in FULL if scene.variant == "on"}
    assert served >= {(model, mode) for model in ("mission-1", "mission-2", "mission-3.5") for mode in (False, True)}
    assert {scene.variant for scene in FULL if scene.variant.startswith("fault:")} == {f"fault:{name}" for name in FAULT_FINDERS}


def test_every_model_has_a_stock_run_to_compare_with() -> None:
    assert {scene.model for scene in FULL} == {scene.model for scene in FULL if scene.variant == "stock"}


def test_a_killed_server_is_followed_by_one_that_goes_on_with_its_folder() -> None:
    (killed,) = [scene for scene in SHORT if scene.killed]
    (restart,) = [scene for scene in SHORT if scene.continues]
    assert restart.continues == killed.name
    assert SHORT.index(restart) > SHORT.index(killed)


@pytest.mark.parametrize(
    ("variant", "arch", "switched", "fault"),
    [
        ("on", "gfx936:sramecc+:xnack-", None, None),
        ("off", "gfx936:sramecc+:xnack-", f"{CAPABILITY}=off", None),
        ("gfx928", "gfx928", None, None),
        ("fault:two-rows", "gfx936:sramecc+:xnack-", None, "two-rows"),
        ("plugin", "gfx936:sramecc+:xnack-", None, None),
        ("beside", "gfx936:sramecc+:xnack-", f"{CAPABILITY}=force", None),
        ("after", "gfx936:sramecc+:xnack-", None, None),
    ],
)
def test_each_variant_differs_in_one_thing(variant: str, arch: str, switched: str | None, fault: str | None) -> None:
    found = environment(Scene("s", variant), FOLDERS, None)
    assert (found["GFX936_SIM_ARCH"], found.get("VLLM_DCU_CAPABILITIES"), found.get("GFX936_SIM_FAULT")) == (arch, switched, fault)


@pytest.mark.parametrize(
    ("variant", "there", "asked"), [("plugin", True, None), ("beside", True, "vllm-hcu-stand-in"), ("after", False, None)]
)
def test_the_plugin_is_there_asked_for_or_gone(variant: str, there: bool, asked: str | None) -> None:
    found = environment(Scene("s", variant), FOLDERS, None, Path("/rewritable"))
    path = found["PYTHONPATH"].split(":")
    assert ((str(verb.VENDOR) in path), "/rewritable" in path, found.get("VLLM_DCU_BESIDE")) == (there, True, asked)


def test_the_stock_release_comes_first_on_the_path_of_its_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(verb, "stock_folder", lambda: tmp_path)
    first, *rest = environment(Scene("s", "stock"), FOLDERS, None)["PYTHONPATH"].split(":")
    assert (first, len(rest)) == (str(tmp_path), 1)


def test_the_host_kernel_computes_the_probe_of_every_layer(tmp_path: Path) -> None:
    found = environment(Scene("s", "on", model="mission-2"), FOLDERS, tmp_path)
    assert found["GFX936_SIM_HOST_CALLS"] == "18"
    assert "GFX936_SIM_HOST_KERNEL" not in environment(Scene("s", "fault:two-rows"), FOLDERS, tmp_path)
