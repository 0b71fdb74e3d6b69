"""A real release adopted in a clean clone: drift and matrix agree, and `make check` is green afterwards."""

from __future__ import annotations

import subprocess

from scripts.upstream.releases import read_pin, version_key
from tests.conftest import Checkout
from tests.integration.upstream import sdist
from tests.support import not_run


def test_after_adopting_a_release_make_check_is_green(real: Checkout) -> None:
    """The second release after the pinned one: near enough to be cheap, and not the first step."""
    pin = read_pin()
    newer = [v for v in sorted(pin.sdists, key=version_key) if version_key(v) > version_key(pin.version)]
    if len(newer) < 2:
        not_run(f"no two known releases are newer than {pin.version}")
    for version in (pin.version, *newer[:2]):
        sdist(version)
    for argv in (
        ["init", "-q"],
        ["config", "user.name", "t"],
        ["config", "user.email", "t@t.invalid"],
        ["add", "-A"],
        ["commit", "-q", "-m", "start"],
    ):
        subprocess.run(["git", *argv], cwd=real.root, env=real.env, check=True)
    said = real.run("rebase", newer[1], "--adopt")
    assert f"adopted: vLLM {newer[1]}, in two commits here" in said
    real.run("check")
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=real.root, env=real.env, capture_output=True, text=True, check=True
    ).stdout
    assert status == ""
    assert f"nothing to be done: vLLM {newer[1]} is the pinned release" in real.run("rebase", newer[1], "--adopt")
