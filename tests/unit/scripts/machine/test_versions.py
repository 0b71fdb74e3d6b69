"""The version matrix: every limit has a reason, and a version is compared by its public numbers."""

from __future__ import annotations

import builtins
import importlib
from pathlib import Path

import pytest

from scripts.common import errors, outside
from scripts.machine import memory, versions
from scripts.upstream.releases import read_pin


def test_every_limit_has_its_reason_and_what_to_do() -> None:
    rows = versions.matrix()
    assert {"python", "torch", "hip", "cmake", "ninja", "setuptools", "vllm"} <= set(rows)
    assert all(len(row.why) > 20 and row.do and row.known for row in rows.values())


def test_the_matrix_is_for_the_pinned_release() -> None:
    assert versions.matrix()["vllm"].holds(read_pin().version)


@pytest.mark.parametrize(
    ("name", "version", "fits"),
    [
        ("torch", "2.10.0+das.dtk2604", True),
        ("torch", "2.9.1", False),
        ("torch", "2.11.0", False),
        ("torch", "unknown", False),
        ("hip", "6.2.0", True),
        ("hip", "6.3.26093", True),
        ("hip", "5.7.1", False),
        ("hip", "7.1.25424", False),
        ("cmake", "3.25.1", False),
        ("cmake", "3.26.1", True),
        ("cmake", "4.0", False),
        ("python", "3.9.2", False),
        ("python", "3.10.12", True),
        ("python", "3.14.0", False),
    ],
)
def test_a_version_is_in_or_out(name: str, version: str, fits: bool) -> None:
    assert versions.matrix()[name].holds(version) is fits


def test_a_limit_without_its_reason_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v.toml").write_text(
        '[memory]\ngb_per_job = 4\nknown = "x"\nwhy = "x"\ndo = "x"\n[torch]\nat_least = "2"\nbelow = "3"\nknown = "x"\nwhy = ""\ndo = "y"\n'
    )
    with pytest.raises(errors.UserError, match=r"field 'torch.why': '' is not a text that says something"):
        versions.matrix(tmp_path / "v.toml")


def test_a_python_310_without_packages_reads_toml_through_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 is what DTK images have: no tomllib there."""
    real, asked = importlib.import_module, []

    def without(name: str, package: str | None = None):  # type: ignore[no-untyped-def]
        asked.append(name)
        if name in ("tomllib", "tomli"):
            raise ImportError(name)
        return real(name, package) if name != "pip._vendor.tomli" else _FakeReader

    monkeypatch.setattr(importlib, "import_module", without)
    assert outside.parse_toml(b"") == {"read": "by pip"}
    monkeypatch.setattr(_FakeReader, "loads", staticmethod(lambda text: builtins.__dict__["int"]("no toml")))
    with pytest.raises(errors.UserError, match="is not TOML"):
        versions.matrix()


class _FakeReader:
    @staticmethod
    def loads(text: str) -> dict[str, str]:
        return {"read": "by pip"}


def test_no_reader_at_all_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "_READERS", ("no_such_module",))
    with pytest.raises(errors.MissingInput, match="cannot read TOML"):
        versions.matrix()


@pytest.mark.parametrize(
    ("cpus", "gb", "asked", "expected"),
    [(64, 512.0, None, 64), (64, 17.0, None, 4), (2, 1.0, None, 1), (64, 17.0, "9", 9), (4, 100.0, "", 4)],
)
def test_jobs_follow_memory_unless_they_are_said(cpus: int, gb: float, asked: str | None, expected: int) -> None:
    assert versions.jobs(cpus, gb, asked)[0] == expected


@pytest.mark.parametrize("asked", ["0", "-1", "many", "1.5", "\u0661"])
def test_max_jobs_that_is_no_number_is_an_error_that_names_it(asked: str) -> None:
    with pytest.raises(errors.UserError, match="MAX_JOBS="):
        versions.jobs(4, 100.0, asked)


def test_a_container_limit_counts_where_it_is_below_the_machines(tmp_path: Path) -> None:
    for name, text in (
        ("proc/meminfo", "MemTotal: 99\nMemAvailable: 64000000 kB\n"),
        ("sys/fs/cgroup/memory.max", "8000000000\n"),
        ("sys/fs/cgroup/memory.current", "3000000000\n"),
        ("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 1000000000\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory.available_gb(tmp_path) == pytest.approx(6.0)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert memory.available_gb(tmp_path) == pytest.approx(65.536)
