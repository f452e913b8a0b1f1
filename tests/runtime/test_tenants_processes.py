"""Tenants of a scheduler with real processes: a team gets its GPUs at once, and who used them meanwhile goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from live_scheduler import clear, ended, live_scheduler, submit, until
from real_processes import wait_for

from fairway.api.what_if import why
from fairway.runtime.daemon.settings import FILE_NAME, Settings
from fairway.runtime.jobs.records import JobState

CONFIG = """
[tenants.vision]
cells = ["1x2"]
users = ["ann"]

[tenants.speech]
cells = ["2x1"]
queues = ["asr"]
"""
COUNTS = "import time\nfor step in range(80): print(step, flush=True); time.sleep(0.05)"


def test_a_team_gets_its_gpus_at_once_and_others_go_on_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    os.mkfifo(tmp_path / "go")
    (folder / FILE_NAME).write_text(CONFIG)
    try:
        with live_scheduler(folder, 4, terms=Settings(folder), min_run_s=600.0) as scheduler:
            squats = submit(scheduler, [sys.executable, "-c", COUNTS], user="eve", gpus=4, name="squats", priority=7)
            until(squats, JobState.RUNNING)
            first = submit(scheduler, ["bash", "-c", f"read < {tmp_path}/go"], user="ann", gpus=2)
            until(first, JobState.RUNNING)
            assert squats.state is JobState.SUSPENDED, "it has just started, but has no claim to its GPUs"
            second = submit(scheduler, ["true"], user="ann", gpus=1)
            told = why(scheduler, second.id)
            assert told["reason"].startswith("tenant vision has 2 of its 2 GPUs in use")
            assert told["tenant"] == {"name": "vision", "gpus": 2, "gpus_held": 2, "out_of_order": 0}
            assert [one["id"] for one in told["ahead"]] == [first.id]
            other = submit(scheduler, ["true"], user="bob", queue="asr")
            assert ended(other).state is JobState.COMPLETED
            assert second.state.waits, "the other team's GPUs are not hers"
            (tmp_path / "go").write_text("go\n")
            assert ended(first).state is ended(second).state is JobState.COMPLETED
            assert ended(squats).state is JobState.COMPLETED
            assert len(squats.attempts) == 1, "it stood still and went on"
    finally:
        clear(folder)


def test_a_scheduler_that_starts_again_keeps_the_cells(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / FILE_NAME).write_text(CONFIG)
    try:
        with live_scheduler(folder, 4, terms=Settings(folder)) as scheduler:
            job = submit(scheduler, ["sleep", "60"], user="ann", gpus=1)
            until(job, JobState.RUNNING)
            bound = scheduler.state.memory["tenants"]["vision"]["bound"]
        with live_scheduler(folder, 4, terms=Settings(folder)) as scheduler:
            assert scheduler.state.memory["tenants"]["vision"]["bound"] == bound
            waits = submit(scheduler, ["true"], user="ann", gpus=2)
            wait_for(lambda: waits.number in scheduler.reasons.all(), "a decision")
            assert "tenant vision has 1 of its 2 GPUs in use" in scheduler.reasons.all()[waits.number]
            scheduler.end_all()
    finally:
        clear(folder)
