"""The real scheduler through hours of simulated life, with faults: every seed is a story in which the laws hold.

A failing seed prints the command that repeats it. `make soak SEEDS=100000 FIRST=1000` lives through as many as there is
patience for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from fairway.core.action import Action
from fairway.core.event import Event, NodeLost
from fairway.core.state import State
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.engine import LiveEngine
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs import life
from fairway.runtime.jobs.commands import Commands
from fairway.runtime.jobs.life import Instruction, Stop
from fairway.runtime.jobs.live_jobs import LiveJobs
from fairway.runtime.jobs.live_nodes import LiveNodes
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.waiting import Eligibility
from fairway.runtime.journal.database import Journal
from fairway.runtime.processes.site import Outcome
from fairway.testing.daemon_laws import BrokenLawError, Laws
from fairway.testing.daemon_world import live_through
from fairway.testing.seeds import ALL, first_seed

STORIES = 500 if ALL else 15
CHUNK = 5


@pytest.mark.parametrize("nodes", [False, True], ids=["one node", "several nodes"])
@pytest.mark.parametrize("chunk", range(STORIES // CHUNK))
def test_all_laws_hold_in_every_story(chunk: int, nodes: bool) -> None:
    for seed in range(first_seed() + chunk * CHUNK, first_seed() + (chunk + 1) * CHUNK):
        try:
            live_through(seed, nodes=nodes)
        except BaseException as error:
            which = f"--seed {seed}{' --nodes' * nodes}"
            pytest.fail(f"python -m fairway.testing.daemon_world {which}  # {type(error).__name__}: {error}")


@pytest.mark.parametrize("seed", [227, 1131, 1399, 1904, 3478, 5978, 7883, 13399, 14384, 20046])
def test_stories_that_once_failed_hold(seed: int) -> None:
    """Turns of gandiva that never ended, virtual GPUs that changed numbers too early, hosts that a limit has cut,
    guests of antman that were larger than their hosts, starts that were tried again before their refusal was handled.
    """
    live_through(seed)


@pytest.mark.parametrize("seed", [277, 644, 3416])
def test_stories_of_several_nodes_that_once_failed_hold(seed: int) -> None:
    """A gang that waited for ranks on a lost node, a job that was started again before its end was known."""
    live_through(seed, nodes=True)


def test_a_story_is_the_same_every_time() -> None:
    one, other = live_through(11), live_through(11)
    assert (one.steps, one.kills, one.users.promised) == (other.steps, other.kills, other.users.promised)
    assert one.time.time() == other.time.time()


def _fails(first: int = 0, *, nodes: bool = False) -> str:
    """The first law that a broken scheduler breaks. `first` is a story in which it does; others come after it."""
    for seed in range(first, first + 200):
        try:
            live_through(seed, nodes=nodes)
        except BrokenLawError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def test_a_scheduler_that_forgets_to_stop_cancelled_jobs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LiveEngine.carry_out

    def forgetful(engine: LiveEngine, instructions: list[Instruction]) -> None:
        real(engine, [one for one in instructions if not (isinstance(one, Stop) and one.hurry)])

    monkeypatch.setattr(LiveEngine, "carry_out", forgetful)
    assert _fails(1)


def test_a_scheduler_that_acts_before_it_writes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LiveEngine.enact

    def hasty(engine: LiveEngine, now_s: float, actions: list[Action]) -> object:
        monkeypatch.setattr(engine, "_save", lambda: None)
        return real(engine, now_s, actions)

    monkeypatch.setattr(LiveEngine, "enact", hasty)
    assert _fails(8)


def test_a_life_that_brings_jobs_back_from_the_dead_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = life.move

    def careless(record: JobRecord, to: JobState, date_s: float, why: str = "") -> None:
        real(record, JobState.PENDING if to is JobState.FAILED else to, date_s, why)

    monkeypatch.setattr(life, "move", careless)
    assert _fails()


def test_a_clock_that_follows_the_time_of_day_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def following(clock: Clock) -> float:
        return clock.source.time() - clock.origin_s

    monkeypatch.setattr(Clock, "now_s", following)
    assert _fails()


def test_run_times_that_are_differences_of_dates_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LiveEngine._ended_s

    def dated(engine: LiveEngine, outcome: Outcome, now_s: float) -> float:
        ended = outcome.ended and outcome.ended._replace(boot="")
        return real(engine, outcome._replace(ended=ended), now_s)

    monkeypatch.setattr(LiveEngine, "_ended_s", dated)
    monkeypatch.setattr(JobRecord, "count_attempt", lambda record, ran_s: None)
    assert "books" in _fails(194)


def test_begin_times_that_are_not_looked_at_again_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveJobs, "look_at_begin_times", lambda jobs, now_s, shift_s: [])
    assert "time" in _fails(17)


def test_a_change_of_policy_that_leaves_guests_where_they_are_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(commands: Commands, now_s: float) -> list[Event]:
        return []

    monkeypatch.setattr(Commands, "guests_off", careless)
    assert "the policy decides" in _fails(386)


def test_a_restart_that_leaves_guests_to_hosts_that_have_ended_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "settle_guests", lambda state: None)
    assert _fails(19)


def test_a_retention_that_takes_jobs_that_others_await_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    really_awaited = Eligibility.awaited
    monkeypatch.setattr(Eligibility, "awaited", lambda eligibility: set())
    real = Laws._check_promises

    def knowing(laws: Laws, scheduler: Scheduler) -> None:
        awaited = really_awaited(scheduler.jobs.eligibility)
        monkeypatch.setattr(scheduler.jobs.eligibility, "awaited", lambda: awaited)
        try:
            real(laws, scheduler)
        finally:
            monkeypatch.delattr(scheduler.jobs.eligibility, "awaited")

    monkeypatch.setattr(Laws, "_check_promises", knowing)
    assert "others depend on it" in _fails(12)


def test_a_retention_that_uses_ids_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Journal.set_facts

    def forgetful(journal: Journal, facts: Mapping[str, Any]) -> None:
        real(journal, {name: value for name, value in facts.items() if name != "next"})

    monkeypatch.setattr(Journal, "set_facts", forgetful)
    assert "is used again" in _fails(10)


def test_a_cancel_on_a_full_disk_that_leaves_no_mark_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(engine: LiveEngine, record: JobRecord) -> bool:
        return record.number in engine.attempts.live

    monkeypatch.setattr(LiveEngine, "give_up", careless)
    assert "was cancelled and has ended" in _fails(510)


def test_a_scheduler_that_leaves_jobs_on_lost_nodes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveNodes, "_lost", lambda nodes, record, node, now_s: [])
    assert "has GPUs on lost nodes" in _fails(nodes=True)


def test_a_scheduler_that_starts_jobs_on_nodes_that_do_not_answer_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveNodes, "_blocked", lambda nodes: {})
    assert "are not started on nodes that are away" in _fails(nodes=True)


def test_a_scheduler_that_makes_jobs_pay_for_lost_nodes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = life.verdict

    def unfair(outcome: Outcome, *, asked: bool) -> life.Verdict:
        judged = real(outcome, asked=asked)
        return judged._replace(next="retry") if judged.next == "lost" else judged

    monkeypatch.setattr("fairway.runtime.jobs.live_jobs.verdict", unfair)
    monkeypatch.setattr("fairway.runtime.jobs.live_jobs.NODE_LOST", "never")
    assert "has failed" in _fails(nodes=True)


def test_a_log_that_forgets_lost_nodes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Journal.append

    def forgetful(journal: Journal, things: Iterable[Any], round_number: int = 0) -> None:
        real(journal, [one for one in things if not isinstance(one, NodeLost)], round_number)

    monkeypatch.setattr(Journal, "append", forgetful)
    assert "the same lost nodes" in _fails(nodes=True)
