"""What verify, tune and profile have in common on their command line."""

from __future__ import annotations

import os
import signal

import pytest
from vllm.dcu.tune import verb as tune
from vllm.dcu.verify.asked import ending_its_children, parted


def test_what_follows_the_first_dashes_is_the_servers() -> None:
    assert parted(["--model", "m"]) == (["--model", "m"], ())
    assert parted(["--model", "m", "--", "-a", "--", "b"]) == (["--model", "m"], ("-a", "--", "b"))


def test_sigterm_leaves_through_every_finally_and_the_handler_comes_back() -> None:
    before, ended = signal.getsignal(signal.SIGTERM), []

    def works() -> None:
        with ending_its_children():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                ended.append("the server")

    with pytest.raises(SystemExit) as left:
        works()
    assert (left.value.code, ended) == (128 + signal.SIGTERM, ["the server"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_tune_told_to_end_ends_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It left its server behind once: verify and profile had the handler, tune did not."""
    asked = []
    monkeypatch.setattr(tune, "_tune", lambda args, serve: asked.append((serve, signal.getsignal(signal.SIGTERM))) or 0)
    assert tune.main(["--model", "m", "--", "--max-model-len", "8"]) == 0
    ((serve, handler),) = asked
    assert serve == ("--max-model-len", "8")
    with pytest.raises(SystemExit):
        handler(signal.SIGTERM, None)  # type: ignore[operator]
