"""Submissions of many jobs come piece by piece: all of them or none, once, and nobody takes a part for the whole."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError
from fairway.core.event import Event
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import FILE_NAME, Settings
from fairway.runtime.jobs.commands import StoppedError
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import Dependency, JobRequest
from fairway.testing.simulated_site import Behaviour, SimulatedJournal, SimulatedSite, SimulatedTime

CLUSTER = Cluster.of([Node("here", "fast", 1)], [GpuType("fast", 0, 0.0, 1.0)])


class World:
    """A scheduler in simulated time that takes two jobs in at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.time = SimulatedTime()
        self.site = SimulatedSite(self.time, lambda name: None)
        self.start()

    def start(self, recent: int = 1000) -> None:
        """Start a scheduler; an earlier one is killed."""
        self.settings = Settings(self.folder)
        self.scheduler = Scheduler(
            self.folder,
            CLUSTER,
            make_policy("fifo"),
            placement("packed"),
            terms=self.settings,
            journal=SimulatedJournal(self.folder / "journal.db", lambda name: None, lambda: False),
            site=self.site,
            time=self.time,
            piece=2,
            recent=recent,
        )
        self.settings.govern(self.scheduler)
        self.scheduler.begin()

    def kill(self) -> None:
        """Kill the scheduler."""
        self.scheduler.archive.close()
        self.scheduler.journal.close()

    def ids(self) -> list[str]:
        """The ids of all jobs in memory."""
        return [record.id for record in self.scheduler.store]

    def until_there(self, jobs: int) -> None:
        """Step until this many jobs are there."""
        while len(self.scheduler.store) < jobs:
            assert self.scheduler.loop.step()

    def answer(self, asked: Future[Any]) -> Any:
        """Step until there is an answer."""
        while not asked.done():
            assert self.scheduler.loop.step()
        return asked.result()

    def array(self, tasks: int, **about: Any) -> Future[list[JobRecord]]:
        """Submit an array of held tasks under a key."""
        return self.scheduler.submission(tasks_of(tasks, **about), array=True)


def tasks_of(tasks: int, **about: Any) -> list[JobRequest]:
    request = JobRequest(**{"command": Behaviour(1.0).command(), "user": "ann", "hold": True, **about})
    return [replace(request.task(number), client_key=f"key/{number}") for number in range(tasks)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.kill()


def test_others_come_in_between(world: World) -> None:
    array = world.array(6)
    world.until_there(2)
    other = world.scheduler.submission([JobRequest(("true",), user="bob", hold=True)])
    assert [one.id for one in world.answer(other)] == ["2"]
    assert not array.done()
    assert len(world.ids()) < 7
    assert [one.id for one in world.answer(array)] == [f"1_{task}" for task in range(6)]
    assert not world.scheduler.store.arriving


def test_a_long_list_has_ids_in_a_row(world: World) -> None:
    requests = [JobRequest(("true",), user="ann", name=f"{at}", hold=True) for at in range(5)]
    many = world.scheduler.submission(requests)
    world.until_there(2)
    other = world.scheduler.submission([requests[0]])
    assert [one.id for one in world.answer(other)] == ["6"]
    assert [(one.id, one.request.name) for one in world.answer(many)] == [(str(at + 1), f"{at}") for at in range(5)]


def test_nothing_comes_if_one_request_is_refused(world: World) -> None:
    (world.folder / FILE_NAME).write_text("[users.ann]\nmax_gpus_per_job = 0\n")
    world.answer(world.settings.reload(world.scheduler))
    bob = [JobRequest(("true",), user="bob", hold=True)] * 5
    with pytest.raises(InputError, match="user ann may have 0"):
        world.answer(world.scheduler.submission([*bob, replace(bob[0], user="ann")]))
    assert not world.ids()
    assert not world.scheduler.store.arriving


def test_two_arrays_together_do_not_pass_a_bound(world: World) -> None:
    (world.folder / FILE_NAME).write_text("[limits]\njobs_per_user = 9\n")
    world.answer(world.settings.reload(world.scheduler))
    first = world.array(6)
    world.until_there(2)
    keyless = [replace(task, client_key=None) for task in tasks_of(6)]
    with pytest.raises(InputError, match="12 jobs of user ann"):
        world.answer(world.scheduler.submission(keyless, array=True))
    assert len(world.answer(first)) == 6
    assert len(world.answer(world.scheduler.submission(keyless[:3], array=True))) == 3


@pytest.mark.parametrize("there", [0, 2, 4, 6])
def test_all_of_it_comes_though_the_scheduler_is_killed(world: World, there: int) -> None:
    env = {"A": "1"}
    world.array(6, env=env)
    while not world.scheduler.store.is_arriving("1"):
        world.scheduler.loop.step()
    world.until_there(there)
    world.kill()
    world.start()
    assert [one.id for one in world.answer(world.array(6, env=env))] == [f"1_{task}" for task in range(6)]
    records = [world.scheduler.store.get(f"1_{task}") for task in range(6)]
    assert [one and (one.request.client_key, dict(one.request.env)) for one in records] == [
        (f"key/{task}", env) for task in range(6)
    ]
    assert len(world.ids()) == 6
    assert not any(name.startswith("arriv") for name in world.scheduler.journal.facts())
    held = world.scheduler.store.held
    assert (len(held), held.jobs["ann"], dict(held.promised)) == (6, 6, {})


def test_a_list_of_different_jobs_comes_though_the_scheduler_is_killed(world: World) -> None:
    requests = [JobRequest(("true", str(at)), user="ann", env={"A": str(at)}, hold=True) for at in range(5)]
    world.scheduler.submission(requests)
    world.until_there(2)
    world.kill()
    world.start()
    world.until_there(5)
    made = [(one.id, one.request.command, one.request.env) for one in world.scheduler.store]
    assert made == [(str(at + 1), ("true", str(at)), {"A": str(at)}) for at in range(5)]


def test_no_id_is_used_again_after_jobs_came_in_between(world: World) -> None:
    array = world.array(6)
    world.until_there(2)
    other = world.answer(world.scheduler.submission([JobRequest(("true",), user="bob", hold=True)]))[0].id
    world.answer(array)
    for name in (other, "1"):
        world.answer(world.scheduler.cancellation(name))
    world.kill()
    world.start(recent=0)
    assert world.answer(world.scheduler.submission([JobRequest(("true",), user="bob", hold=True)]))[0].id == "3"


def test_the_same_submission_is_one_array_while_it_arrives(world: World) -> None:
    both = [world.array(5), world.array(5)]
    first, second = (world.answer(one) for one in both)
    assert first == second
    assert len(world.ids()) == 5


def test_what_is_done_to_an_array_is_done_to_all_of_it(world: World) -> None:
    array = world.array(5)
    world.until_there(2)
    cancelled = world.answer(world.scheduler.cancellation("1"))
    assert len(cancelled) == 5
    assert {one.state for one in cancelled} == {JobState.CANCELLED}
    assert array.done()


def test_a_job_that_depends_on_an_array_waits_for_all_of_it(world: World) -> None:
    world.array(5)
    world.until_there(2)
    after = JobRequest(Behaviour(1.0).command(), user="bob", depends=(Dependency("afterany", "1"),))
    (job,) = world.answer(world.scheduler.submission([after]))
    assert len(world.ids()) == 6
    for task in range(5):
        assert "waits for job 1" in world.scheduler.guard.outside[job.number]
        world.answer(world.scheduler.cancellation(f"1_{task}"))
    assert job.number not in world.scheduler.guard.outside


def test_part_of_an_array_that_has_ended_is_not_forgotten(world: World) -> None:
    scheduler = world.scheduler
    array = world.array(10)
    world.until_there(2)
    records = list(scheduler.store)

    def end(now_s: float) -> tuple[list[Event], None]:
        for record in records:
            scheduler.store.touch(record)
        return [event for record in records for event in scheduler.commands.cancel(record, now_s)], None

    world.answer(scheduler.engine.ask(end))
    forgetting = scheduler.forgetting([record.number for record in records])
    assert all(record.settled for record in records)
    assert scheduler.store.is_arriving("1")
    assert world.answer(scheduler.engine.ask(forgetting)) == 0
    world.answer(array)
    assert world.answer(scheduler.engine.ask(forgetting)) == 2


def test_a_scheduler_that_stops_meanwhile_says_so(world: World) -> None:
    array = world.array(6)
    world.until_there(2)
    world.scheduler.close()
    world.scheduler.stop()
    with pytest.raises(StoppedError):
        array.result(0)
    world.start()
    world.until_there(6)


def test_tasks_get_the_terms_that_are_in_force_when_they_come(world: World) -> None:
    world.array(6)
    world.until_there(2)
    (world.folder / FILE_NAME).write_text("[users.ann]\npriority = 7\n")
    world.kill()
    world.start()
    world.until_there(6)
    assert {one.request.priority for one in world.scheduler.store} == {7}
