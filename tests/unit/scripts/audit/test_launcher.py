"""The compiler launcher: the very same is compiled once, and whatever could change an object is another one."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from scripts.audit.launcher import launched
from tests.machine import program

# "Preprocesses" by printing the unit with its path, "compiles" by adding its arguments; every compile leaves a line in `log`.
COMPILER = """#!/bin/sh
for last; do :; done
case " $* " in *" -E "*) grep -q CANNOT "$last" && exit 1; for w; do [ "$b" = -o ] && { echo "# $last"; cat "$last"; } > "$w"; b=$w; done; exit 0;; esac
echo "$*" >> "$(dirname "$0")/log"
grep -q "ERROR" "$last" && { echo "$last: error: as planted" >&2; exit 1; }
grep -q "FULL" "$last" && { echo "error: No space left on device" >&2; exit 1; }
for w; do [ "$b" = -o ] && { echo "object of"; cat "$last"; } > "$w"; b=$w; done
echo "warning in $last" >&2
"""


class Bench:
    """A compiler and checkouts to compile in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiler = program(folder / "bin" / "c++", COMPILER)

    def compile(self, checkout: str, text: str, *options: str) -> tuple[int, str, str]:
        """Exit code, messages and the object's text."""
        home = self.folder / checkout
        home.mkdir(exist_ok=True)
        (home / "x.cc").write_text(text)
        words = [str(self.compiler), f"-ffile-prefix-map={home}=/source", *options, "-o", str(home / "x.o"), "-c", str(home / "x.cc")]
        (home / "x.o").unlink(missing_ok=True)
        done = subprocess.run([*launched(self.folder / "kept"), *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr, (home / "x.o").read_text() if (home / "x.o").is_file() else ""

    @property
    def compiles(self) -> int:
        log = self.folder / "bin" / "log"
        return len(log.read_text().splitlines()) if log.is_file() else 0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_very_same_is_compiled_once_also_in_another_checkout_with_its_own_paths_in_the_messages(bench: Bench) -> None:
    first = bench.compile("one", "int x;\n")
    assert first == (0, f"warning in {bench.folder}/one/x.cc\n", "object of\nint x;\n")
    assert bench.compile("one", "int x;\n") == first
    assert bench.compile("two", "int x;\n") == (0, f"warning in {bench.folder}/two/x.cc\n", "object of\nint x;\n")
    assert bench.compiles == 1


def test_another_text_option_or_compiler_is_compiled(bench: Bench) -> None:
    bench.compile("one", "int x;\n")
    bench.compile("one", "int y;\n")
    bench.compile("one", "int x;\n", "-O3")
    program(bench.compiler, COMPILER + "# another\n")
    bench.compile("one", "int x;\n")
    assert bench.compiles == 4


def test_a_refusal_is_kept_and_a_failure_of_the_machine_is_not(bench: Bench) -> None:
    refused = bench.compile("one", "ERROR\n")
    assert refused == (1, f"{bench.folder}/one/x.cc: error: as planted\n", "")
    assert bench.compile("one", "ERROR\n") == refused
    assert bench.compiles == 1
    for _ in range(2):
        assert bench.compile("one", "FULL\n")[0] == 1
    assert bench.compiles == 3


def test_what_cannot_be_preprocessed_or_is_no_compile_runs_as_it_stands(bench: Bench) -> None:
    for _ in range(2):
        assert bench.compile("one", "CANNOT\n")[0] == 0
    subprocess.run(
        [*launched(bench.folder / "kept"), str(bench.compiler), "-o", "x", str(bench.folder / "one" / "x.cc")], check=True, cwd=bench.folder
    )
    assert bench.compiles == 3


def test_an_entry_without_its_object_is_compiled_again_and_an_old_one_goes(bench: Bench) -> None:
    bench.compile("one", "int x;\n")
    (entry,) = (bench.folder / "kept").iterdir()
    (entry / "object").unlink()
    assert bench.compile("one", "int x;\n")[2] == "object of\nint x;\n"
    os.utime(entry, (time.time() - 40 * 86400,) * 2)
    bench.compile("one", "int y;\n")
    assert entry not in list((bench.folder / "kept").iterdir())
    shutil.rmtree(bench.folder / "kept")
