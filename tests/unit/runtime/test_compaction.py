"""A compacted log gives the same state as the whole one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairway.core.action import Launch, Suspend
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.event import JobFinished, JobStarted, RateChanged, RegimeEntered, Woken
from fairway.core.prospect import Prospect, Stage
from fairway.core.state import State
from fairway.runtime.jobs import life
from fairway.runtime.jobs.estimates import speeds_of, submitted
from fairway.runtime.jobs.records import JobRecord, JobState, StoredJob
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.database import Journal
from fairway.runtime.journal.recovery import replay

CLUSTER = Cluster.of([Node("here", "cpu", 4)], [GpuType("cpu", 0, 0.0, 1.0)])


def _life(rng: random.Random) -> tuple[list[tuple[list[Any], int]], dict[int, JobRecord]]:
    """Entries of some jobs that start, report, are suspended and end; groups with the number of their round."""
    records = {number: JobRecord(number, str(number + 1), JobRequest(command=("true",)), 0.0) for number in range(4)}
    entries: list[tuple[list[Any], int]] = []
    for record in records.values():
        entries.append(([submitted(record, speeds_of(record.request, CLUSTER), 500.0, 0.0, 10.0)], 0))
    now_s, round_number, runs = 0.0, 0, dict.fromkeys(range(4), False)
    for _ in range(400):
        now_s += rng.uniform(0.1, 3.0)
        job = rng.choice(list(runs))
        act = rng.random()
        if not runs[job] or act < 0.05:
            round_number += 1
            entries.append(([Woken(now_s)], 0))
            entries.append(([Suspend(job) if runs[job] else Launch(job, (job,), 0)], round_number))
            runs[job] = not runs[job]
            if runs[job]:
                entries.append(([JobStarted(now_s, job, 1.0, now_s)], 0))
        elif act < 0.1:
            regime = RegimeEntered(now_s, job, now_s / 2, 2.0, rng.randrange(1, 99), (2.0,), 500.0, 0.0, work=500.0)
            entries.append(([regime], 0))
        else:
            entries.append(([RateChanged(now_s, job, now_s / 2, rng.uniform(0.5, 2.0))], 0))
    entries.append(([Woken(now_s + 1.0)], 0))
    entries.append(([JobFinished(now_s + 1.0, 3)], 0))
    life.move(records[3], JobState.COMPLETED, 1.0)
    return entries, records


def _replayed(journal: Journal) -> State:
    state = State(CLUSTER)
    replay(journal.log(), state, (), lambda event: None)
    return state


@pytest.mark.parametrize("seed", range(8))
def test_a_compacted_log_gives_the_same_state(tmp_path: Path, seed: int) -> None:
    entries, records = _life(random.Random(seed))
    journal = Journal(tmp_path / "journal.db")
    with journal.transaction():
        journal.save_jobs(StoredJob(n, record.id, None, False, record.plain()) for n, record in records.items())
        for things, round_number in entries:
            journal.append(things, round_number)
    with journal.transaction():
        journal._db.execute("UPDATE jobs SET ended = 1 WHERE number = 3")
    whole = _replayed(journal)
    before = journal.size()
    gone = journal.compact()
    assert gone > before / 3
    after = _replayed(journal)
    journal.close()
    assert after.now_s == whole.now_s
    assert after.held_gpus == whole.held_gpus
    later_s = whole.now_s + 10.0
    for state in (whole, after):
        state.apply(Woken(later_s))
    one, other = whole.snapshot(), after.snapshot()
    assert np.array_equal(one.ints, other.ints)
    assert np.allclose(one.floats, other.floats, rtol=1e-9, atol=1e-6, equal_nan=True), f"seed {seed}"
    assert np.allclose(one.attained_gpu_s, other.attained_gpu_s)
    assert np.allclose(one.progress, other.progress)


def test_of_expected_run_times_in_a_row_the_first_and_the_last_stay(tmp_path: Path) -> None:
    record = JobRecord(0, "1", JobRequest(command=("true",)), 0.0)
    journal = Journal(tmp_path / "journal.db")
    prospect = Prospect(100.0, (Stage(0, (1.0,)),))
    guesses = [
        RegimeEntered(10.0 * at, 0, 5.0 * at, 1.0, 0, (1.0,), 900.0 + at, 0.0, work=900.0 + at, prospect=prospect)
        for at in range(1, 40)
    ]
    trained = guesses[20]._replace(scaling=(2.0,), batch_size=32)
    with journal.transaction():
        journal.save_jobs([StoredJob(0, "1", None, False, record.plain())])
        journal.append([submitted(record, speeds_of(record.request, CLUSTER), 500.0, 0.0, 10.0)])
        journal.append([Launch(0, (0,), 0)], 1)
        journal.append([JobStarted(1.0, 0, 1.0, 1.0), *guesses[:20], trained, *guesses[21:]])
    whole, before = _replayed(journal), journal.size()
    assert journal.compact() == before - 3 - 5, "two of each row, and what the job said itself"
    after = _replayed(journal)
    journal.close()
    for state in (whole, after):
        state.apply(Woken(500.0))
    one, other = whole.snapshot(), after.snapshot()
    assert np.array_equal(one.ints, other.ints)
    assert np.array_equal(one.floats, other.floats, equal_nan=True)
    assert np.array_equal(one.progress, other.progress)
    assert whole.facts[0].scaling == after.facts[0].scaling == (2.0,)
