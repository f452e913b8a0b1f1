"""Progress that is read off the logs of live jobs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from live_scheduler import ended, live_scheduler, submit, until
from real_processes import wait_for

from fairway.models import log_progress
from fairway.runtime.daemon import log_watch
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.followed_logs import FollowedLog
from fairway.runtime.daemon.log_watch import LogWatch
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import Attempt, JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.log_tail import MOST_BYTES, LogTail

BARS = """
import sys, time
for done in range(1, 4001):
    bar = "#" * (done // 400)
    sys.stderr.write(f"\\r{done // 40:3d}%|{bar:<10}| {done}/4000 [00:00<01:20, 50.00it/s, loss={4 / done:.3f}]")
    sys.stderr.flush()
    time.sleep(0.02)
"""
REPORTS = """
import json, os, sys, time
for done in range(1, 4000):
    with open(os.environ["FAIRWAY_REPORT"], "a") as out:
        out.write(json.dumps({"step": 10 * done, "steps": 90000, "time": time.time()}) + "\\n")
    sys.stderr.write(f"\\rtrain:  1%|#         | {done}/400 [00:00<00:40, 50.00it/s]")
    sys.stderr.flush()
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and believe soon."""
    monkeypatch.setattr(log_watch, "EVERY_S", 0.1)
    monkeypatch.setattr(log_progress, "LEAST_S", 0.5)


def watched(scheduler: Scheduler, wanted: list[bool] | None = None) -> LogWatch:
    watch = LogWatch(scheduler, lambda: (wanted or [True])[0], pytest.fail)
    watch.start()
    return watch


def test_a_job_that_reports_nothing_is_known_by_its_bar(tmp_path: Path) -> None:
    wanted = [True]
    with live_scheduler(tmp_path) as scheduler:
        silent = submit(scheduler, [sys.executable, "-c", BARS])
        speaks = submit(scheduler, [sys.executable, "-c", REPORTS])
        watch = watched(scheduler, wanted)
        until(silent, JobState.RUNNING)
        until(speaks, JobState.RUNNING)
        progress, seen = silent.progress, scheduler.observations
        wait_for(lambda: seen.counts_steps(silent.number), "its bar to be believed")
        wait_for(lambda: seen.counts_steps(speaks.number), "its report")
        assert (progress.source, progress.steps, progress.unit) == ("log (tqdm)", 4000, "step")
        assert progress.loss is not None
        estimate = seen.estimate(silent, scheduler.clock.now_s())
        assert estimate.source.startswith("its log (tqdm), at step ")
        # It takes 80 s, or more on a busy machine, and an hour was assumed.
        assert 60.0 < estimate.expected_s < 3000.0
        # The other one reports itself, and its bar does not count.
        assert (speaks.progress.source, speaks.progress.steps) == ("", 90000)
        # If the configuration says so, it is forgotten.
        wanted[0] = False
        wait_for(lambda: not seen.counts_steps(silent.number), "seconds again")
        assert (progress.source, progress.steps, progress.step) == ("", None, 0.0)
        scheduler.cancel(silent.id)
        scheduler.cancel(speaks.id)
        ended(silent)
        ended(speaks)
        watch.close()


def test_the_last_lines_before_the_end_are_read(tmp_path: Path) -> None:
    script = """
import sys, time
for step in range(1, 61):
    print(f"step {step}/100 loss 0.5", flush=True)
    time.sleep(0.03)
open(sys.argv[1], "w").close()
while True:
    time.sleep(0.01)
    try:
        open(sys.argv[2])
        break
    except OSError:
        pass
print("step 75/100 loss 0.5", flush=True)
sys.exit(3)
"""
    slow, may_end = tmp_path / "slow", tmp_path / "may_end"
    with live_scheduler(tmp_path) as scheduler:
        record = submit(scheduler, [sys.executable, "-c", script, str(slow), str(may_end)])
        watch = watched(scheduler)
        wait_for(slow.exists, "its steps")
        wait_for(lambda: record.progress.step == 60.0, "what is read now and then")
        watch.close()
        may_end.touch()
        ended(record)
        assert record.progress.step == 75.0
        assert scheduler.engine.logs.jobs() == []


def test_a_scheduler_that_starts_again_goes_on_reading(tmp_path: Path) -> None:
    with live_scheduler(tmp_path) as scheduler:
        record = submit(scheduler, [sys.executable, "-c", BARS])
        watch = watched(scheduler)
        wait_for(lambda: scheduler.observations.counts_steps(record.number), "its bar")
        watch.close()
    with live_scheduler(tmp_path) as scheduler:
        record = scheduler.store[record.number]
        # What was read is in the journal.
        assert scheduler.observations.counts_steps(record.number)
        assert record.progress.source == "log (tqdm)"
        before = record.progress.step
        watch = watched(scheduler)
        wait_for(lambda: record.progress.step > before, "more")
        watch.close()
        scheduler.cancel(record.id)
        ended(record)


def test_the_rank_that_speaks_is_heard(tmp_path: Path) -> None:
    clock = Clock({})
    record = JobRecord(1, "1", JobRequest(("train",), gpus=3, processes="per_gpu"), 0.0)
    record.attempts.append(Attempt(1, [0, 1, 2], "token", 0.0))
    record.since_s = clock.date_s(clock.now_s()) - 1000.0
    folder = tmp_path / "1" / "attempt-1"
    folder.mkdir(parents=True)
    followed, begun_s = FollowedLog(record, tmp_path), time.time() - 500.0
    for step in range(1, 11):
        for rank, text in ((0, "GPU 1/8"), (2, f"iteration {step}/ 100 | lm loss: 1.0 |")):
            log = folder / f"rank-{rank}.log"
            with log.open("a") as out:
                out.write(f"{text}\n")
            # Written long ago, by the time of the last write.
            os.utime(log, times=(0.0, begun_s + 20.0 * step))
        followed.look(clock, 0.0)
    assert followed.told is not None
    assert (followed.told.form, followed.told.done) == ("Megatron", 10.0)
    assert followed.told.per_s == pytest.approx(0.05, rel=0.01)


def test_only_the_end_of_a_fast_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    tail = LogTail(log)
    assert tail.new_pieces() == []
    log.write_bytes(b"epochs=3\n" + b"x" * (4 * MOST_BYTES) + b"end")
    head, end = tail.new_pieces()
    assert head.text.startswith(b"epochs=3")
    assert end.text.endswith(b"xend")
    assert end.gap
    assert len(head.text) == len(end.text) == MOST_BYTES
    assert tail.new_pieces() == []
    with log.open("ab") as more:
        more.write(b"more")
    assert [(one.text, one.gap) for one in tail.new_pieces()] == [(b"more", False)]
    # A log that was cut begins again.
    log.write_bytes(b"new")
    assert [(one.text, one.gap) for one in tail.new_pieces()] == [(b"new", True)]


def test_links_and_pipes_are_no_logs(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("step 1/100 loss 1\n")
    (tmp_path / "link.log").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    for name in ("link.log", "pipe.log", "folder.log"):
        assert LogTail(tmp_path / name).new_pieces() == []
