"""Real processes on virtual GPUs of two types: a job knows where it runs, and its speed there is learnt."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_scheduler import ended, live_scheduler, log_of, submit
from real_processes import wait_for

from fairway.core import columns
from fairway.runtime.jobs import observations
from fairway.runtime.processes.machine import typed_machine

TRAINS = """
import json, os, time
out = open(os.environ["FAIRWAY_REPORT"], "a", buffering=1)
begun_s, step_s = time.time(), 0.03 if os.environ["FAIRWAY_GPU_TYPE"] == "v100" else 0.1
for step in range(1, 40000):
    time.sleep(0.03)
    # How long its steps took does not depend on who else computes on this machine.
    out.write(json.dumps({"step": step, "steps": 40000, "time": begun_s + step * step_s}) + "\\n")
"""


def test_a_job_runs_on_the_type_that_it_asks_for_and_is_told_so(tmp_path: Path) -> None:
    with live_scheduler(tmp_path, cluster=typed_machine("v100:1,k80:1").cluster) as scheduler:
        jobs = {
            kind: submit(scheduler, ["bash", "-c", "echo on $FAIRWAY_GPU_TYPE"], gpu_types=(kind,), cwd="/")
            for kind in ("k80", "v100")
        }
        for kind, job in jobs.items():
            assert f"on {kind}" in log_of(scheduler, ended(job))


def test_a_job_that_waits_learns_from_others_of_its_kind_on_both_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "RATE_EVERY_S", 0.2)
    with live_scheduler(tmp_path, cluster=typed_machine("v100:1,k80:1").cluster) as scheduler:
        about = {"model": "net", "cwd": "/"}
        runs = [submit(scheduler, ["python3", "-c", TRAINS], gpu_types=(kind,), **about) for kind in ("v100", "k80")]
        waits = submit(scheduler, ["true"], **about)

        def ratio() -> float:
            table = scheduler.state.table
            fast, slow = table.f[columns.SPEEDS :, table.position(waits.number)].tolist()
            return float(fast / slow)

        assert ratio() > 6, "so says the catalogue"
        wait_for(lambda: 3.2 < ratio() < 3.5, "the measured speeds")
        for job in runs:
            scheduler.cancel(job.id)
        ended(waits)
