"""What happens to live jobs, in the past tense: what a site sees, and what users ask for.

The live engine reports these. `live_jobs` translates each into the events that change the scheduler's state.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

from fairway.core.event import Event, Woken
from fairway.runtime.processes.site import Outcome, Report

Command = Callable[[float], tuple[list[Event], Any]]
"""A user's command: called with the present instant, it changes records and returns events and the answer."""


class AttemptStarted(NamedTuple):
    """A job's processes compute: they were started, or continued (`resumed`)."""

    time_s: float
    job: int
    gpus: tuple[int, ...]
    resumed: bool


class AttemptMoved(NamedTuple):
    """An attempt that is about to end has its GPUs under other numbers."""

    time_s: float
    job: int
    gpus: tuple[int, ...]


class AttemptEnded(NamedTuple):
    """An attempt is over. `found`: it ended while no scheduler was running."""

    time_s: float
    job: int
    outcome: Outcome
    found: bool = False


class Reported(NamedTuple):
    """A job has reported on its training."""

    time_s: float
    job: int
    report: Report


class Asked(NamedTuple):
    """A user gave a command. The answer is sent when everything that it changed is on disk."""

    time_s: float
    command: Command
    answer: Future[Any]


class Looked(NamedTuple):
    """Some time has passed: jobs that report nothing may have run longer than expected."""

    time_s: float


Happening: TypeAlias = AttemptStarted | AttemptMoved | AttemptEnded | Reported | Asked | Looked | Woken


class Stop(NamedTuple):
    """Ask an attempt to stop. `hurry`: what it would save is not needed."""

    job: int
    hurry: bool = False


class Converge(NamedTuple):
    """Bring the attempt of a job to its present target."""

    job: int


class Settle(NamedTuple):
    """GPUs have become free: start the jobs that wait for them."""


Instruction: TypeAlias = Stop | Converge | Settle
