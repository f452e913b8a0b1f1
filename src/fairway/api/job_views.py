"""The API about what a job went through: what it reported over time, and what happened to it; and jobs being typed."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from fairway.api.answers import Answer
from fairway.api.context import ApiContext
from fairway.api.jobs import Id
from fairway.api.typed_jobs import check_typed
from fairway.api.view_schema import CheckedOut, CourseOut, JobEvents, Typed
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.held_spans import spans_of
from fairway.runtime.jobs.job_course import CoursePoint, JobCourse
from fairway.runtime.jobs.job_story import story
from fairway.runtime.jobs.records import JobRecord

MOST_POINTS = 500
_NAMES = ("time_s", "step", "loss", "steps_per_s", "batch_size", "gpus")


def job_views_router(context: ApiContext) -> APIRouter:
    """All routes about what jobs went through."""
    router = APIRouter(tags=["jobs"])

    @router.get("/jobs/{name}/course", responses={200: {"model": CourseOut}})
    async def course(request: Request, name: Id) -> Response:
        """What a job has reported over time, and how many GPUs it had."""
        record, user = context.job(name), context.person(request).name
        return await context.lists.run(user, lambda: Answer(course_of(context.scheduler, record)))

    @router.get("/jobs/{name}/events", responses={200: {"model": JobEvents}})
    async def events(request: Request, name: Id) -> Response:
        """What happened to a job, in sentences: starts, preemptions with their reasons, and what users did to it."""
        record, person = context.job(name), context.person(request)

        def told() -> Response:
            scheduler, seen = context.scheduler, context.may_see(person, record)
            notes, shift_s = scheduler.archive.notes(record.number), scheduler.clock.shift_s
            return Answer({"events": story(record, notes, scheduler.cluster, shift_s=shift_s, seen=seen)})

        return await context.lists.run(person.name, told)

    @router.post("/submission", responses={200: {"model": CheckedOut}})
    async def submission(request: Request, body: Typed) -> Response:
        """Check a command line, an sbatch script or a SkyPilot task as it is typed. Changes nothing."""
        person = context.person(request)
        return await context.checks.run(person.name, lambda: Answer(check_typed(context, person, body)))

    return router


def course_of(scheduler: Scheduler, record: JobRecord) -> dict[str, list[Any]]:
    """The points of a job as columns, with those at which it got or lost GPUs; at most `MOST_POINTS`."""
    course = scheduler.observations.courses.of(record.number)
    if course is None:
        # It has ended, or has reported nothing since the scheduler started.
        course = JobCourse(scheduler.archive.course(record.number))
    points: list[CoursePoint | tuple[Any, ...]] = [*course.points()]
    points += _edges(record)[-(MOST_POINTS - len(points)) :]
    shift_s = scheduler.clock.shift_s
    rows = sorted(((point[0] + shift_s, *point[1:]) for point in points), key=lambda row: row[0])
    columns = zip(*rows, strict=True) if rows else ((),) * len(_NAMES)
    return {name: list(column) for name, column in zip(_NAMES, columns, strict=True)}


def _edges(record: JobRecord) -> list[tuple[Any, ...]]:
    """The dates at which a job got or lost GPUs, as points that say nothing else."""
    edges: list[tuple[Any, ...]] = []
    for span in spans_of(record):
        edges.append((span.from_s, None, None, None, None, len(span.gpus)))
        if span.to_s is not None:
            edges.append((span.to_s, None, None, None, None, 0))
    return edges
