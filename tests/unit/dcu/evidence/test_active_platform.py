"""A platform that cannot be loaded is named with the reason; it is never ours, and it never stops who asked."""

from __future__ import annotations

import sys
import types

from vllm.dcu import detect
from vllm.dcu.evidence.active import active_platform


def platforms(monkeypatch, **members) -> None:
    module = types.ModuleType("vllm.platforms")
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, "vllm.platforms", module)


def test_a_platform_that_cannot_be_loaded_is_said_to_be_so(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'vllm._C'")

    platforms(monkeypatch, __getattr__=missing)  # vllm.platforms resolves `current_platform` in just this way
    found = active_platform()
    assert not found.ours
    assert found.qualname == "none"
    assert "No module named 'vllm._C'" in found.sentence


def test_the_class_that_was_loaded_is_named(monkeypatch):
    platforms(monkeypatch, current_platform=types.SimpleNamespace())
    assert active_platform().qualname == "types.SimpleNamespace"


def test_our_class_is_ours(monkeypatch):
    module, name = detect.PLATFORM.rsplit(".", 1)
    platforms(monkeypatch, current_platform=type(name, (), {"__module__": module})())
    assert active_platform().ours
