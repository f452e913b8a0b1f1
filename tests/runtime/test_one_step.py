"""What a command changes is written down together: records, events and facts, or nothing of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from live_scheduler import clear, live_scheduler, submit, until
from real_processes import wait_for

from fairway.core.event import JobUpdated
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import FILE_NAME, Settings
from fairway.runtime.jobs.commands import WrongStateError
from fairway.runtime.jobs.records import JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.database import DiskFullError, Journal

TERMS = "[users.ann]\npriority = 9\nweight = 3\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("fairway.runtime.journal.writer.FULL_RETRY_S", 0.01)
    yield tmp_path
    clear(tmp_path)


def _watched(scheduler: Scheduler, look: Callable[[Journal], Any], full: int = 0) -> list[Any]:
    """What `look` finds after every transaction from now on, of which the first few find the disk full."""
    journal, seen, left = scheduler.journal, list[Any](), [full]
    real = journal.transaction

    @contextmanager
    def transaction() -> Iterator[None]:
        if left[0]:
            left[0] -= 1
            raise DiskFullError("no room left")
        with real():
            yield
        seen.append(look(journal))

    journal.transaction = transaction  # type: ignore[method-assign]
    return seen


def _governing(scheduler: Scheduler) -> Settings:
    settings = Settings(scheduler.folder)
    settings.govern(scheduler)
    scheduler.ask(lambda now_s: ([], None))
    return settings


def _terms(journal: Journal) -> tuple[str, list[int], int]:
    """The configuration, the priorities of jobs, and how often they were told to the state, as they are on disk."""
    events = sum(isinstance(entry.thing, JobUpdated) for entry in journal.log())
    priorities = [stored.record["request"].get("priority", 0) for stored in journal.jobs()]
    return str(journal.facts().get("config", "")), priorities, events


@pytest.mark.parametrize("full", [0, 1, 3])
def test_new_terms_and_the_configuration_that_they_are_from_are_written_together(folder: Path, full: int) -> None:
    with live_scheduler(folder) as scheduler:
        settings = _governing(scheduler)
        job = submit(scheduler, ["true"], user="ann", hold=True)
        # The next round in which nothing is done is written down much later.
        wait_for(lambda: scheduler.journal.facts().get("round"), "the first round on disk")
        seen = _watched(scheduler, _terms, full)
        (folder / FILE_NAME).write_text(TERMS)
        settings.reload(scheduler)
        # Whoever asks after it is answered after it.
        scheduler.ask(lambda now_s: ([], None))
        assert seen[-1] == (TERMS, [9], 1)
        assert all(one in (("", [0], 0), (TERMS, [9], 1)) for one in seen)
        assert scheduler.state.snapshot().priority.tolist() == [9]
    with live_scheduler(folder) as scheduler:
        _governing(scheduler)
        request = scheduler.store[job.number].request
        assert (request.priority, request.weight) == (9, 3.0)
        assert scheduler.state.snapshot().priority.tolist() == [9]
        scheduler.cancel(job.id)


def test_a_configuration_that_changes_no_job_is_written_down_as_well(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:
        settings = _governing(scheduler)
        (folder / FILE_NAME).write_text(TERMS)
        settings.reload(scheduler)
        scheduler.ask(lambda now_s: ([], None))
        assert scheduler.journal.facts()["config"] == TERMS


@pytest.mark.parametrize("full", [0, 1, 3])
def test_another_policy_is_in_force_and_on_disk_when_that_is_answered(folder: Path, full: int) -> None:
    with live_scheduler(folder, policy_text="fifo") as scheduler:
        # Without jobs there are no rounds: nobody else writes.
        seen = _watched(scheduler, lambda journal: journal.facts(("policy",))["policy"], full)
        found: list[int] = []
        scheduler.writer.on_full.append(lambda: found.append(1))
        scheduler.set_policy(make_policy("las"), "las")
        assert seen == ["las"]
        assert (scheduler.policy_text, scheduler.guard.policy.name) == ("las", "las")
        assert len(found) == full


def test_facts_of_a_command_are_written_once(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:

        def command(now_s: float) -> tuple[list[Any], None]:
            scheduler.writer.keep({"one": 1})
            return [], None

        seen = _watched(scheduler, lambda journal: journal.facts(("one",)))
        scheduler.ask(command)
        assert seen == [{"one": 1}]
        scheduler.ask(lambda now_s: ([], None))
        assert len(seen) == 1


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_a_time_limit_that_a_running_job_cannot_be_told_changes_nothing(folder: Path, content: str | None) -> None:
    with live_scheduler(folder) as scheduler:
        job = until(submit(scheduler, ["sleep", "60"], name="before", limit_s=500.0), JobState.RUNNING)
        told = folder / "jobs" / job.id / "attempt-1" / "launch.json"
        wait_for((told.parent / "ranks.json").exists, "the job's processes")
        launch = told.read_text()
        told.unlink()
        if content is not None:
            told.write_text(content)
        with pytest.raises(WrongStateError, match=r"job 1 runs, and its time limit cannot be changed: .*launch\.json"):
            scheduler.update(job.id, {"limit_s": 100.0, "name": "after"})
        assert (job.request.limit_s, job.request.name) == (500.0, "before")
        scheduler.update(job.id, {"name": "after"})
        assert job.request.name == "after"
        told.write_text(launch)
        scheduler.update(job.id, {"limit_s": 100.0})
        assert job.request.limit_s == 100.0
        assert json.loads(told.read_text())["limit_s"] == pytest.approx(100.0, abs=60.0)
        scheduler.end_all()


def test_of_an_array_the_tasks_that_can_be_told_get_the_new_limit(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:
        requests = [JobRequest(("sleep", "60"), array_task=task) for task in (0, 1)]
        first, second = scheduler.submit(requests, array=True)
        for job in (first, second):
            until(job, JobState.RUNNING)
            wait_for((folder / "jobs" / job.id / "attempt-1" / "ranks.json").exists, "the job's processes")
        (folder / "jobs" / first.id / "attempt-1" / "launch.json").unlink()
        scheduler.update("1", {"limit_s": 100.0})
        assert (first.request.limit_s, second.request.limit_s) == (None, 100.0)
        stored = {job.id: job.record["request"].get("limit_s") for job in scheduler.journal.jobs()}
        assert stored == {first.id: None, second.id: 100.0}
        scheduler.end_all()
