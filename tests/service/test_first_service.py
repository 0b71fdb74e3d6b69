"""A real `vllm serve` of the built wheel answers as a client expects, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.dcu.verify.server import Server

from scripts.common import errors
from scripts.serving.ready import ready_python
from scripts.serving.server import first_service, model_folder, serving, wrong
from scripts.upstream.releases import read_pin
from scripts.wheel.version import wheel_version

VERSION = wheel_version(read_pin().version, read_pin().revision, "cpu")


@pytest.fixture(scope="module")
def python() -> Path:
    return ready_python()


@pytest.fixture(scope="module")
def seen(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return first_service(python, tmp_path_factory.mktemp("log") / "serve.log")


def test_the_first_service_is_right_in_every_answer(seen: dict[str, Any]) -> None:
    assert wrong(seen, VERSION) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("version", "0.18.1"), ("models", []), ("completion_tokens", 7), ("streamed", "other"), ("exit_code", 1)],
)
def test_a_wrong_answer_would_be_found(seen: dict[str, Any], key: str, value: object) -> None:
    assert len(wrong({**seen, key: value}, VERSION)) == 1


def test_a_server_that_cannot_start_is_reported_with_its_last_words_and_is_gone(python: Path, tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    with (
        pytest.raises(errors.CheckFailed, match=r"the server ended with [12]"),
        serving(python, model_folder("tiny", python), log, arguments=["--no-such-option"]),
    ):
        pass
    assert "no-such-option" in log.read_text()


def test_nothing_is_left_when_the_caller_fails_while_the_server_runs(python: Path, tmp_path: Path) -> None:
    seen: list[Server] = []
    engines: list[int] = []

    def fail_while_it_runs() -> None:
        with serving(python, model_folder("tiny", python), tmp_path / "serve.log") as server:
            seen.append(server)
            engines.extend(server.children())
            raise RuntimeError("the caller's own fault")

    with pytest.raises(RuntimeError, match="the caller's own fault"):
        fail_while_it_runs()
    assert engines, "the engine is a process of its own"
    assert seen[0].process.poll() is not None
    assert seen[0].children() == []
