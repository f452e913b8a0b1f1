"""What requests may contain and what answers look like: the words of the OpenAPI document.

A job is described in `runtime.jobs.request`; here is what only the API has. Bodies are checked strictly: a field that
is not known, or a number in quotes, is an error. Answers with many rows are not made through these models; they are
here to say what is in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fairway.api.tokens import Role
from fairway.core.units import MOST_SECONDS
from fairway.runtime.jobs.records import JobState
from fairway.runtime.jobs.request import (
    MOST_INT,
    MOST_TASKS,
    NOTHING_ELSE,
    Command,
    DeadlineS,
    Flag,
    JobId,
    JobTerms,
    LimitS,
    Name,
    Positive,
    Preempt,
    Priority,
    Seconds,
    Weight,
    Whole,
)

ONE, MANY = "<job>", "<jobs>"
"""The two shapes of a submission, as they are called in the place of a problem."""
MOST_JOBS = 10_000
MOST_IMAGINED = 1000
MOST_DAYS = 30
MOST_PAST_DAYS = 3660
MOST_POLICIES = 20
MOST_CLUSTER_GPUS = 100_000

Key = Annotated[str, Field(strict=True, min_length=1, max_length=180)]
"""The key of a submission; those of its jobs are longer by their numbers."""
PolicyText = Annotated[str, Field(strict=True, min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+$")]
Remark = Annotated[str, Field(strict=True, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]
TokenText = Annotated[str, Field(strict=True, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Since = Annotated[
    float | None, Query(ge=0, le=MOST_SECONDS, allow_inf_nan=False, description="a date in seconds since 1970")
]
GpuCount = Annotated[int, Field(strict=True, ge=0, le=MOST_CLUSTER_GPUS)]
ClusterGpus = Annotated[
    Annotated[int, Field(strict=True, ge=1, le=MOST_CLUSTER_GPUS)]
    | Annotated[dict[Name, GpuCount], Field(min_length=1, max_length=64)],
    Field(description="the GPUs that the cluster would have: in all, or of each type; types not named would be gone"),
]
StateIn = Annotated[JobState, BeforeValidator(lambda text: text.upper() if isinstance(text, str) else text)]
"""A state, in capitals or not."""
TaskNumbers = Annotated[
    tuple[Annotated[Whole, Field(ge=0, le=1_000_000_000)], ...],
    Field(min_length=1, max_length=MOST_TASKS, json_schema_extra={"uniqueItems": True}),
]


@dataclass(frozen=True)
class Submission(JobTerms):
    """One job, or with `array` one job per task number. Everything but the command has a default."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"command": ["python", "train.py"], "cwd": "/tmp", "gpus": 2}]}
    )

    client_key: Annotated[Key | None, Field(description="the same key of the same user gives the same job again")] = (
        None
    )
    array: Annotated[
        TaskNumbers | None, Field(description="task numbers; the tasks are called ID_k. Not in a list of jobs")
    ] = None


@dataclass(frozen=True)
class Imagined(JobTerms):
    """A job that is only thought of; it needs no command."""

    command: Command = ("?",)


class Update(BaseModel):
    """New terms of a job; what is not given stays. Null takes a limit or a deadline away."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"minProperties": 1})

    priority: Priority = 0
    weight: Weight = 1.0
    limit_s: LimitS = None
    deadline_s: DeadlineS = None
    name: Name = ""


class PolicyIn(BaseModel):
    """A policy with its knobs, such as `tiresias` or `las:levels=3600/36000`."""

    model_config = NOTHING_ELSE

    policy: PolicyText


class DrainIn(BaseModel):
    """Why a node is drained, and whether jobs that can go on elsewhere from a checkpoint leave it now."""

    model_config = NOTHING_ELSE

    reason: Remark = ""
    move: Flag = False


class TokenIn(BaseModel):
    """A token to be made. `lasts_s` is how long it counts; null: until it is revoked. `user` is whom it stands for."""

    model_config = NOTHING_ELSE

    name: TokenText
    role: Role
    lasts_s: Positive | None = None
    user: Name = ""


@dataclass(frozen=True)
class WhatIf:
    """A question about what will happen: as things are, with jobs that are not submitted, under another policy, or with
    other GPUs."""

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    policy: PolicyText | None = None
    cluster_gpus: ClusterGpus | None = None
    job: Imagined | None = None
    jobs: Annotated[tuple[Imagined, ...], Field(max_length=MOST_IMAGINED)] = ()
    ids: Annotated[tuple[JobId, ...], Field(max_length=1000, description="tell about these")] = ()
    horizon_s: Annotated[
        Annotated[float, Field(strict=True, gt=0, le=MOST_DAYS * 86400, allow_inf_nan=False)] | None,
        Field(description=f"how far to look; {MOST_DAYS} days at most"),
    ] = None


@dataclass(frozen=True)
class HistoryReplay:
    """A question about what would have been: the jobs since a date, or of some days until now, under other policies."""

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    policies: Annotated[tuple[PolicyText, ...], Field(min_length=1, max_length=MOST_POLICIES)]
    since_s: Annotated[Seconds | None, Field(description="a date in seconds since 1970; instead of `days`")] = None
    days: Annotated[float, Field(strict=True, gt=0, le=MOST_PAST_DAYS, allow_inf_nan=False)] = 7.0
    cluster_gpus: ClusterGpus | None = None


class Error(BaseModel):
    """What was wrong, in one line."""

    error: str


class Row(BaseModel):
    """One job in a list. Dates are seconds since 1970."""

    id: str
    name: str
    user: str
    queue: str
    state: JobState
    reason: str
    gpus: int
    gpus_min: int
    gpus_max: int
    gpu_share: float
    gpus_held: int
    priority: int
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    ran_s: float
    gpu_s: float
    attempts: int
    preemptions: int
    preempt: Preempt
    exit_code: int | None
    step: float
    steps: float | None
    command: str


class Rows(BaseModel):
    """Jobs in a list."""

    jobs: list[Row]


class TakenRows(Rows):
    """Jobs of a submission; `new` of them were not there before.

    `notes` say what they ask for and the policy in force takes no notice of.
    """

    new: int
    notes: list[str]


class ChangedRow(Row):
    """One job of those that were to be changed; what `had_ended` is left as it was."""

    had_ended: bool


class ChangedRows(BaseModel):
    """Jobs that were to be changed."""

    jobs: list[ChangedRow]


class RequeuedRow(ChangedRow):
    """One job of those that were put back in the queue; one that is to start `from_the_beginning` has saved nothing.

    `from_step` is the step of the checkpoint from which it continues; null if it has none, or saves a new one now.
    """

    from_the_beginning: bool
    from_step: float | None


class RequeuedRows(BaseModel):
    """Jobs that were put back in the queue."""

    jobs: list[RequeuedRow]


class EstimateOut(BaseModel):
    """How long a job runs in all: `expected_s`, `sure` between `low_s` and `high_s`. `source`: what that is from.

    A rough estimate has no interval: the three are null as long as no intervals of ends are told.
    """

    expected_s: float
    low_s: float | None
    high_s: float | None
    sure: float | None
    source: str


class PromiseOut(BaseModel):
    """A start or an end that was told at `told_s`: expected at `point_s`, and `sure` to be within `between_s`.

    `verdict`: whether what happened, at `actual_s`, was within that; open until it is known, and void if the promise
    was about another job than it is now. A rough promise has no interval, so its verdict is only that it happened.
    """

    kind: Literal["start", "finish"]
    channel: str
    told_s: float
    point_s: float
    between_s: tuple[float, float] | None
    sure: float | None
    verdict: Literal["open", "kept", "missed", "happened", "void"]
    actual_s: float | None


class KeptOut(BaseModel):
    """How good the starts, or the ends, were that were told: of the latest, and how many there were in all.

    Relative errors are over the wait (start) or the time to completion (finish) that was told. `within` is the share
    of them that were within the interval that was told, and `median_width_s` how wide that was.
    """

    kind: Literal["start", "finish"]
    promises: int
    median_error_s: float | None
    median_relative_error: float | None
    mean_relative_error: float | None
    within: float | None
    median_width_s: float | None
    decided_in_all: int
    within_in_all: int
    void_in_all: int


class PolicyKept(KeptOut):
    """The promises under one policy."""

    policy: str


class UserKept(KeptOut):
    """The promises about the jobs of one user."""

    user: str


class IntervalsOut(BaseModel):
    """Whether starts, or ends, are told with an interval, and `why`.

    Of the latest `scored` forecasts, 200 at most, the intervals of `held` held.
    """

    kind: Literal["start", "finish"]
    scored: int
    held: int
    shown: bool
    why: str


class PromisesOut(BaseModel):
    """The record of promises: `latest` were decided and are looked at one by one, `open` are not decided yet."""

    sure: float
    intervals: list[IntervalsOut]
    latest: int
    open: int
    policies: list[PolicyKept]
    users: list[UserKept]


class Job(Row):
    """One job in full. `request` is what was asked for. `estimate` is null once it has ended.

    The environment, and a command for which lists show something else, are shown to its owner and to operators; where
    it is `private`, so are the command and the directory.
    """

    private: bool
    held: bool
    suspended: bool
    failures: int
    not_before_s: float | None
    request: dict[str, Any]
    progress: dict[str, Any]
    estimate: EstimateOut | None
    history: list[dict[str, Any]]
    promises: list[PromiseOut]


class ArrayJob(BaseModel):
    """All tasks of an array."""

    id: str
    tasks: list[Row]


class SuspendedJob(BaseModel):
    """A job that is suspended on a GPU, and where its memory is. `bytes` is 0 if that is not known."""

    id: str
    memory: Literal["gpu", "host"]
    bytes: int


class Gpu(BaseModel):
    """One GPU of a node. `jobs` are those that have it; `use` is foreign where processes of others are on it.

    If no job has it and its node is not up, `use` is what the node is. `reason` says why nothing starts on it.
    `utilisation` is the part of the last moments in which it computed, 0 to 1. That and its memory in use are null
    where the driver does not say, and for virtual GPUs.
    """

    index: int
    device: str | None
    use: Literal["held", "idle", "foreign", "unreachable", "lost", "drained"]
    jobs: list[str]
    reason: str
    suspended: list[SuspendedJob]
    utilisation: float | None
    memory_used_bytes: int | None


class NodeOut(BaseModel):
    """One machine. `sharing` is how jobs that ask for shares of a GPU share it.

    Jobs are started on it only while its `status` is up; otherwise `reason` says why not. A node that is unreachable
    does not answer; a lost one was given up.
    """

    name: str
    status: Literal["up", "unreachable", "lost", "drained"]
    reason: str
    gpu_type: str
    memory_bytes: int
    sharing: str
    gpus: list[Gpu]


class Drained(BaseModel):
    """A node, and the jobs that leave it now."""

    node: NodeOut
    moved: list[str]


class Nodes(BaseModel):
    """All machines."""

    nodes: list[NodeOut]


class UserShare(BaseModel):
    """What one user has now, and has had in all. A share of a GPU counts as such."""

    user: str
    gpus_held: float
    share: float
    gpu_s: float
    running: int
    waiting: int
    ended: int


class Share(BaseModel):
    """All users, by GPU seconds."""

    users: list[UserShare]


class KindOut(BaseModel):
    """A kind of job: its model or name, its batch size per GPU, and its GPUs."""

    model: str
    batch_size: int | None
    gpus: int


class SpeedOut(KindOut):
    """How fast a kind of job was measured to be alone, in steps of one GPU per second over all its GPUs."""

    gpu_type: str
    steps_per_s: float
    times: int
    measured_s: float


class PairOut(BaseModel):
    """What two kinds of jobs keep of their speeds on the same GPUs."""

    gpu_type: str
    sharing: str
    first: KindOut
    second: KindOut
    kept: list[float]
    times: int
    measured_s: float


class ProfileOut(BaseModel):
    """What was measured of live jobs. `throughputs` is a profile for simulations."""

    speeds: list[SpeedOut]
    pairs: list[PairOut]
    throughputs: dict[str, dict[str, dict[str, float | list[float]]]]


class PolicyOut(BaseModel):
    """The policy that decides. `problem` is not empty while it fails."""

    policy: str
    name: str
    round_s: float
    problem: str
    known: list[str]


class Reloaded(BaseModel):
    """The configuration was read again, from this file; null if there is none."""

    file: str | None


class Collect(BaseModel):
    """Which jobs that have ended are deleted: those that ended more than `older_s` ago, and all but the latest `keep`.

    With neither of the two, those that the configuration does not keep.
    """

    model_config = NOTHING_ELSE

    older_s: Seconds | None = None
    keep: Annotated[Whole, Field(ge=0, le=MOST_INT)] | None = None
    dry_run: Flag = False


class CollectedOut(BaseModel):
    """How many jobs were deleted, or would be, and how many stay only because others depend on them."""

    jobs: int
    awaited: int
    dry_run: bool


class TokenOut(BaseModel):
    """A token, without its secret."""

    name: str
    role: str
    user: str
    made_s: float
    made_by: str
    expires_s: float | None


class TokenMade(TokenOut):
    """A new token. Its secret is shown only here."""

    token: str


class TokenRows(BaseModel):
    """All tokens."""

    tokens: list[TokenOut]


class AuditEntries(BaseModel):
    """Requests that changed something, or would have."""

    entries: list[dict[str, Any]]


class TenantUse(BaseModel):
    """A tenant: what it has reserved, and what its jobs hold of it. `out_of_order` GPUs have no sound hardware now."""

    name: str
    gpus: int
    gpus_held: int
    out_of_order: int
    cells: list[str]
    queues: list[str]
    users: list[str]
    running: int
    waiting: int


class Status(BaseModel):
    """The scheduler itself.

    `configuration` is its file; null if there is none. `policy_problem` is not empty while the policy fails,
    `configuration_problem` while that file has an error and an earlier version of it counts. `problem` is the first of
    the two. `containment` says how processes are kept together, and `limits_kept` which limits of jobs are kept:
    "memory", "cpus". `journal_locked_s` is how long another program has had the journal locked; everything waits.
    `clock` is not empty once somebody has set the time of day while the scheduler runs.
    `audit_problem` is not empty while the audit log cannot be written.
    `export` says which variables of their submitters' shells jobs get if these do not say it themselves.
    """

    version: str
    pid: int
    user: str
    folder: str
    since_s: float
    now_s: float
    policy: str
    problem: str
    policy_problem: str
    configuration: str | None
    configuration_problem: str
    export: str
    clock: str
    cluster: str
    gpus: int
    gpus_held: int
    tenants: list[TenantUse]
    jobs: dict[str, int]
    rounds: int
    free_bytes: int
    accepts: bool
    containment: str
    limits_kept: list[str]
    journal_locked_s: float
    you: str
    operator: bool
    audit_problem: str
