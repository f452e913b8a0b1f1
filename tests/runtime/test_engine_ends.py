"""How live jobs end: what their exit codes mean, who uses up retries, and that a lost keeper loses no job."""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_scheduler import clear, ended, live_scheduler, log_of, submit, until
from real_processes import python, wait_for

from fairway.runtime.jobs import live_jobs as ends
from fairway.runtime.jobs.records import JobState
from fairway.runtime.processes import local


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    left = clear(tmp_path)
    assert not left, f"processes {left} were left behind"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "BACK_OFF_S", 0.3)


def test_exit_codes_mean_what_is_written(folder: Path) -> None:
    with live_scheduler(folder, 8) as scheduler:
        good = submit(scheduler, ["true"])
        bad = submit(scheduler, python("import sys; sys.exit(3)"))
        missing = submit(scheduler, ["no-such-program-here"])
        nowhere = submit(scheduler, ["true"], cwd="/no/such/directory")
        aborted = submit(scheduler, ["bash", "-c", "kill -ABRT $$"])
        memory = submit(scheduler, python("import sys; print('RuntimeError: CUDA out of memory.'); sys.exit(1)"))
        late = submit(scheduler, ["sleep", "600"], limit_s=0.3, grace_s=5.0)
        assert ended(good).state is JobState.COMPLETED
        assert (ended(bad).state, bad.exit_code, bad.reason) == (JobState.FAILED, 3, "exited with code 3")
        assert (ended(missing).exit_code, "no-such-program-here" in missing.reason) == (127, True)
        assert "working directory '/no/such/directory' does not exist" in ended(nowhere).reason
        assert (ended(aborted).exit_code, aborted.reason) == (134, "was ended by signal 6 (SIGABRT)")
        assert (ended(memory).state, memory.exit_code) == (JobState.OUT_OF_MEMORY, 1)
        assert (ended(late).state, late.exit_code) == (JobState.TIMEOUT, 143)


def test_a_job_that_fails_is_tried_again_after_longer_and_longer_waits(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:
        job = ended(submit(scheduler, python("import sys; sys.exit(9)"), retries=2))
        assert (job.state, job.exit_code, len(job.attempts)) == (JobState.FAILED, 9, 3)
        starts = [attempt.launched_s for attempt in job.attempts]
        stops = [attempt.ended_s or 0.0 for attempt in job.attempts]
        assert starts[1] - stops[0] >= 0.25
        assert starts[2] - stops[1] >= 0.55


def test_a_job_that_checkpoints_by_itself_runs_again_without_using_retries(folder: Path) -> None:
    code = "import os, sys; sys.exit(0 if os.environ['FAIRWAY_RESTART_COUNT'] == '2' else 75)"
    with live_scheduler(folder) as scheduler:
        job = ended(submit(scheduler, python(code), preempt="checkpoint"))
        assert (job.state, len(job.attempts), job.failures) == (JobState.COMPLETED, 3, 0)


def test_a_job_whose_keeper_is_killed_runs_again_without_using_retries(folder: Path) -> None:
    code = """
import os, subprocess, sys, time
if os.environ['FAIRWAY_RESTART_COUNT'] == '0':
    subprocess.Popen(['sleep', '600'], start_new_session=True)
    print('ready', flush=True)
    time.sleep(600)
"""
    with live_scheduler(folder) as scheduler:
        job = until(submit(scheduler, python(code)), JobState.RUNNING)
        wait_for(lambda: "ready" in log_of(scheduler, job))
        scheduler.engine.attempts.live[job.number].handle.signal(signal.SIGKILL)
        ended(job)
        assert (job.state, len(job.attempts), job.failures) == (JobState.COMPLETED, 2, 0)
        assert job.attempts[0].cause == "lost"


def test_a_rank_that_somebody_kills_is_told_from_one_that_ran_out_of_memory(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:
        job = ended(submit(scheduler, ["bash", "-c", "kill -KILL $$"]))
        assert job.exit_code == 137
        told = local.outcome_of(folder / "jobs" / job.id / "attempt-1")
        assert told is not None
        if told.memory_kills == 0:
            assert (job.state, "killed" in job.reason) == (JobState.FAILED, True)
        else:
            assert job.state is JobState.OUT_OF_MEMORY


def test_a_program_that_answers_a_request_to_stop_with_an_error_has_not_failed(folder: Path) -> None:
    # As torchrun does, and most launchers.
    code = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
print('ready', flush=True)
time.sleep(600 if os.environ['FAIRWAY_RESTART_COUNT'] == '0' else 0)
"""
    with live_scheduler(folder) as scheduler:
        job = until(submit(scheduler, python(code), preempt="checkpoint"), JobState.RUNNING)
        wait_for(lambda: "ready" in log_of(scheduler, job))
        scheduler.requeue(job.id)
        ended(job)
        assert (job.state, len(job.attempts), job.failures) == (JobState.COMPLETED, 2, 0)


def test_a_start_that_the_machine_refuses_is_tried_again_without_using_retries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refusals = (
        local.start_keeper,
        [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EAGAIN, "Try")],
    )

    def start(*arguments: object) -> local.Running:
        if refusals:
            raise refusals.pop()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "start_keeper", start)
    with live_scheduler(folder) as scheduler:
        job = ended(submit(scheduler, ["true"]))
        assert (job.state, len(job.attempts), job.failures) == (JobState.COMPLETED, 3, 0)
        assert [attempt.cause for attempt in job.attempts] == ["refused", "refused", ""]


def test_a_cancelled_job_that_ignores_it_gives_its_gpu_back_only_when_it_is_gone(folder: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    with live_scheduler(folder, 1) as scheduler:
        first = submit(scheduler, python(deaf), grace_s=1.0)
        wait_for(lambda: "ready" in log_of(scheduler, first))
        second = submit(scheduler, ["true"])
        scheduler.cancel(first.id)
        assert first.state is JobState.CANCELLED
        time.sleep(0.3)
        assert second.started_s is None
        ended(second)
        ended(first)
        assert second.state is JobState.COMPLETED
        attempt = first.attempt
        assert attempt is not None
        assert attempt.codes == [137]
        assert (second.started_s or 0.0) >= (attempt.ended_s or 0.0) - 0.05
