"""Counts are exact whatever threads, forks and subinterpreters do: one file a process, and the sum is the truth."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vllm.dcu.dispatch.counters import Tally, ThreadTally
from vllm.dcu.dispatch.countfiles import Header, Key, read_folder
from vllm.dcu.dispatch.counts import CELLS

from tests.support import not_run

HEADER = Header("gfx936", "a test", ())
THREADS, TIMES = 8, 500


def key(number: int) -> Key:
    return Key("miss", "bfloat16", number, 8, None, "no-record", "1")


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads take turns as often as this interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[int], None]) -> None:
    """`work` in THREADS threads that begin at one moment."""
    gate = threading.Barrier(THREADS)

    def begin(number: int) -> None:
        gate.wait()
        work(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def total(folder: Path) -> int:
    processes, problems = read_folder(folder)
    assert problems == []
    return sum(count.value for process in processes for count in process.counts)


@pytest.mark.parametrize("kind", [Tally, ThreadTally])
@pytest.mark.parametrize("round_", range(5))
def test_threads_that_make_the_first_dispatches_together_count_in_one_file(kind: type[Tally], round_: int, tmp_path: Path) -> None:
    tally = kind(HEADER, tmp_path)

    def work(number: int) -> None:
        base = tally.allocate([key(number % 3)])
        for _ in range(TIMES):
            tally.cells[base] += 1

    together(work)
    tally.publish()
    assert len(list(tmp_path.glob("*.counts"))) == 1
    assert total(tmp_path) == sum(count.value for count in tally.snapshot()) == THREADS * TIMES


def test_without_the_lock_they_would_not(tmp_path: Path) -> None:
    """The control of the test above: it can fail."""
    for round_ in range(50):
        folder = tmp_path / str(round_)
        tally = Tally(HEADER, folder)
        tally._lock = contextlib.nullcontext()  # type: ignore[assignment]

        def work(number: int, tally: Tally = tally) -> None:
            base = tally.allocate([key(number % 3)])
            for _ in range(TIMES):
                tally.cells[base] += 1

        together(work)
        tally.publish()
        if len(list(folder.glob("*.counts"))) != 1 or total(folder) != THREADS * TIMES:
            return
    raise AssertionError("fifty rounds without the lock, and every count was right")


class Racy(list[int]):
    """Cells of a Python without a global lock, as near as one with a lock can come: another thread may run within an addition."""

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        value = super().__getitem__(at)
        time.sleep(0)
        return value


@pytest.mark.parametrize(("kind", "exact"), [(Tally, False), (ThreadTally, True)])
def test_where_threads_run_at_once_each_adds_to_cells_of_its_own(kind: type[Tally], exact: bool) -> None:
    """The first case is the control: shared cells lose additions there."""
    tally = kind(HEADER, None)
    base = tally.allocate([key(0)])
    shared = Racy([0] * CELLS)
    if kind is Tally:
        tally.cells = shared
    own = threading.local()

    def work(number: int) -> None:
        if kind is ThreadTally:
            tally._own.cells = own.cells = Racy(tally._own.cells)  # type: ignore[attr-defined]
            tally._parts.append(own.cells)  # type: ignore[attr-defined]
        for _ in range(TIMES):
            tally.cells[base] += 1

    together(work)
    assert (sum(count.value for count in tally.snapshot()) == THREADS * TIMES) is exact


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_among_counting_threads_starts_from_zero(tmp_path: Path) -> None:
    tally = Tally(HEADER, tmp_path)
    base = tally.allocate([key(0)])
    children: list[int] = []

    def work(number: int) -> None:
        for i in range(TIMES):
            tally.cells[base] += 1
            if number == 0 and i % 250 == 100:
                child = os.fork()
                if child == 0:
                    mine = tally.allocate([key(1)])
                    for _ in range(7):
                        tally.cells[mine] += 1
                    tally.finish()
                    os._exit(0)
                children.append(child)

    together(work)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    tally.publish()
    assert total(tmp_path) == THREADS * TIMES + 2 * 7


INSIDE = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from vllm.dcu.dispatch.countfiles import Header, Key
from vllm.dcu.dispatch.counters import Tally
tally = Tally(Header("gfx936", "a test", ()), Path({folder!r}))
base = tally.allocate([Key("miss", "bfloat16", {number}, 8, None, "no-record", "1")])
for _ in range(500):
    tally.cells[base] += 1
tally.publish()
"""


def test_subinterpreters_count_each_for_itself(tmp_path: Path) -> None:
    try:
        module = importlib.import_module("_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters")
    except ImportError:
        not_run("this Python has no subinterpreters")
    made = [module.create() for _ in range(3)]
    try:
        for number, one in enumerate(made):
            failed = module.run_string(one, INSIDE.format(path=sys.path, folder=str(tmp_path), number=number))
            assert failed is None, failed
    finally:
        for one in made:
            module.destroy(one)
    assert len(list(tmp_path.glob("*.counts"))) == 3
    assert total(tmp_path) == 3 * 500
