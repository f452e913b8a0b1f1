"""What happens to live jobs, in the past tense: what a site sees, and what users ask for.

An engine reports these; `live_jobs` says what each means for the scheduler's state, in the events of every engine.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

from fairway.core.event import Event, Woken
from fairway.runtime.processes.site import Outcome, Report

Command = Callable[[float], tuple[list[Event], Any]]
"""What a user asks for: given the present instant, it changes records and returns events and the answer."""


class AttemptStarted(NamedTuple):
    """A job's processes compute: they were started, or let go on (`resumed`)."""

    time_s: float
    job: int
    gpus: tuple[int, ...]
    resumed: bool


class AttemptEnded(NamedTuple):
    """An attempt is over. `found`: it ended while no scheduler was there."""

    time_s: float
    job: int
    outcome: Outcome
    found: bool = False


class Reported(NamedTuple):
    """A job has told of its training."""

    time_s: float
    job: int
    report: Report


class Asked(NamedTuple):
    """Somebody asks for something. The answer is given when all that it changed is on disk."""

    time_s: float
    command: Command
    answer: Future[Any]


class Looked(NamedTuple):
    """A moment has passed: jobs that report nothing may have run longer than expected."""

    time_s: float


Happening: TypeAlias = AttemptStarted | AttemptEnded | Reported | Asked | Looked | Woken


class Stop(NamedTuple):
    """Ask an attempt to stop. `hurry`: nobody wants what it would save."""

    job: int
    hurry: bool = False


class Converge(NamedTuple):
    """Go towards what is wanted of a job now."""

    job: int


class Settle(NamedTuple):
    """GPUs have become free: start the jobs that wait for them."""


Instruction: TypeAlias = Stop | Converge | Settle
