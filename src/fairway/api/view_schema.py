"""The words of the OpenAPI document about the views of the cluster and of a job, and about jobs being typed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from fairway.runtime.jobs.request import MOST_TEXT, NOTHING_ELSE


class TimelineGpu(BaseModel):
    """A GPU by its number in the cluster."""

    gpu: int
    node: str
    type: str


class TimelineJob(BaseModel):
    """A job in a timeline."""

    name: str
    user: str


class TimelineOut(BaseModel):
    """Who computed on which GPU when. Spans shorter than `least_s` are left out, so that there are not too many.

    A span is a list: GPU, job, from, to (null if it lasts), the share of the GPU, and the job whose GPU it shares or
    null.
    """

    from_s: float
    to_s: float
    least_s: float
    gpus: list[TimelineGpu]
    jobs: dict[str, TimelineJob]
    spans: list[tuple[int, str, float, float | None, float, str | None]]


class CourseOut(BaseModel):
    """What a job has reported over time, and its GPUs: lists of equal length, at most 500 points. Null: not known."""

    time_s: list[float]
    step: list[float | None]
    loss: list[float | None]
    steps_per_s: list[float | None]
    batch_size: list[int | None]
    gpus: list[int | None]


class JobEvent(BaseModel):
    """Something that happened to a job, as a sentence without its subject."""

    time_s: float
    what: str
    text: str


class JobEvents(BaseModel):
    """What happened to a job, in order. Of more than 200 events the first and the last ones are told."""

    events: list[JobEvent]


class Typed(BaseModel):
    """A job as it is being typed: a command line, an sbatch script or a SkyPilot task, and terms beside it."""

    model_config = NOTHING_ELSE

    kind: Literal["command", "sbatch", "skypilot"]
    text: Annotated[str, Field(strict=True, max_length=MOST_TEXT)]
    terms: Annotated[dict[str, Any], Field(description="as in `POST /v1/jobs`; they count more than the text")] = {}


class Finding(BaseModel):
    """Something about a submission: in which line of the text, or in which term, if that is known."""

    line: int | None
    field: str | None
    text: str


class CheckedOut(BaseModel):
    """What is wrong with a submission, what its owner should know, and bodies for `POST /v1/jobs` if it is `ok`."""

    ok: bool
    problems: list[Finding]
    warnings: list[Finding]
    jobs: list[dict[str, Any]]
