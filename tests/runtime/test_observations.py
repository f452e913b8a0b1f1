"""What jobs report of their training reaches the policies, also after a restart of the scheduler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from live_scheduler import cluster_of, ended, live_scheduler, submit
from real_processes import wait_for

from fairway.core.snapshot import Snapshot
from fairway.policies.optimus import notes
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs import observations as seen
from fairway.runtime.jobs.request import JobRequest

TRAINS = """
import json, os, time
out = open(os.environ["FAIRWAY_REPORT"], "a", buffering=1)
step = 0
while True:
    step += 1
    told = {"step": step, "steps": 4000, "epochs": 40, "loss": 1.0 + 1.0 / step, "noise_scale": 7.0}
    out.write(json.dumps(told) + "\\n")
    time.sleep(0.05)
"""
KNOWS = frozenset({"loss", "scaling", "duration"})


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "RATE_EVERY_S", 0.2)


def view(scheduler: Scheduler) -> Snapshot:
    return scheduler.state.snapshot(KNOWS)


def test_losses_noise_and_speeds_are_in_the_snapshot(tmp_path: Path) -> None:
    with live_scheduler(tmp_path, cluster=cluster_of(2)) as scheduler:
        job = submit(scheduler, ["python3", "-c", TRAINS], gpus=1, gpus_max=2, preempt="checkpoint", cwd="/")
        wait_for(lambda: view(scheduler).facts(0).noise_scale == 7.0, "the noise scale")
        wait_for(lambda: view(scheduler).losses()[1][0] < 1.2, "the loss to fall")
        snapshot = view(scheduler)
        epochs, losses = snapshot.losses()
        step = 1.0 / (losses[0] - 1.0)
        assert epochs[0] == pytest.approx(step / 100.0)
        one, two = snapshot.scaling(0)
        assert 2.0 < one < 25.0, "steps per second, and not seconds"
        assert two == pytest.approx(one * 2.0**0.9)
        assert snapshot.oracle.work_left[0] > 3000
    with live_scheduler(tmp_path, cluster=cluster_of(2)) as again:
        snapshot = view(again)
        assert snapshot.facts(0).noise_scale == 7.0
        assert 1.0 < snapshot.losses()[1][0] < 1.2
        again.cancel(job.id)
        found = again.store.get(job.id)
        assert found is not None
        ended(found)


@pytest.mark.parametrize("policy", ["slaq:interval_s=1", "optimus:interval_s=1"])
def test_policies_that_watch_losses_see_those_of_live_jobs(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "EVERY_S", 1.0)
    with live_scheduler(tmp_path, policy=policy, cluster=cluster_of(2)) as scheduler:
        job = submit(scheduler, ["python3", "-c", TRAINS], cwd="/")

        def noted() -> bool:
            memory = scheduler.state.memory
            losses = np.asarray(memory.get("notes", memory).get("losses", np.nan), dtype=float)
            return bool(np.isfinite(losses).any() and (losses[np.isfinite(losses)] > 0).any())

        wait_for(noted, f"losses in the memory of {policy}: {scheduler.state.memory}")
        assert scheduler.guard.problem == ""
        scheduler.cancel(job.id)
        ended(job)


def test_tasks_of_an_array_are_expected_to_take_as_long_as_those_that_have_ended(tmp_path: Path) -> None:
    with live_scheduler(tmp_path, cluster=cluster_of(1)) as scheduler:
        sweep = JobRequest(("sleep", "0.5"), cwd="/")
        tasks = scheduler.submit([sweep.task(number) for number in range(4)], array=True)
        ended(tasks[0])
        wait_for(lambda: view(scheduler).oracle.work_left.max() < 20.0, "the others to be expected to end soon")
        ended(tasks[-1])
    with live_scheduler(tmp_path, cluster=cluster_of(1)) as again:
        (later,) = again.submit([sweep])
        assert again.observations.expected_s[later.number] < 20.0
        ended(later)
