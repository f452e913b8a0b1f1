"""What requests may contain and what answers look like: the words of the OpenAPI document.

Bodies are checked strictly: a field that is not known, or a number in quotes, is an error. What a value means beyond
its type is checked in one place for everybody, `runtime.request`. Answers with many rows are not made through these
models; they are here to say what is in them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from fairway.core.job import MOST_PRIORITY, MOST_SECONDS
from fairway.runtime.jobs.records import JobState
from fairway.runtime.jobs.request import (
    MOST_ARGUMENTS,
    MOST_ENVIRONMENT,
    MOST_GPUS,
    MOST_SHOWN,
    MOST_TEXT,
    DependencyKind,
    Preempt,
    Processes,
)

MOST_TASKS = 10_000
MOST_JOBS = 10_000
MOST_INT = 2**53
"""JSON numbers beyond this are not exact everywhere."""

_NAME_PATTERN = r"^[^\x00-\x1f\x7f/]*$"
Name = Annotated[str, StringConstraints(max_length=200, pattern=_NAME_PATTERN)]
Text = Annotated[str, StringConstraints(max_length=MOST_TEXT, pattern=r"^[^\x00]*$")]
Positive = Annotated[float, Field(gt=0, le=MOST_SECONDS, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
Gpus = Annotated[int, Field(ge=1, le=MOST_GPUS)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=180)]

PolicyText = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+$")]
JobId = Annotated[str, StringConstraints(min_length=1, max_length=40)]
StateIn = Annotated[JobState, BeforeValidator(lambda text: text.upper() if isinstance(text, str) else text)]
"""A state, in capitals or not."""


class Strict(BaseModel):
    """Nothing is converted and nothing is ignored."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class DependencyIn(Strict):
    """A job to wait for."""

    kind: DependencyKind
    job: JobId


class Submission(Strict):
    """One job, or with `array` one job per task number. Everything but the command has a default."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"command": ["python", "train.py"], "cwd": "/tmp", "gpus": 2}]},
    )

    command: Annotated[list[Text], Field(min_length=1, max_length=MOST_ARGUMENTS)]
    user: Name = Field("", description="for whom; only operators may name somebody else")
    name: Name = ""
    queue: Name = ""
    cwd: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^\x00]*$")] = "/"
    env: Annotated[
        dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=4096)], Text],
        Field(max_length=MOST_ENVIRONMENT),
    ] = Field(default_factory=dict)
    gpus: Gpus = 1
    gpus_min: Gpus | None = Field(None, description="with `gpus_max` the elastic range; `gpus` lies within")
    gpus_max: Gpus | None = None
    gpu_types: Annotated[list[Name], Field(max_length=100)] = Field(default_factory=list)
    memory_bytes: Annotated[int, Field(ge=0, le=MOST_INT)] = 0
    priority: Priority = 0
    weight: Weight = 1.0
    limit_s: Positive | None = Field(None, description="the longest it may run")
    expected_s: Positive | None = Field(None, description="a guess of its run time")
    deadline_s: Seconds | None = Field(None, description="seconds from its submission on")
    begin_s: Seconds | None = Field(None, description="not before this date, in seconds since 1970")
    preempt: Preempt = "suspend"
    grace_s: Seconds = 60.0
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    processes: Processes = "one"
    hold: bool = False
    depends: Annotated[list[DependencyIn], Field(max_length=1000)] = Field(default_factory=list)
    steps: Positive | None = None
    epochs: Positive | None = None
    model: Name = ""
    batch_size: Annotated[int, Field(ge=1, le=MOST_INT)] | None = None
    slurm_env: bool = False
    shown: Annotated[str, StringConstraints(max_length=MOST_SHOWN, pattern=r"^[^\x00]*$")] = Field(
        "", description="what lists show in the place of the command, where that is not what its owner wrote"
    )
    client_key: Key | None = Field(None, description="the same key of the same user gives the same job again")
    array_at_once: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        0, description="of an array, how many tasks may run at a time; 0 is as many as there is room for"
    )
    array: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=1_000_000_000)]],
            Field(min_length=1, max_length=MOST_TASKS, json_schema_extra={"uniqueItems": True}),
        ]
        | None
    ) = Field(None, description="task numbers; the tasks are called ID_k. Not in a list of jobs")


class Update(Strict):
    """New terms of a job; what is not given stays. Null takes a limit or a deadline away."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, json_schema_extra={"minProperties": 1})

    priority: Priority = 0
    weight: Weight = 1.0
    limit_s: Positive | None = None
    deadline_s: Seconds | None = Field(None, description="seconds from its submission on")
    name: Name = ""


class PolicyIn(Strict):
    """A policy with its knobs, such as `tiresias` or `las:levels=3600/36000`."""

    policy: PolicyText


class Imagined(Submission):
    """A job that is only thought of; it needs no command."""

    command: Annotated[list[Text], Field(min_length=1, max_length=MOST_ARGUMENTS)] = Field(
        default_factory=lambda: ["?"]
    )


class WhatIf(Strict):
    """A question about what will happen: as things are, with jobs that are not submitted, or under another policy."""

    policy: PolicyText | None = None
    job: Imagined | None = None
    jobs: Annotated[list[Imagined], Field(max_length=1000)] = Field(default_factory=list)
    ids: Annotated[list[JobId], Field(max_length=1000)] = Field(default_factory=list, description="tell about these")
    horizon_s: Annotated[float, Field(gt=0, le=30 * 86400.0, allow_inf_nan=False)] | None = Field(
        None, description="how far to look; 30 days at most"
    )


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
    gpus_held: int
    priority: int
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    ran_s: float
    gpu_s: float
    attempts: int
    preemptions: int
    exit_code: int | None
    step: float
    steps: float | None
    command: str


class Rows(BaseModel):
    """Jobs in a list."""

    jobs: list[Row]


class TakenRows(Rows):
    """Jobs of a submission; `new` of them were not there before."""

    new: int


class ChangedRow(Row):
    """One job of those that were to be changed; what `had_ended` is left as it was."""

    had_ended: bool


class ChangedRows(BaseModel):
    """Jobs that were to be changed."""

    jobs: list[ChangedRow]


class RequeuedRow(ChangedRow):
    """One job of those that were put back in the queue; one that is to start `from_the_beginning` has saved nothing."""

    from_the_beginning: bool


class RequeuedRows(BaseModel):
    """Jobs that were put back in the queue."""

    jobs: list[RequeuedRow]


class Job(Row):
    """One job in full. `request` is what was asked for; the environment is shown to its owner and to operators."""

    held: bool
    suspended: bool
    failures: int
    not_before_s: float | None
    request: dict[str, Any]
    progress: dict[str, Any]
    history: list[dict[str, Any]]


class ArrayJob(BaseModel):
    """All tasks of an array."""

    id: str
    tasks: list[Row]


class Gpu(BaseModel):
    """One GPU of a node. `jobs` are those that have it; `use` is foreign where processes of others are on it."""

    index: int
    device: str | None
    use: Literal["held", "idle", "foreign", "lost"]
    jobs: list[str]
    reason: str


class NodeOut(BaseModel):
    """One machine."""

    name: str
    gpu_type: str
    memory_bytes: int
    gpus: list[Gpu]


class Nodes(BaseModel):
    """All machines."""

    nodes: list[NodeOut]


class UserShare(BaseModel):
    """What one user has now, and has had in all."""

    user: str
    gpus_held: int
    share: float
    gpu_s: float
    running: int
    waiting: int
    ended: int


class Share(BaseModel):
    """All users, by GPU seconds."""

    users: list[UserShare]


class PolicyOut(BaseModel):
    """The policy that decides. `problem` is not empty while it fails."""

    policy: str
    name: str
    round_s: float
    problem: str
    known: list[str]


class Reloaded(BaseModel):
    """The configuration was read again, from this file; null if there is none, and so no limits."""

    file: str | None


class Status(BaseModel):
    """The scheduler itself.

    `configuration` is its file; null if there is none. `policy_problem` is not empty while the policy fails,
    `configuration_problem` while that file has an error and an earlier version of it counts. `problem` is the first of
    the two.
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
    cluster: str
    gpus: int
    gpus_held: int
    jobs: dict[str, int]
    rounds: int
    free_bytes: int
    accepts: bool
    you: str
    operator: bool
