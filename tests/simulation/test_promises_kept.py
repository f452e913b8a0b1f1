"""Promises in a simulated world: the real scheduler tells every job its start and end, and is right four times of five.

Owners misjudge their jobs by a factor, and jobs that come later push others back, so no forecast is exact.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fairway.api.promised import record_of_promises
from fairway.api.what_if import why
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.request import JobRequest
from fairway.testing.builders import cluster
from fairway.testing.simulated_site import Behaviour, SimulatedJournal, SimulatedSite, SimulatedTime

JOBS = 150


class Town:
    """One scheduler, and jobs that come at random."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.folder, self.policy, self.time = folder, policy, SimulatedTime()
        self.site = SimulatedSite(self.time, lambda name: None, None, None)
        self.scheduler = self.made()
        self.told_intervals: dict[str, list[bool]] = {"start": [], "finish": []}

    def made(self) -> Scheduler:
        """A scheduler on what there is in the folder."""
        journal = SimulatedJournal(self.folder / "journal.db", lambda name: None, lambda: False)
        scheduler = Scheduler(
            self.folder,
            cluster("v100:4"),
            make_policy(self.policy),
            placement("packed"),
            policy_text=self.policy,
            journal=journal,
            site=self.site,
            time=self.time,
        )
        scheduler.begin()
        # The scheduler has no thread of its own here.
        scheduler.ask = lambda command: self.answered(scheduler.engine.ask(command))  # type: ignore[method-assign]
        return scheduler

    def answered(self, answer: Future[Any]) -> Any:
        """Let the scheduler go on until it has answered."""
        while not answer.done():
            self.scheduler.loop.step()
        return answer.result()

    def live(self, jobs: int, rng: random.Random) -> Iterator[str]:
        """Jobs come one by one; each is told when it starts and ends."""
        for _ in range(jobs):
            due: list[bool] = []
            self.site.at(self.time.monotonic() + rng.expovariate(1 / 120.0), lambda due=due: due.append(True))  # type: ignore[misc]
            while not due:
                self.scheduler.loop.step()
            work_s = 60.0 * rng.lognormvariate(0.8, 0.8)
            word_s = work_s * rng.lognormvariate(0.2, 0.5)
            user, gpus = rng.choice(("ann", "bob")), rng.choice((1, 1, 2, 4))
            asked = JobRequest(command=Behaviour(work_s).command(), user=user, gpus=gpus, expected_s=word_s)
            (record,) = self.answered(self.scheduler.submission([asked]))
            told = why(self.scheduler, record.id, told="submit")
            estimate = told["estimate"]
            with_interval = [estimate[f"{kind}_between_s"] is not None for kind in ("start", "finish")]
            assert estimate["sure"] == (0.8 if any(with_interval) else None)
            for kind, told_one in zip(("start", "finish"), with_interval, strict=True):
                if estimate[f"{kind}_s"] is not None:
                    assert estimate[f"{kind}_rough"] != told_one
                    self.told_intervals[kind].append(told_one)
            yield record.id


def test_four_of_five_promises_are_kept_and_a_restart_knows_of_them(tmp_path: Path) -> None:
    town = Town(tmp_path, "fifo")
    for _ in town.live(JOBS, random.Random(7)):
        pass
    book = town.scheduler.promises
    for kind in ("start", "finish"):
        # The first thirty were told before anything was known.
        later = [one for one in book.latest if one.kind == kind][30:]
        assert len(later) > 60
        assert sum(one.kept for one in later) / len(later) == pytest.approx(0.8, abs=0.12)
        assert any(one.scored_as for one in later)
        # As long as too few were scored, or held, all times are rough; but they are scored.
        told_intervals = town.told_intervals[kind]
        assert not any(told_intervals[:30])
        assert any(told_intervals), town.scheduler.promises.trust(kind).why
    told = record_of_promises(town.scheduler, None, None, None)
    assert [(row["policy"], row["kind"]) for row in told["policies"]] == [("fifo", "start"), ("fifo", "finish")]
    assert {row["user"] for row in told["users"]} == {"ann", "bob"}
    assert told["latest"] == len(book.latest) == sum(row["decided_in_all"] for row in told["policies"])
    # It is killed: what the journal was not told of the record is in the records of the jobs.
    town.scheduler.journal.close()
    town.scheduler = town.made()
    again = town.scheduler.promises
    assert record_of_promises(town.scheduler, None, None, None) == told
    assert sorted(again.latest) == sorted(book.latest)
    assert [again.trust(kind) for kind in ("start", "finish")] == [book.trust(kind) for kind in ("start", "finish")]
    record = next(one for one in town.scheduler.store if not one.state.ended)
    assert record.promises
    town.answered(town.scheduler.engine.ask(town.scheduler.commands.each(record.id, town.scheduler.commands.cancel)))
    void = [row["void_in_all"] for row in record_of_promises(town.scheduler, None, record.request.user, None)["users"]]
    assert sum(void) == sum(one.actual_s is None for one in record.promises) > 0
