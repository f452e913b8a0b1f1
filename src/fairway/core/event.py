"""What has happened, in the past tense. Engines report events; only `State.apply` turns them into state.

`job` is always the job's number: 0, 1, 2 … in the order of submission, the same in every engine.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

from fairway.core.batch import BatchLimits, LocalLimits, Timing
from fairway.core.job import JobSpec, LossCurve
from fairway.core.prospect import Prospect
from fairway.core.queues import OpenRound, TaskTerms


class JobSubmitted(NamedTuple):
    """A user asked for a job. `speeds` is its rate on its own gang for each GPU type (0: cannot run there).

    What else an engine may know: `scaling`, the job's steps per second on 1, 2, … `gpus_max` GPUs; `loss`, how its
    training loss falls; `steps_left`, for jobs whose steps are not their progress; `prospect`, the batch sizes that it
    may go through; `tasks`, what its tasks are like. `since_s` is when the user asked, where an engine notices the job
    only later.
    """

    time_s: float
    job: int
    spec: JobSpec
    work: float
    speeds: tuple[float, ...]
    restart_s: float
    regime_end: float
    tail_s: float
    scaling: tuple[float, ...] = ()
    loss: LossCurve | None = None
    steps_left: float = math.nan
    since_s: float = math.nan
    prospect: Prospect | None = None
    tasks: TaskTerms | None = None


class JobStarted(NamedTuple):
    """A launched, moved or resized job holds its GPUs; it makes progress at `rate` from `ready_s` on."""

    time_s: float
    job: int
    rate: float
    ready_s: float


class RateChanged(NamedTuple):
    """A job was seen at `progress` and runs at `rate` from now on: a new partner, or a report of a live job.

    `ran_s` is how long it computed in the round that ends now, where an engine counts that by rounds. `epochs`, `loss`
    and `noise_scale` are what a live job has reported about its training so far.
    """

    time_s: float
    job: int
    progress: float
    rate: float
    ran_s: float = math.nan
    epochs: float = math.nan
    loss: float = math.nan
    noise_scale: float = math.nan


class TasksChanged(NamedTuple):
    """Tasks of a job have begun or ended. They run on these GPUs now, and the job makes progress at `rate`.

    `round` is the round that is open; None between two rounds.
    """

    time_s: float
    job: int
    gpus: tuple[int, ...]
    progress: float
    rate: float
    round: OpenRound | None


class RegimeEntered(NamedTuple):
    """A job adapted its batch size at `progress`; `speeds`, `regime_end` and `tail_s` are those of the new regime.

    `work` is the whole work where its unit changes with the regime: a step at another batch size is another amount of
    work. `scaling` and `prospect` are those of the new regime, where an engine reports them and they have changed.
    """

    time_s: float
    job: int
    progress: float
    rate: float
    batch_size: int
    speeds: tuple[float, ...]
    regime_end: float
    tail_s: float
    steps_left: float = math.nan
    work: float = math.nan
    scaling: tuple[float, ...] = ()
    prospect: Prospect | None = None


class JobMeasured(NamedTuple):
    """A job whose batch size a scheduler may choose has said something about itself.

    `limits` are the batch sizes that it allows, `timing` is how long its steps take where it is, and `noise_scale` is
    that of its gradients. What it does not say this time is None or NaN. `local_limits` come with `limits`, and say on
    which GPU types other mini-batches are possible.
    """

    time_s: float
    job: int
    limits: BatchLimits | None = None
    timing: Timing | None = None
    noise_scale: float = math.nan
    local_limits: LocalLimits = ()


class JobUpdated(NamedTuple):
    """The owner changed the terms of a job."""

    time_s: float
    job: int
    weight: float
    priority: int
    deadline_s: float


class RestartMeasured(NamedTuple):
    """A stop and restart of a job was seen to cost `restart_s`; until then it was an estimate."""

    time_s: float
    job: int
    restart_s: float


class JobEvicted(NamedTuple):
    """A job lost its GPUs without being told to (a node failed, a launch was refused) and waits at `progress`."""

    time_s: float
    job: int
    progress: float
    why: str


class JobFinished(NamedTuple):
    """A job did all its work."""

    time_s: float
    job: int


class JobFailed(NamedTuple):
    """A job ended by itself without doing its work."""

    time_s: float
    job: int
    why: str


class JobCancelled(NamedTuple):
    """The owner withdrew a job."""

    time_s: float
    job: int


class NodeLost(NamedTuple):
    """A node stopped answering. The jobs on it follow as `JobEvicted`."""

    time_s: float
    node: int


class NodeRestored(NamedTuple):
    """A lost node is back, empty."""

    time_s: float
    node: int


class Woken(NamedTuple):
    """The instant that a policy asked for has come."""

    time_s: float


Event: TypeAlias = (
    JobSubmitted
    | JobStarted
    | RateChanged
    | TasksChanged
    | RegimeEntered
    | JobMeasured
    | JobUpdated
    | RestartMeasured
    | JobEvicted
    | JobFinished
    | JobFailed
    | JobCancelled
    | NodeLost
    | NodeRestored
    | Woken
)
