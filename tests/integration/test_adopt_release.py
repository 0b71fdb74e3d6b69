"""A real release adopted in a clean clone: drift and matrix agree, and `make check` is green afterwards."""

from __future__ import annotations

import subprocess

from scripts.common import errors
from scripts.runtime.environment import ensure_serving
from scripts.upstream.releases import read_pin, version_key
from tests.conftest import Checkout
from tests.integration.upstream import sdist
from tests.support import not_run


def _git(real: Checkout, *argv: str) -> str:
    return subprocess.run(["git", *argv], cwd=real.root, env=real.env, capture_output=True, text=True, check=True).stdout


def test_after_adopting_a_release_make_check_is_green(real: Checkout) -> None:
    """The second release after the pinned one: near enough to be cheap, and not the first step."""
    pin = read_pin()
    newer = [v for v in sorted(pin.sdists, key=version_key) if version_key(v) > version_key(pin.version)]
    if len(newer) < 2:
        not_run(f"no two known releases are newer than {pin.version}")
    for version in (pin.version, *newer[:2]):
        sdist(version)
    try:
        real.env["RUNTIME_PYTHON"] = str(ensure_serving())
    except errors.Fatal as error:
        not_run(f"no interpreter to ask the dispatch in: {error.what}")
    for argv in (
        ["init", "-q"],
        ["config", "user.name", "t"],
        ["config", "user.email", "t@t.invalid"],
        ["add", "-A"],
        ["commit", "-qm", "start"],
    ):
        _git(real, *argv)
    said = real.run("rebase", newer[1], "--adopt")
    assert f"adopted: vLLM {newer[1]}, in two commits here" in said
    real.run("check")
    assert _git(real, "status", "--porcelain") == ""
    assert f"nothing to be done: vLLM {newer[1]} is the pinned release" in real.run("rebase", newer[1], "--adopt")
    # What makes it green is what the adoption brought: each part taken back is missed.
    for path in ("docs/generated.json", "docs/matrix.json", "upstream.toml"):
        _git(real, "checkout", "-q", "HEAD~2", "--", path)
        real.run("generate", "--check", code=None if path == "upstream.toml" else errors.CheckFailed.exit_code)
        _git(real, "checkout", "-q", "HEAD", "--", path)
