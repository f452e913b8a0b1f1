"""Pairs of live jobs on one GPU: what they keep of their speeds is measured, acted on and kept over restarts."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from live_scheduler import cluster_of, ended, live_scheduler, submit
from real_processes import wait_for

from fairway.core.errors import InputError
from fairway.models.gavel_profile import GavelProfile
from fairway.models.names import ProfileKey
from fairway.policies import make_policy
from fairway.runtime.daemon import engine
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs import observations as seen
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.journal.database import Journal

TRAINS = """
import json, os, sys, time
mine, other, slow, total = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]) or None
out = open(os.environ["FAIRWAY_REPORT"], "a", buffering=1)
with open(mine, "w") as file:
    file.write(str(os.getpid()))

def beside():
    # Whether the other one computes now: it is there, and does not stand still.
    try:
        with open(f"/proc/{open(other).read()}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "T"
    except OSError:
        return False

# How long the steps took does not depend on who else computes on this machine.
step, time_s = 0, time.time()
while True:
    step += 1
    time_s += 0.03 * (slow if beside() else 1.0)
    time.sleep(0.03)
    out.write(json.dumps({"step": step, "steps": total, "time": time_s}) + "\\n")
"""
GANDIVA = "gandiva:quantum_s=1,trial_s=2"
ANT, BEE = ProfileKey("ant", 32, 1), ProfileKey("bee", 32, 1)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "RATE_EVERY_S", 0.2)
    monkeypatch.setattr(engine, "REPORTS_EVERY_S", 0.2)


def two(
    scheduler: Scheduler, folder: Path, slow: float, *, priorities: tuple[int, int] = (0, 0), total: int = 100_000
) -> list[JobRecord]:
    """Two jobs that slow each other down while both compute. `total` is how many steps they say they make; 0: none."""
    names = [str(folder / "ant"), str(folder / "bee")]
    about = {"preempt": "suspend", "cwd": "/", "batch_size": 32}
    return [
        submit(
            scheduler, ["python3", "-c", TRAINS, *order, str(slow), str(total)], model=model, priority=priority, **about
        )
        for model, order, priority in zip(("ant", "bee"), (names, names[::-1]), priorities, strict=True)
    ]


def packed(scheduler: Scheduler) -> bool:
    return scheduler.state.guests > 0


def pairs_on_disk(folder: Path) -> list[object]:
    """The pairs that a scheduler would find that is started now."""
    with closing(sqlite3.connect(f"file:{folder / 'journal.db'}?mode=ro", uri=True)) as journal:
        found = journal.execute("SELECT value FROM facts WHERE name = 'profile'").fetchone()
    return list(json.loads(found[0])["pairs"]) if found else []


def test_a_pack_that_goes_badly_is_undone_and_remembered(tmp_path: Path) -> None:
    with live_scheduler(tmp_path, gpus=1, policy=GANDIVA) as scheduler:
        jobs = two(scheduler, tmp_path, 6.0)
        wait_for(lambda: packed(scheduler), "a trial")
        wait_for(lambda: not packed(scheduler), "the end of the trial")
        kept = scheduler.measured.profile.kept("cpu", ANT, BEE)
        assert kept is not None
        assert sum(kept) < 0.9
        (value, until_s), *_ = scheduler.state.memory["pairs"].values()
        assert value < 1.05
        assert until_s > scheduler.state.now_s + 500
        wait_for(lambda: scheduler.state.snapshot().rate.max() > 15, "the speed of one alone")
        wait_for(lambda: pairs_on_disk(tmp_path), "the pair to be in the journal of a scheduler that runs")
        # Another policy object without any memory knows it from the profile.
        scheduler.set_policy(make_policy(GANDIVA), GANDIVA)
        for _ in range(40):
            assert not packed(scheduler)
            time.sleep(0.1)
    with live_scheduler(tmp_path, gpus=1, policy=GANDIVA) as again:
        assert again.measured.profile.kept("cpu", ANT, BEE) == pytest.approx(kept, abs=0.1)
        assert again.state.snapshot(frozenset({"pairs"})).pairing.factors(0, 1) != ()
        for one in jobs:
            again.cancel(one.id)
            ended(again.store[one.number])


def test_a_bad_pack_is_undone_also_if_jobs_do_not_say_how_many_steps_they_make(tmp_path: Path) -> None:
    with live_scheduler(tmp_path, gpus=1, policy=GANDIVA) as scheduler:
        jobs = two(scheduler, tmp_path, 6.0, total=0)
        wait_for(lambda: packed(scheduler), "a trial")
        wait_for(lambda: not packed(scheduler), "the end of the trial")
        (value, _), *_ = scheduler.state.memory["pairs"].values()
        assert value < 1.05
        for one in jobs:
            scheduler.cancel(one.id)
            ended(one)


def test_a_pack_that_goes_well_stays_and_a_simulation_can_read_it(tmp_path: Path) -> None:
    with live_scheduler(tmp_path, gpus=1, policy=GANDIVA) as scheduler:
        jobs = two(scheduler, tmp_path, 1.0)
        wait_for(lambda: scheduler.measured.profile.kept("cpu", ANT, BEE) is not None, "a measurement")
        time.sleep(3.0)
        assert packed(scheduler)
        for one in jobs:
            scheduler.cancel(one.id)
            ended(one)
        path = tmp_path / "measured.json"
        path.write_text(json.dumps(scheduler.measured.profile.document()))
    profile = GavelProfile.read(str(path))
    rates, alone = profile.pair_rates(ANT, BEE, "cpu"), profile.rate("ant", 32, "cpu", 1)
    assert rates is not None
    assert rates[0] > 0.7 * alone
    with pytest.raises(InputError, match="unknown model 'cat'"):
        profile.rate("cat", 32, "cpu", 1)


def test_jobs_that_report_nothing_take_turns(tmp_path: Path) -> None:
    with live_scheduler(tmp_path, gpus=1, policy=GANDIVA) as scheduler:
        jobs = [submit(scheduler, ["sleep", "600"], preempt="suspend", cwd="/") for _ in range(2)]
        for _ in range(40):
            assert not packed(scheduler)
            time.sleep(0.1)
        assert all(one.attempts for one in jobs)
        assert not scheduler.measured.profile.pairs
        for one in jobs:
            scheduler.cancel(one.id)
            ended(one)


def test_a_guest_that_slows_its_host_is_paused_and_remembered_by_antman(tmp_path: Path) -> None:
    with live_scheduler(tmp_path, gpus=1, policy="antman:interval_s=1") as scheduler:
        jobs = two(scheduler, tmp_path, 6.0, priorities=(0, -1))
        wait_for(lambda: packed(scheduler), "a guest")
        wait_for(lambda: not packed(scheduler), "the guest to leave")
        ((interference, _),) = scheduler.state.memory["pairs"].values()
        assert interference > 0.5
        assert scheduler.state.memory["paused"].keys() == {str(jobs[1].number)}
        for one in jobs:
            scheduler.cancel(one.id)
            ended(one)


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ({"version": 9}, "the measured profile has version 9; this Fairway reads version 1; measurements begin again"),
        ("x", "the measured profile has version None; this Fairway reads version 1; measurements begin again"),
        ({"version": 1, "speeds": [["cpu", 7]], "pairs": []}, "the measured profile is damaged"),
    ],
)
def test_a_profile_that_cannot_be_read_is_told_and_begun_again(tmp_path: Path, kept: object, told: str) -> None:
    journal = Journal(tmp_path / "journal.db")
    with journal.transaction():
        journal.set_facts({"profile": kept})
    with live_scheduler(tmp_path, cluster=cluster_of(1), journal=journal) as scheduler:
        assert scheduler.problem.startswith(told)
        assert not scheduler.measured.profile.speeds
