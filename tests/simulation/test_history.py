"""Histories: what a scheduler did, read from its journal and replayed, beside what really happened."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairway.api.past_days import past_days, replay_past
from fairway.api.schema import HistoryReplay
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import Attempt, JobRecord, JobState
from fairway.runtime.jobs.request import Dependency, JobRequest
from fairway.runtime.journal.database import Journal, JournalError
from fairway.runtime.journal.eras import with_era
from fairway.runtime.journal.history import read_history, scene_of
from fairway.simulator.replay import actual_result, replayed, verdict, with_present
from fairway.testing.simulated_site import Behaviour, SimulatedSite, SimulatedTime
from fairway.traces.history import JobHistory

DAY = 1_700_000_000.0
"""The date at which the histories made by hand begin."""


def machine(gpus: int, *, kind: str = "v100") -> Cluster:
    return Cluster.of([Node("here", kind, gpus)], [GpuType(kind, 0, 1.0, 1.0)])


def ran(number: int, submitted_s: float, *spans: tuple[float, float], gpus: int = 1, **about: Any) -> JobRecord:
    """A job that ran in these stretches of time, each an attempt on the first GPUs. Times are from `DAY` on."""
    state, ended_s = (
        about.pop("state", JobState.COMPLETED),
        about.pop("ended_s", spans[-1][1] if spans else submitted_s),
    )
    request = JobRequest(command=("true",), gpus=gpus, user=about.pop("user", "ana"), **about)
    attempts = [
        Attempt(at + 1, list(range(gpus)), "t", DAY + begin_s, DAY + begin_s, DAY + end_s, ran_s=end_s - begin_s)
        for at, (begin_s, end_s) in enumerate(spans)
    ]
    return JobRecord(
        number,
        str(number + 1),
        request,
        DAY + submitted_s,
        state,
        started_s=DAY + spans[0][0] if spans else None,
        ended_s=None if ended_s is None else DAY + ended_s,
        ran_s=sum(end_s - begin_s for begin_s, end_s in spans),
        preemptions=max(len(spans) - 1, 0),
        attempts=attempts,
    )


def journal_of(folder: Path, records: Sequence[JobRecord], gpus: int = 1, **facts: Any) -> Path:
    """A journal with some jobs, as a scheduler that stopped after 1,000 s has left it."""
    folder.mkdir(exist_ok=True)
    path = folder / "journal.db"
    about = {"machine": [[["v100", gpus, "here"]], None], "policy": "fifo", "origin_s": DAY, "last_s": 1000.0, **facts}
    with closing(Journal(path)) as journal, journal.transaction():
        journal.set_facts(about)
        journal.save_jobs(record.stored() for record in records)
    return path


def history_of(path: Path, since_s: float = 0.0) -> JobHistory:
    return read_history(path, DAY + since_s, scene_of(path, 0.0))


def jct_s(history: JobHistory, policy: str) -> float:
    found = replayed(history, [policy], history.cluster)
    assert found.problems == {}
    mean_s: float = found.documents[0]["jct_s"]["mean"]
    return mean_s


FIVE = [
    ran(0, 0, (0, 50), user="ana"),
    ran(1, 0, (50, 60), user="ben"),
    ran(2, 0, (60, 100), user="ben"),
    ran(3, 0, (100, 120), user="ben"),
    ran(4, 10, (120, 150), user="cho", weight=2.0, priority=0, queue="night"),
]


def test_five_jobs_by_hand(tmp_path: Path) -> None:
    history = history_of(journal_of(tmp_path, FIVE))
    assert [job.spec.duration_s for job in history.jobs] == [50, 10, 40, 20, 30]
    # They end at 50, 60, 100, 120 and 150; the last one came at 10.
    really = actual_result(history).figures()
    assert really["jct_s"]["mean"] == pytest.approx((50 + 60 + 100 + 120 + 140) / 5)
    assert really["jct_s"]["p50"] == 100
    assert really["makespan_s"] == 150
    assert really["utilisation"] == pytest.approx(1.0)
    assert really["queue_s"]["mean"] == pytest.approx((0 + 50 + 60 + 100 + 110) / 5)
    assert really["per_user"]["ben"]["jct_mean_s"] == pytest.approx((60 + 100 + 120) / 3)
    assert jct_s(history, "fifo") == pytest.approx(94, abs=0.01)
    # Shortest first: 10, 20, 30, 40, 50 long, which end at 10, 30, 60, 100 and 150.
    assert jct_s(history, "srtf") == pytest.approx((10 + 30 + 50 + 100 + 150) / 5, abs=0.01)
    found = replayed(history, with_present(history, ["srtf"]), history.cluster)
    assert found.verdict == (
        "srtf would have served this machine best: a mean completion time 28 % shorter than it really was "
        "(it was told true run times)"
    )
    own = replayed(history, ["fifo"], history.cluster)
    assert own.verdict.startswith("no policy would have served this machine better")


def test_a_gain_within_the_error_of_the_simulator_is_not_praised() -> None:
    def run(policy: str, mean_s: float) -> dict[str, Any]:
        return {"policy": policy, "knows": [], "finished": 5, "jct_s": {"mean": mean_s}}

    actual = run("actual (fifo)", 100.0)
    assert "within the error of the simulator (7 %)" in verdict(actual, [run("las", 95.0)])
    # The replay of the policy in force is off by 20 %, so a gain of 15 % says nothing.
    assert "within the error of the simulator (20 %)" in verdict(actual, [run("las", 85.0), run("fifo", 120.0)])
    assert "30 % shorter than it really was" in verdict(actual, [run("las", 70.0), run("fifo", 120.0)])
    assert verdict(actual, [run("las", 70.0) | {"finished": 4}]).startswith("no policy could be compared")


def test_work_is_what_was_computed_and_not_what_restarts_took(tmp_path: Path) -> None:
    jobs = [
        ran(0, 0, (0, 30), (100, 140), preempt="checkpoint"),
        ran(1, 0, (30, 60), (200, 260), preempt="restart"),
        ran(2, 0, (60, 80), gpus=2, gpus_min=1, gpus_max=4, preempt="checkpoint"),
        ran(3, 0, state=JobState.CANCELLED, ended_s=20),
        ran(4, 0, (300, 400), state=JobState.RUNNING, ended_s=None),
        ran(5, 0, (400, 410), depends=(Dependency("afterok", "1"),), preempt="suspend"),
    ]
    jobs[0].attempts[1].start_s = 10.0
    jobs[2].attempts[0].gpus = [0]
    jobs[4].attempts[0].ended_s, jobs[4].since_s = None, DAY + 400
    found = {job.spec.id: job for job in history_of(journal_of(tmp_path, jobs, gpus=4)).jobs}
    assert found["1"].spec.duration_s == pytest.approx(30 + 40 - 10)
    assert found["1"].spec.checkpoint_s == 10.0
    assert found["1"].preemptions == 1
    # It began anew, so only its last attempt counts; what its start took is as for others.
    assert found["2"].spec.duration_s == pytest.approx(60 - 10)
    # It ran on one GPU of the two that it asks for.
    assert found["3"].spec.duration_s == pytest.approx(20 * 0.5**0.9)
    assert (found["3"].spec.gpus_min, found["3"].spec.gpus_max) == (1, 4)
    assert found["6"].spec.checkpoint_s == 0.1
    assert "4" not in found, "it never ran"
    # It is cut at the end of the history, 1,000 s after its beginning.
    assert found["5"].spec.duration_s == pytest.approx(100 + 600)
    assert found["5"].finished_s == pytest.approx(1000)
    # It could not start before the first one had ended.
    assert found["6"].spec.submitted_s == pytest.approx(140)


def test_jobs_that_were_there_already_count_from_the_beginning_on(tmp_path: Path) -> None:
    history = history_of(journal_of(tmp_path, [ran(0, 0, (0, 100)), ran(1, 50, (100, 130)), ran(2, 0, (0, 30))]), 80)
    assert [(job.spec.id, job.spec.submitted_s, job.spec.duration_s) for job in history.jobs] == [
        ("1", 0.0, pytest.approx(20)),
        ("2", 0.0, pytest.approx(30)),
    ]
    assert [(job.started_s, job.finished_s) for job in history.jobs] == [(0, 20), (20, 50)]
    assert history.notes[-1].startswith("2 jobs that were there already")
    assert jct_s(history, "fifo") == pytest.approx((20 + 50) / 2)


def test_suspended_time_is_no_work(tmp_path: Path) -> None:
    job, other = ran(0, 0, (0, 90), gpus=2, preempt="suspend"), ran(1, 10, (20, 60))
    job.attempts[0].spans, job.attempts[0].ran_s = [[DAY, DAY + 20], [DAY + 60, DAY + 90]], 50.0
    path = journal_of(tmp_path, [job, other], gpus=2)
    whole = history_of(path)
    assert [job.spec.duration_s for job in whole.jobs] == [50, 40]
    assert whole.jobs[0].held_s == 50
    figures = actual_result(whole).figures()
    assert figures["queue_s"]["max"] == 40
    assert figures["utilisation"] == pytest.approx((2 * 50 + 40) / (2 * 90))
    late = history_of(path, since_s=30.0)
    assert [job.spec.duration_s for job in late.jobs] == [30, 30]
    assert [job.started_s for job in late.jobs] == [30, 0]


def test_damaged_rows_are_counted_and_named_and_the_rest_is_used(tmp_path: Path) -> None:
    path = journal_of(tmp_path, [*FIVE, *(ran(number, 0, (150, 200)) for number in range(5, 14))])
    changes = {
        "6": lambda record: "{not json",
        "7": lambda record: json.dumps({name: one for name, one in record.items() if name != "request"}),
        "8": lambda record: json.dumps(record | {"ran_s": -5.0}),
        "9": lambda record: json.dumps(record | {"attempts": [record["attempts"][0] | {"ended_s": DAY - 10}]}),
        "10": lambda record: json.dumps(record | {"submitted_s": "yesterday"}),
        "11": lambda record: json.dumps(record | {"attempts": [record["attempts"][0] | {"ran_s": 1e7}]}),
        "12": lambda record: json.dumps(record | {"ended_s": float("nan")}),
        "13": lambda record: json.dumps(record | {"attempts": [record["attempts"][0] | {"spans": ["x"]}]}),
        "14": lambda record: json.dumps(record | {"attempts": [record["attempts"][0] | {"spans": [[DAY + 9, DAY]]}]}),
    }
    with closing(sqlite3.connect(path)) as db:
        for name, change in changes.items():
            (text,) = db.execute("SELECT record FROM jobs WHERE id = ?", (name,)).fetchone()
            db.execute("UPDATE jobs SET record = ? WHERE id = ?", (change(json.loads(text)), name))
        db.commit()
    history = history_of(path)
    assert len(history.jobs) == 5
    assert history.damaged == ("6", "7", "8", "9", "10", "11", "12", "13", "14")
    assert history.left_out == {
        "damaged: its record cannot be read": 1,
        "damaged: a field is missing or wrong": 2,
        "damaged: a time is negative or no number": 3,
        "damaged: it ends before it begins": 2,
        "damaged: it ran for longer than it was there": 1,
    }
    (note,) = [note for note in history.notes if "damaged" in note]
    assert note.endswith("left out: 6, 7, 8, 9, 10, 11, 12, 13, 14")
    assert jct_s(history, "fifo") == pytest.approx(94, abs=0.01)
    again = JobHistory.from_plain(json.loads(json.dumps(history.plain(), allow_nan=False)))
    assert again == history


def test_changes_of_policy_and_gpus_and_deleted_jobs_are_said(tmp_path: Path) -> None:
    eras = [[DAY - 500, "las", {"v100": 4}], [DAY + 100, "fifo", {"v100": 4}], [DAY + 200, "fifo", {"v100": 1}]]
    gone = {"jobs": 3, "gpu_s": {}, "preemptions": 0, "until_s": DAY + 30}
    history = history_of(journal_of(tmp_path, FIVE, eras=[*eras, "nonsense"], gone=gone))
    assert history.policies == ("las", "fifo")
    assert actual_result(history).figures()["policy"] == "actual (las, then fifo)"
    assert history.notes[0].startswith("the policy was las until 20")
    assert history.notes[1].startswith("the machine had 4 v100 until 20")
    assert "the history is whole from then on" in history.notes[-1]
    assert history.whole_from_s == DAY + 30


def test_an_empty_history_and_no_journal_are_one_line(tmp_path: Path) -> None:
    history = history_of(journal_of(tmp_path, [ran(0, 0, state=JobState.CANCELLED, ended_s=20)]))
    with pytest.raises(InputError, match=r"no job has run in this time \(1 never ran\)"):
        replayed(history, ["fifo"], history.cluster)
    with pytest.raises(JournalError, match="there is no journal"):
        scene_of(tmp_path / "other.db", 0.0)
    (tmp_path / "text").write_text("no database at all, but long enough to be one" * 100)
    with pytest.raises(JournalError, match="cannot be read"):
        scene_of(tmp_path / "text", 0.0)


def test_a_policy_that_is_not_there_costs_the_others_nothing(tmp_path: Path) -> None:
    history = history_of(journal_of(tmp_path, FIVE))
    found = replayed(history, ["nonsense", "srtf"], history.cluster)
    assert list(found.problems) == ["nonsense"]
    assert [each["policy"] for each in found.documents] == ["srtf"]
    late = replayed(history, ["fifo", "srtf"], history.cluster, wall_s=-1.0)
    assert "longer than" in " ".join(late.problems.values())


def test_on_other_gpus_the_work_is_carried_over(tmp_path: Path) -> None:
    history = history_of(journal_of(tmp_path, [ran(0, 0, (0, 100)), ran(1, 0, (0, 10), gpus=4)], gpus=4))
    fast = Cluster.of([Node("a", "fast", 2)], [GpuType("fast", 0, 0.0, 2.0)])
    found = replayed(history, ["fifo"], fast)
    assert found.documents[0]["jct_s"]["mean"] == pytest.approx(50, abs=0.01)
    assert found.actual["finished"] == 1
    assert found.actual["skipped_by_reason"] == {"cannot run on these GPUs": 1}


# --- a real scheduler in simulated time ------------------------------------------------------------------------------


@contextmanager
def lived(folder: Path, policy: str, jobs: int, seed: int) -> Iterator[Scheduler]:
    """A scheduler that has run random jobs on four GPUs to their end."""
    dice, clock = random.Random(seed), SimulatedTime()
    site = SimulatedSite(clock, lambda name: None)
    given = (folder, machine(4), make_policy(policy), placement("packed"))
    scheduler = Scheduler(*given, site=site, time=clock, policy_text=policy, min_run_s=5.0)
    scheduler.begin()
    for _ in range(jobs):
        work_s = dice.choice((20.0, 60.0, 300.0)) * dice.uniform(0.5, 1.5)
        request = JobRequest(
            command=Behaviour(work_s=work_s).command(),
            gpus=dice.choice((1, 1, 2, 4)),
            user=dice.choice(("ana", "ben", "cho")),
            expected_s=work_s,
            preempt=dice.choice(("checkpoint", "suspend")),
        )
        site.at(1000.0 + dice.uniform(0.0, 600.0), partial(scheduler.submission, [request]))
    while len(list(scheduler.store)) < jobs or not all(record.settled for record in scheduler.store):
        scheduler.loop.step()
    try:
        yield scheduler
    finally:
        scheduler.stop()


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias:queues=100/400"])
def test_the_replay_of_the_policy_in_force_is_what_really_happened(tmp_path: Path, policy: str) -> None:
    with lived(tmp_path, policy, jobs=30, seed=7) as scheduler:
        history = past_days(scheduler, 0.0)
        records = list(scheduler.store)
    found = replayed(history, [policy], history.cluster)
    really_s = sum((record.ended_s or 0.0) - record.submitted_s for record in records) / len(records)
    assert len(history.jobs) == len(records)
    assert found.actual["jct_s"]["mean"] == pytest.approx(really_s, rel=0.001)
    assert found.problems == {}
    (replay,) = found.documents
    assert replay["jct_s"]["mean"] == pytest.approx(really_s, rel=0.02)
    assert replay["makespan_s"] == pytest.approx(found.actual["makespan_s"], rel=0.02)
    assert replay["utilisation"] == pytest.approx(found.actual["utilisation"], rel=0.03)


def test_the_journal_keeps_since_when_which_policy_decides(tmp_path: Path) -> None:
    with lived(tmp_path, "fifo", jobs=3, seed=2) as scheduler:
        answer = scheduler.engine.ask(scheduler.policy_change(make_policy("srtf"), "srtf"))
        while not answer.done():
            scheduler.loop.step()
        history = past_days(scheduler, 0.0)
    assert history.policies == ("fifo", "srtf")
    assert history.notes[0].startswith("the policy was fifo until ")
    known = with_era([], 5.0, "fifo", machine(2))
    assert with_era(known, 9.0, "fifo", machine(2)) == known
    assert with_era(known, 9.0, "fifo", machine(4)) == [*known, [9.0, "fifo", {"v100": 4}]]


def test_the_page_gets_rows_users_and_a_sentence(tmp_path: Path) -> None:
    with lived(tmp_path, "fifo", jobs=20, seed=1) as scheduler:
        told = replay_past(scheduler, HistoryReplay(("srtf", "las"), days=1.0, cluster_gpus=8))
        with pytest.raises(InputError, match="unknown policy"):
            replay_past(scheduler, HistoryReplay(("nonsense",)))
        clock = scheduler.clock
        with pytest.raises(InputError, match="no job has run in this time"):
            replay_past(scheduler, HistoryReplay(("srtf",), since_s=clock.today_s(clock.now_s()) + 50.0))
    assert [row["policy"] for row in told["rows"]] == ["fifo", "srtf", "las"]
    assert told["actual"]["policy"] == "actual (fifo)"
    assert (told["jobs"], told["left_out"], told["damaged"]) == (20, 0, 0)
    assert told["actual"]["gpus"] == 4
    assert told["rows"][1]["gpus"] == 8
    assert told["rows"][1]["jct_mean_s"] < told["actual"]["jct_mean_s"]
    assert set(told["rows"][0]["users"]) == {"ana", "ben", "cho"}
    assert told["verdict"].startswith(("srtf would", "las would", "fifo would"))
    json.dumps(told, allow_nan=False)
