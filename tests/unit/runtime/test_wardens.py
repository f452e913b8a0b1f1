"""Whether the warden of an executor starts another one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fairway.runtime.processes.executors import IDLE_S, Warden


@pytest.mark.parametrize(
    ("announced_s", "wanted"),
    [(-IDLE_S - 5.0, False), (-IDLE_S - 0.1, False), (0.1, True), (30.0, True), (3000.0, True)],
)
def test_a_job_that_is_announced_while_an_executor_ends_gets_another_one(
    tmp_path: Path, announced_s: float, wanted: bool
) -> None:
    """However long it took to end: it made up its mind an hour ago."""
    (tmp_path / "run").mkdir()
    decided_s = time.time() - 3600.0
    for name, at_s in (("run/idle", decided_s), ("wanted", decided_s + announced_s)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at_s, at_s))
    assert Warden(tmp_path)._is_wanted() == wanted


def test_an_executor_that_nobody_has_announced_a_job_to_is_not_wanted(tmp_path: Path) -> None:
    assert not Warden(tmp_path)._is_wanted()
