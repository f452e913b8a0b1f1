"""Short stories of the real scheduler on a simulated site, each about one law that a random story once broke."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fairway.api.what_if import what_if
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.event import RestartMeasured
from fairway.models.log_progress import LogProgress
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon import engine
from fairway.runtime.daemon.clock import FACT
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import FILE_NAME, Settings
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import Dependency, JobRequest
from fairway.testing.simulated_site import Behaviour, SimulatedJournal, SimulatedSite, SimulatedTime


class Story:
    """A scheduler in simulated time, where nothing happens unless a test says so."""

    def __init__(
        self,
        folder: Path,
        policy: str = "fifo",
        gpus: int = 1,
        min_run_s: float | None = 0.0,
        round_s: float | None = None,
    ) -> None:
        self.folder = folder
        self.time = SimulatedTime()
        self.site = SimulatedSite(self.time, lambda name: None)
        self.cluster = Cluster.of([Node("here", "fast", gpus)], [GpuType("fast", 0, 0.0, 1.0)])
        self.policy = policy
        self.min_run_s, self.round_s = min_run_s, round_s
        self.scheduler = self._made()

    def _made(self) -> Scheduler:
        self.settings = Settings(self.folder)
        scheduler = Scheduler(
            self.folder,
            self.cluster,
            make_policy(self.policy),
            placement("packed"),
            devices=[f"gpu-{number}" for number in range(self.cluster.gpu_count)],
            round_s=self.round_s,
            min_run_s=self.min_run_s,
            policy_text=self.policy,
            terms=self.settings,
            journal=SimulatedJournal(self.folder / "journal.db", lambda name: None, lambda: False),
            site=self.site,
            time=self.time,
        )
        self.settings.govern(scheduler)
        scheduler.begin()
        # The scheduler has no thread of its own here.
        scheduler.ask = lambda command: self.answer(scheduler.engine.ask(command))  # type: ignore[method-assign]
        return scheduler

    def restart(self, away_s: float = 0.0) -> None:
        """The scheduler is killed; another one follows it after a while."""
        self.scheduler.journal.close()
        self.site.let_pass(away_s)
        self.scheduler = self._made()

    def submit(self, behaviour: Behaviour, **about: Any) -> Future[Any]:
        """Submit a job, without waiting for the answer."""
        request = JobRequest(command=behaviour.command(), **about)
        return self.scheduler.submission([request])

    def answer(self, asked: Future[Any]) -> Any:
        """Wait for an answer."""
        self.until(asked.done)
        return asked.result()

    def array(self, behaviour: Behaviour, tasks: int, **about: Any) -> list[str]:
        """Submit an array; returns the ids of its tasks."""
        request = JobRequest(command=behaviour.command(), **about)
        made = [request.task(number) for number in range(tasks)]
        asked = self.scheduler.submission(made, array=True)
        return [record.id for record in self.answer(asked)]

    def job(self, behaviour: Behaviour, **about: Any) -> str:
        """Submit a job; returns its id."""
        records: list[JobRecord] = self.answer(self.submit(behaviour, **about))
        return records[0].id

    def do(self, verb: str, name: str) -> None:
        """Do something to a job."""
        act = getattr(self.scheduler.commands, verb)
        self.answer(self.scheduler.engine.ask(self.scheduler.commands.each(name, act)))

    def change_policy(self, text: str) -> None:
        """Change to another policy."""
        self.answer(self.scheduler.engine.ask(self.scheduler.policy_change(make_policy(text), text)))

    def states(self, *names: str) -> list[JobState]:
        """The present states of jobs."""
        return [self.record(name).state for name in names]

    def record(self, name: str) -> JobRecord:
        """The present record of a job."""
        found = self.scheduler.store.get(name)
        assert found is not None
        return found

    def until(self, holds: Callable[[], bool], most_s: float = 600.0) -> None:
        """Let time pass until something is so."""
        deadline_s = self.time.monotonic() + most_s
        while not holds():
            assert self.time.monotonic() < deadline_s, f"not within {most_s:g} s"
            assert self.scheduler.loop.step()

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        end_s = self.time.monotonic() + seconds
        self.until(lambda: self.time.monotonic() >= end_s, seconds + 60.0)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Callable[..., Story]]:
    stories: list[Story] = []

    def begin(*about: Any, **more: Any) -> Story:
        stories.append(Story(tmp_path, *about, **more))
        return stories[-1]

    yield begin
    for story in stories:
        story.scheduler.journal.close()


FOREVER = Behaviour(1e9)


def test_a_job_submitted_just_before_the_configuration_changes_gets_its_new_terms_once(
    told: Callable[..., Story],
) -> None:
    story = told()
    asked = story.submit(FOREVER, user="ann", priority=1)
    (story.folder / FILE_NAME).write_text("[users.ann]\npriority = 5\n")
    story.settings.reload(story.scheduler)
    record = story.answer(asked)[0]
    story.pass_s(1.0)
    assert record.request.priority == 6
    assert story.settings.config.user_of("ann").priority == 5


@pytest.mark.parametrize("grace_s", [60.0, 90.0, 240.0])
@pytest.mark.parametrize("policy", ["gandiva:pack=1", "gandiva_fair", "proportional:quantum_s=60", "max_min_fairness"])
def test_a_job_that_needs_a_whole_turn_to_stop_does_not_starve_the_others(
    told: Callable[..., Story], policy: str, grace_s: float
) -> None:
    story = told(policy, min_run_s=5.0)
    stubborn = Behaviour(1e9, on_term="ignores")
    story.job(stubborn, preempt="checkpoint", grace_s=grace_s)
    story.pass_s(10.0)
    other = story.job(Behaviour(100.0), preempt="checkpoint", grace_s=10.0)
    story.until(lambda: story.record(other).state is JobState.COMPLETED, 3000.0)


@pytest.mark.parametrize(("min_run_s", "spared_s"), [(None, 30.0), (5.0, 6.0)])
def test_a_job_that_starts_is_left_alone_until_it_may_have_started(
    told: Callable[..., Story], min_run_s: float | None, spared_s: float
) -> None:
    story = told(min_run_s=min_run_s)
    first = story.job(FOREVER, preempt="restart")
    story.until(lambda: story.record(first).state is JobState.RUNNING)
    began_s = story.time.monotonic()
    story.pass_s(6.0)
    urgent = story.job(Behaviour(10.0), priority=5)
    story.until(lambda: story.record(urgent).state is JobState.RUNNING)
    assert spared_s <= story.time.monotonic() - began_s < spared_s + 2.0


def test_what_starts_of_a_job_were_seen_to_cost_protects_its_next_one(told: Callable[..., Story]) -> None:
    story = told(min_run_s=None)
    first = story.job(FOREVER, preempt="checkpoint")
    number = story.record(first).number

    def spared_s() -> float:
        snapshot = story.scheduler.state.snapshot()
        row = snapshot.jobs.tolist().index(number)
        return float(snapshot.protected_until_s[row] - snapshot.since_s[row])

    def preempted() -> None:
        urgent = story.job(Behaviour(1.0), priority=5)
        story.until(lambda: story.record(urgent).state is JobState.COMPLETED)
        story.until(lambda: story.record(first).state is JobState.RUNNING)

    story.pass_s(20.0)
    assert spared_s() == pytest.approx(30.0)
    # Its log says for the first time that it has done 30 steps, at two a second: its start took 5 s.
    story.scheduler.engine.note_log(number, 1, LogProgress("bar", "step", 30.0, 1e9, 2.0))
    story.until(lambda: story.record(first).attempts[0].start_s is not None)
    start_s = story.record(first).attempts[0].start_s
    assert start_s == pytest.approx(5.0, abs=2.0)
    preempted()
    stop_s = story.record(first).attempts[0].stop_s
    assert stop_s == pytest.approx(0.5, abs=0.1)
    assert spared_s() == pytest.approx(3.0 * (start_s + stop_s), abs=0.01)
    # A scheduler that starts again says the same.
    before_s = spared_s()
    story.restart()
    assert spared_s() == before_s
    # A start that was measured far too long does not keep others out for ever.
    for attempt in story.record(first).attempts:
        attempt.start_s = 1e6
    story.scheduler.state.apply(RestartMeasured(story.scheduler.state.now_s, number, 1e6))
    preempted()
    assert spared_s() == pytest.approx(600.0)


def test_a_held_task_that_is_taken_off_its_gpus_gives_its_place_to_the_next_one(told: Callable[..., Story]) -> None:
    story = told(gpus=4)
    first, second = story.array(FOREVER, 2, array_at_once=1, preempt="checkpoint")
    story.pass_s(10.0)
    story.do("hold", first)
    story.pass_s(10.0)
    assert story.states(first, second) == [JobState.RUNNING, JobState.PENDING]
    story.do("requeue", first)
    story.pass_s(10.0)
    assert story.states(first, second) == [JobState.PREEMPTED, JobState.RUNNING]


def test_after_a_restart_the_task_that_has_gpus_has_the_place_of_its_array(told: Callable[..., Story]) -> None:
    story = told()
    stubborn = Behaviour(1e9, on_term="ignores")
    first, second = story.array(stubborn, 2, array_at_once=1, preempt="checkpoint", grace_s=60.0)
    story.pass_s(10.0)
    story.do("hold", first)
    story.do("requeue", first)
    story.until(lambda: story.record(second).number in story.scheduler.state.held_gpus)
    story.do("release", first)
    story.restart()
    story.pass_s(100.0)
    assert story.states(first, second) == [JobState.PREEMPTED, JobState.RUNNING]
    assert "of its array" in story.scheduler.guard.outside[story.record(first).number]


def _sharing(story: Story) -> tuple[str, str]:
    """A host, and a guest on its GPU."""
    host = story.job(Behaviour(500.0), preempt="checkpoint")
    story.pass_s(20.0)
    guest = story.job(FOREVER, preempt="checkpoint", priority=-1)
    story.until(lambda: story.record(guest).state is JobState.RUNNING)
    assert story.scheduler.jobs.target(story.record(guest).number).host == story.record(host).number  # type: ignore[union-attr]
    return host, guest


def test_decisions_go_on_after_a_change_from_a_policy_that_shares_to_one_that_does_not(
    told: Callable[..., Story],
) -> None:
    story = told("antman")
    host, guest = _sharing(story)
    story.change_policy("fifo")
    story.pass_s(20.0)
    assert story.scheduler.guard.problem == ""
    assert story.states(host, guest) == [JobState.RUNNING, JobState.PREEMPTED]
    story.do("cancel", host)
    story.pass_s(20.0)
    assert story.states(guest) == [JobState.RUNNING]


def test_after_a_restart_a_guest_whose_host_has_ended_has_the_gpu_for_itself(told: Callable[..., Story]) -> None:
    story = told("antman")
    host, guest = _sharing(story)
    story.restart(away_s=600.0)
    story.pass_s(20.0)
    target = story.scheduler.jobs.target(story.record(guest).number)
    assert story.states(host, guest) == [JobState.COMPLETED, JobState.RUNNING]
    assert target is not None
    assert (target.host, target.throttle) == (-1, 1.0)


HOUR_S, YEARS_S = 3600.0, 10 * 365 * 86400.0


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S, YEARS_S, -YEARS_S])
def test_a_step_of_the_time_of_day_is_no_run_time(told: Callable[..., Story], by_s: float) -> None:
    story = told()
    job = story.job(Behaviour(100.0), preempt="checkpoint", limit_s=600.0)
    story.pass_s(3.0)
    story.time.set_date(by_s)
    story.do("requeue", job)
    story.until(lambda: story.record(job).state is JobState.RUNNING)
    assert story.record(job).ran_s == pytest.approx(3.0, abs=0.1)
    story.time.set_date(-by_s)
    story.until(lambda: story.record(job).state.ended)
    record = story.record(job)
    assert record.state is JobState.COMPLETED
    # The half second in which it stopped is not counted.
    assert record.ran_s == pytest.approx(99.5, abs=0.1)
    assert record.ended_s is not None
    assert record.ended_s - record.submitted_s == pytest.approx(100.0, abs=0.1)


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S, YEARS_S, -YEARS_S])
def test_a_step_while_no_scheduler_runs_is_no_run_time(told: Callable[..., Story], by_s: float) -> None:
    story = told(gpus=2)
    done, running = story.job(Behaviour(30.0), limit_s=600.0), story.job(Behaviour(100.0), limit_s=600.0)
    story.pass_s(10.0)
    story.time.set_date(by_s)
    story.restart(away_s=50.0)
    assert story.record(done).ran_s == pytest.approx(30.0, abs=0.1)
    story.until(lambda: story.record(running).state.ended)
    assert story.states(done, running) == [JobState.COMPLETED, JobState.COMPLETED]
    assert story.record(running).ran_s == pytest.approx(100.0, abs=0.1)


def test_a_jump_of_ten_years_is_gone_when_it_is_taken_back(told: Callable[..., Story]) -> None:
    story = told()
    story.pass_s(10.0)
    story.time.set_date(YEARS_S)
    story.pass_s(10.0)
    story.restart()
    story.time.set_date(-YEARS_S)
    story.restart()
    clock = story.scheduler.clock
    assert clock.now_s() == pytest.approx(20.0, abs=1.0)
    assert clock.today_s(clock.now_s()) == pytest.approx(story.time.time(), abs=0.01)


def test_pauses_before_retries_are_not_cut_short_by_a_step(told: Callable[..., Story]) -> None:
    story = told()
    job = story.job(Behaviour(1.0, fails=1), retries=1)
    story.until(lambda: story.record(job).state is JobState.PENDING and bool(story.record(job).attempts))
    story.time.set_date(HOUR_S)
    began_s = story.time.monotonic()
    story.until(lambda: story.record(job).state is JobState.RUNNING)
    assert story.time.monotonic() - began_s == pytest.approx(5.0, abs=0.1)


def test_a_begin_time_is_a_time_of_day_and_is_looked_at_again_when_that_is_set(told: Callable[..., Story]) -> None:
    story = told(gpus=2)
    soon = story.job(Behaviour(10.0), begin_s=story.time.time() + HOUR_S)
    later = story.job(Behaviour(10.0), begin_s=story.time.time() + 60.0)
    story.pass_s(1.0)
    story.time.set_date(-HOUR_S)
    story.pass_s(120.0)
    assert story.states(soon, later) == [JobState.PENDING, JobState.PENDING]
    story.time.set_date(2 * HOUR_S)
    story.pass_s(20.0)
    assert story.states(soon, later) == [JobState.COMPLETED, JobState.COMPLETED]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_whose_time_has_come_no_more_loses_the_gpus_that_it_waits_for(
    told: Callable[..., Story], restarts: bool
) -> None:
    story = told("srtf")
    slow = story.job(Behaviour(1e9, on_term="ignores"), preempt="checkpoint", grace_s=60.0, expected_s=1e6)
    story.pass_s(10.0)
    job = story.job(Behaviour(10.0), begin_s=story.time.time() + 10.0, expected_s=10.0)
    story.until(lambda: story.record(job).number in story.scheduler.state.held_gpus)
    story.time.set_date(-HOUR_S)
    if restarts:
        story.restart()
    story.pass_s(100.0)
    assert story.states(slow, job) == [JobState.RUNNING, JobState.PENDING]
    assert "not before" in story.scheduler.guard.outside[story.record(job).number]
    story.time.set_date(2 * HOUR_S)
    story.until(lambda: story.record(job).state is JobState.COMPLETED)


def test_after_a_reboot_with_a_wrong_date_jobs_go_on(told: Callable[..., Story]) -> None:
    story = told()
    job = story.job(Behaviour(100.0), limit_s=600.0)
    story.pass_s(22.0)
    for attempt in story.site.alive():
        story.site.kill_keeper(attempt)
    story.time.reboot(600.0)
    story.time.set_date(-YEARS_S)
    story.restart()
    assert story.record(job).ran_s == pytest.approx(20.0, abs=5.0)
    story.until(lambda: story.record(job).state.ended)
    assert story.states(job) == [JobState.COMPLETED]
    assert story.record(job).ran_s == pytest.approx(120.0, abs=5.0)


def test_the_journal_of_an_earlier_version_is_gone_on_with(told: Callable[..., Story]) -> None:
    story = told()
    job = story.job(Behaviour(100.0), limit_s=600.0)
    story.pass_s(10.0)
    journal = story.scheduler.journal
    (stored,) = journal.jobs()
    del stored.record["attempts"][0]["ran_s"]
    with journal.transaction():
        journal.save_jobs([stored])
        journal._db.execute("DELETE FROM facts WHERE name = ?", (FACT,))
    story.restart(away_s=20.0)
    assert story.scheduler.clock.now_s() == pytest.approx(30.0, abs=0.1)
    story.until(lambda: story.record(job).state.ended)
    assert story.record(job).ran_s == pytest.approx(100.0, abs=0.1)


def test_speeds_count_by_the_time_since_the_boot(told: Callable[..., Story]) -> None:
    story = told()
    job = story.job(FOREVER)
    reports = story.site._reports.setdefault(job, [])
    for step in range(5):
        reports.append({"step": 10 * step, "time": story.time.time(), "uptime": story.time.uptime()})
        story.pass_s(1.0)
        reports.append({"step": 10 * step + 5, "time": story.time.time(), "uptime": story.time.uptime()})
        story.time.set_date(HOUR_S)
        story.pass_s(1.0)
    assert story.record(job).progress.steps_per_s == pytest.approx(5.0, rel=0.01)


def test_a_stream_of_submissions_shares_its_rounds(told: Callable[..., Story]) -> None:
    """The first one has a round at once, those of the next 10 ms have one together."""
    story = told()
    story.job(FOREVER, preempt="never")
    story.pass_s(1.0)
    begun_s, before, asked = story.time.monotonic(), story.scheduler.state.round, list[Future[Any]]()
    for number in range(100):
        story.site.at(begun_s + 0.002 * number, lambda: asked.append(story.submit(FOREVER)))
    story.until(lambda: len(asked) == 100 and all(one.done() for one in asked))
    story.pass_s(engine.MOST_REST_S)
    decision = story.scheduler.loop.decision
    assert decision is not None
    assert len(decision.gpus) == 101
    assert 2 <= story.scheduler.state.round - before <= 2 * 0.2 / engine.REST_S + 2


def test_rounds_of_their_own_times_are_not_missed_for_a_command(told: Callable[..., Story]) -> None:
    story = told(round_s=0.5)
    clock = story.scheduler.clock
    for number in range(1, 6):
        # Just before a round, which has to take this job up.
        round_s = clock.now_s() + 5.5 - clock.now_s() % 0.5
        due_s = story.time.monotonic() + round_s - clock.now_s() - 0.01
        story.until(lambda due_s=due_s: story.time.monotonic() >= due_s - 0.25)  # type: ignore[misc]
        asked = list[Future[Any]]()
        story.site.at(due_s, lambda asked=asked: asked.append(story.submit(Behaviour(0.1))))  # type: ignore[misc]
        story.until(lambda asked=asked: bool(asked) and asked[0].done())  # type: ignore[misc]
        story.until(lambda number=number: story.record(str(number)).state is JobState.COMPLETED)  # type: ignore[misc]
        record = story.record(str(number))
        assert record.started_s is not None
        assert record.started_s - clock.origin_s == pytest.approx(round_s, abs=0.001)


def test_no_round_is_missed_because_something_else_happens_just_then(told: Callable[..., Story]) -> None:
    story = told("proportional", gpus=2, round_s=0.1)
    for _ in range(4):
        story.job(Behaviour(60.0))
    story.pass_s(1.0)
    begun_s, before, answered = story.time.monotonic(), story.scheduler.state.round, list[Future[Any]]()
    for number in range(430):
        ask = lambda: answered.append(story.scheduler.engine.ask(lambda now_s: ([], None)))  # noqa: E731
        story.site.at(begun_s + 0.007 * number, ask)
    story.until(lambda: story.time.monotonic() >= begun_s + 3.0)
    assert story.scheduler.state.round - before >= 30
    assert len(answered) >= 428


def test_rounds_that_should_have_been_are_not_all_made_up_for(told: Callable[..., Story]) -> None:
    story = told("proportional", gpus=2, round_s=0.1)
    for _ in range(4):
        story.job(Behaviour(60.0))
    story.pass_s(1.0)
    before = story.scheduler.state.round
    story.answer(story.scheduler.engine.ask(lambda now_s: ([], story.time.sleep(20.0))))
    story.pass_s(0.5)
    assert 5 <= story.scheduler.state.round - before <= 8


def test_estimates_come_true(told: Callable[..., Story]) -> None:
    story = told("backfill", gpus=2)
    jobs = [(1.5, {}), (3.0, {}), (2.0, {"gpus": 2}), (1.0, {}), (0.5, {"depends": (Dependency("afterok", "3"),)})]
    names = [story.job(Behaviour(seconds), expected_s=seconds, **about) for seconds, about in jobs]
    foretold = {row["id"]: row["finish_s"] for row in what_if(story.scheduler)["jobs"]}
    story.until(lambda: all(story.record(name).state.ended for name in names))
    assert {name: story.record(name).ended_s for name in names} == pytest.approx(foretold, abs=0.1)
