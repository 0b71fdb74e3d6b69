"""What every test may use."""

from __future__ import annotations

from typing import NoReturn

import pytest

__all__ = ["NOT_RUN", "not_run"]

NOT_RUN = "not run: "


def not_run(why: str) -> NoReturn:
    """This test cannot run on this machine: it is listed with the reason, never green, and fails under STRICT=1."""
    pytest.skip(NOT_RUN + why)
