"""A real elastic training under `pollux`: it gets more GPUs and larger batches, and reaches its target loss."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from training import ENVIRONMENT, TRAINING_S, example, wait_for

from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.explain import explain
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.machine import virtual_machine

PYTHON = os.environ.get("FAIRWAY_TEST_TORCH_PYTHON") or (sys.executable if find_spec("torch") else "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="needs torch")]


def test_a_training_grows_changes_its_batch_without_a_restart_and_reaches_its_target(tmp_path: Path) -> None:
    policy, cluster = make_policy("pollux"), virtual_machine(2).cluster
    scheduler = Scheduler(tmp_path, cluster, policy, placement("packed"), round_s=2.0, restart_s=0.5, min_run_s=0.0)
    thread, told = scheduler.start(), set[str]()
    try:
        command = (*example("adaptive_ddp", PYTHON), "--target", "0.11", "--pause", "0.02", "0.0002")
        about = {"gpus_min": 1, "gpus_max": 2, "processes": "per_gpu", "preempt": "checkpoint", "env": ENVIRONMENT}
        record = scheduler.submit([JobRequest(command=command, cwd=str(tmp_path), **about)])[0]  # type: ignore[arg-type]

        def ended() -> bool:
            if record.state is JobState.RUNNING:
                told.add(str(explain(scheduler, record.id).get("reason", "")))
            return record.state.ended

        wait_for(ended, "the end of the training", TRAINING_S)
        logs = "\n".join(path.read_text() for path in tmp_path.glob("jobs/1/attempt-*/rank-*.log"))
        assert record.state is JobState.COMPLETED, logs
    finally:
        scheduler.end_all()
        scheduler.close()
        thread.join()
    lines = [json.loads(line) for line in (tmp_path / "jobs/1/reports.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines if "loss" in line][-1] < 0.12
    assert [len(attempt.gpus) for attempt in record.attempts][:2] == [1, 2]
    starts = [at for at, line in enumerate(lines) if "batch_limits" in line]
    batches = [{line["batch_size"] for line in lines[at:] if "batch_size" in line} for at in starts[-1:]]
    assert len(batches[0]) > 1, "the batch changes while an attempt goes on"
    assert max(batches[0]) > 32
    assert any("trains with a batch of" in text and "efficiency" in text for text in told), told
