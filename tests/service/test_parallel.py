"""Two workers in one real server: tensor parallel without a hit, pipeline parallel by the law, and one sum of what both counted."""

from __future__ import annotations

import os

import pytest

from scripts.rehearsal import report
from scripts.rehearsal.verb import PARALLEL, Scene, rehearse
from scripts.serving.ready import ready_python
from tests.support import not_run


@pytest.mark.parametrize("scene", PARALLEL, ids=lambda scene: scene.name)
def test_two_workers_count_as_one_server(scene: Scene) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        not_run("two workers need a core each")
    (run,) = rehearse([scene], ready_python())
    found = report.judge([run])
    assert [(row.claim, row.problems) for row in found if row.problems] == []
    assert run.ending["workers"] == 2
