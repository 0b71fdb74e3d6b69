"""The grammar of the environment variables: nonsense is an error that names the variable, never silently off."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.dcu import env
from vllm.dcu.env import EnvError, Mode, Switches, parse_capabilities, parse_switch, read_switches
from vllm.dcu.records.catalog import MISSION

ID = MISSION.id


@pytest.mark.parametrize("value", ["1", "true", "on", "yes", " 1 ", "TRUE", "Yes", "\tON\n"])
def test_on_words_are_on(value: str) -> None:
    assert parse_switch("X", value, default=False) is True


@pytest.mark.parametrize("value", ["0", "false", "off", "no", " 0 ", "FALSE", "No", "Off"])
def test_off_words_are_off(value: str) -> None:
    assert parse_switch("X", value, default=True) is False


@pytest.mark.parametrize("value", [None, "", "   "])
@pytest.mark.parametrize("default", [True, False])
def test_empty_means_unset(value: str | None, default: bool) -> None:
    assert parse_switch("X", value, default) is default


@pytest.mark.parametrize("value", ["nonsense", "2", "-1", "1.0", "tru", "y", "none", "1 1"])
def test_nonsense_is_an_error_that_names_the_variable(value: str) -> None:
    with pytest.raises(EnvError, match=r"VLLM_ROCM_USE_SKINNY_GEMM=.*neither on"):
        read_switches({"VLLM_ROCM_USE_SKINNY_GEMM": value})


@given(st.text())
def test_no_text_at_all_is_silently_off(value: str) -> None:
    if value.strip().lower() in {"", "1", "true", "on", "yes"}:
        assert parse_switch("X", value, default=True)
    elif value.strip().lower() not in {"0", "false", "off", "no"}:
        with pytest.raises(EnvError, match=r"^X="):
            parse_switch("X", value, default=True)


def test_an_empty_environment_leaves_everything_to_the_records() -> None:
    assert read_switches({}) == Switches(skinny_gemm=True, batch_invariant=False, capabilities={})


@pytest.mark.parametrize(
    ("value", "modes"),
    [
        (None, {}),
        ("", {}),
        (" , ,", {}),
        (f"{ID}=off", {ID: Mode.OFF}),
        (f" {ID} = FORCE ", {ID: Mode.FORCE}),
        (f"{ID}=auto,a-b=0,", {ID: Mode.AUTO, "a-b": Mode.OFF}),
        ("a=yes,b=no", {"a": Mode.AUTO, "b": Mode.OFF}),
    ],
)
def test_capabilities_are_named_one_by_one(value: str | None, modes: dict[str, Mode]) -> None:
    assert parse_capabilities(value) == modes


@pytest.mark.parametrize("value", ["off", ID, f"{ID}=", f"{ID}=maybe", "=off", "A B=off", f"{ID}=off,{ID}=auto", f"{ID}=off=auto"])
def test_a_capability_list_that_cannot_be_read_names_the_variable(value: str) -> None:
    with pytest.raises(EnvError, match=r"^VLLM_DCU_CAPABILITIES"):
        read_switches({"VLLM_DCU_CAPABILITIES": value})


@pytest.mark.parametrize(
    ("value", "on"),
    [(None, False), ("", False), ("0", False), ("false", False), ("no", False), ("1", True), ("2", True), ("true", True), ("?", True)],
)
def test_batch_invariant_mode_is_taken_for_on_unless_it_is_clearly_off(value: str | None, on: bool) -> None:
    environ = {} if value is None else {"VLLM_BATCH_INVARIANT": value}
    assert read_switches(environ).batch_invariant is on


def test_the_stats_folder_is_optional() -> None:
    assert env.stats_dir({}) is None
    assert env.stats_dir({"VLLM_DCU_STATS_DIR": "  "}) is None
    assert env.stats_dir({"VLLM_DCU_STATS_DIR": "/x/y"}) == Path("/x/y")


@pytest.mark.parametrize("form", [r"^\+    ([A-Z_]+): ", r'^\+    "(\w+)": dcu_variable\("\1"\),', r'^\+        "(\w+)",'])
def test_every_variable_of_ours_is_registered_and_keeps_out_of_the_compile_cache(form: str) -> None:
    """By the patch: its declarations, its getters and what it leaves out of compile_factors are our variables, all and no other.

    But for the one that changes the graph: it is part of the key.
    """
    patch = (Path(__file__).parents[3] / "patches" / "register-the-dcu-environment-variables.patch").read_text()
    ours = set(env.environment_variables)
    assert set(re.findall(form, patch, re.MULTILINE)) == (
        ours - {env.BESIDE} if form.endswith('",') and "dcu_variable" not in form else ours
    )
    assert set(re.findall(form, patch.replace("VLLM_DCU_SIGNATURES", "VLLM_DCU_OTHER"), re.MULTILINE)) != ours


def test_a_registered_variable_is_read_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_DCU_CAPABILITIES", f"{ID}=off")
    monkeypatch.setenv("VLLM_DCU_STATS_DIR", "/x")
    assert env.environment_variables["VLLM_DCU_CAPABILITIES"]() == {ID: Mode.OFF}
    assert env.environment_variables["VLLM_DCU_STATS_DIR"]() == Path("/x")


@pytest.mark.parametrize(
    ("value", "package"),
    [("", ""), ("  ", ""), ("off", ""), ("0", ""), ("vllm-hcu", "vllm-hcu"), (" Vllm_Hcu ", "vllm-hcu"), ("a.b", "a-b")],
)
def test_the_plugin_to_stand_beside_is_a_packages_name(value: str, package: str) -> None:
    assert env.beside({"VLLM_DCU_BESIDE": value}) == package


@pytest.mark.parametrize("value", ["1", "yes", "a b", "-", "vllm_hcu==1"])
def test_what_names_no_package_is_an_error(value: str) -> None:
    with pytest.raises(EnvError, match=r"^VLLM_DCU_BESIDE="):
        env.beside({"VLLM_DCU_BESIDE": value})
