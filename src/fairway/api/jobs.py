"""The API about jobs: submit, list, show, control, change, and read logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Path, Query, Request
from pydantic import BaseModel, Discriminator, Tag
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from fairway.api import views
from fairway.api.answers import Answer
from fairway.api.auth_middleware import note
from fairway.api.context import ApiContext
from fairway.api.json_rows import Taken
from fairway.api.logs import LogPart, Logs
from fairway.api.people import NotAllowedError, Person
from fairway.api.promised import record_of_promises
from fairway.api.schema import (
    MANY,
    MOST_JOBS,
    ONE,
    ArrayJob,
    ChangedRow,
    ChangedRows,
    HistoryReplay,
    Job,
    Key,
    PromisesOut,
    RequeuedRows,
    Rows,
    Since,
    StateIn,
    Submission,
    TakenRows,
    Update,
    WhatIf,
)
from fairway.core.errors import InputError
from fairway.policies.registry import files_of_knobs
from fairway.runtime.guard.unheeded import unheeded
from fairway.runtime.jobs.commands import UnknownJobError
from fairway.runtime.jobs.job_story import for_others
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import MOST_INT, JobRequest, Name, checked
from fairway.runtime.journal.archive import Wanted

OFFSET = "X-Fairway-Offset"
"""The header that says at which byte of a log an answer begins."""
FEW = 10
"""How many jobs are checked at once without a thread."""
_JSON = "application/json"
_JSON_LINES = "application/jsonl"
_PLAIN = "text/plain; charset=utf-8"
ENDED = frozenset(state for state in JobState if state.ended)
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "What the job has written"}
}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {_JSON_LINES: {"schema": {"type": "string"}}}, "description": "JSON lines"}
}
Id = Annotated[str, Path(max_length=200, description="a job, a task (ID_k) or an array")]
Limit = Annotated[int, Query(ge=1, le=1_000_000)]
Jobs = Annotated[
    Annotated[Submission, Tag(ONE)] | Annotated[list[Submission], Body(min_length=1, max_length=MOST_JOBS), Tag(MANY)],
    Discriminator(lambda body: MANY if isinstance(body, list) else ONE),
    Body(),
]


class CancelledRow(ChangedRow):
    """One job of those that were cancelled. Its processes have up to `stopping_s` to stop; 0 where none run."""

    stopping_s: float


class CancelledRows(BaseModel):
    """Jobs that were cancelled."""

    jobs: list[CancelledRow]


def jobs_router(context: ApiContext) -> APIRouter:
    """All routes about jobs."""
    router = APIRouter(tags=["jobs"])
    _add_submit(router, context)
    _add_reading(router, context)
    _add_control(router, context)
    _add_logs(router, context)
    _add_forecasts(router, context)
    return router


def _add_submit(router: APIRouter, context: ApiContext) -> None:
    @router.post("/jobs", status_code=201, responses={200: {"model": TakenRows}, 201: {"model": TakenRows}})
    async def submit(
        request: Request, body: Jobs, key: Annotated[Key | None, Header(alias="Idempotency-Key")] = None
    ) -> Response:
        """Submit a job, an array, or a list of jobs: all of them, or none.

        With an idempotency key (this header, or the field `client_key`) the same submission can be sent again: it is
        taken once, and answered with 200 and the jobs of the first time.
        """
        person = context.person(request)
        asked = body if isinstance(body, list) else [body]
        if not _is_quick(person, asked):
            return await run_in_threadpool(_submitted, context, request, asked, key)
        requests = _requests(context, person, asked, key)
        await run_in_threadpool(context.scheduler.refuse_unstartable, requests)
        records = await asyncio.wrap_future(context.scheduler.submission(requests))
        return _taken(context, request, requests, records)


def _is_quick(person: Person, asked: Sequence[Submission]) -> bool:
    """Whether a submission can be checked without delaying other requests: a short list, and no account to look up."""
    plain = all(one.user in ("", person.name) and one.array is None and not one.depends for one in asked)
    return len(asked) <= FEW and plain


def _submitted(context: ApiContext, request: Request, asked: Sequence[Submission], key: str | None) -> Response:
    requests = _requests(context, context.person(request), asked, key)
    context.scheduler.refuse_unstartable(requests)
    records = context.scheduler.submit(requests, array=asked[0].array is not None)
    return _taken(context, request, requests, records)


def _taken(
    context: ApiContext, request: Request, requests: Sequence[JobRequest], records: Sequence[JobRecord]
) -> Response:
    """The answer to a submission: 201 if any of it is new."""
    _note_jobs(request, records)
    # The configuration may have changed a request, but its command is still the same object.
    asked = {id(request.command) for request in requests}
    new = sum(id(record.request.command) in asked for record in records)
    notes = unheeded(requests, context.scheduler.guard.policy)
    text = context.listing.text(records, taken=Taken(new, notes))
    return Response(text, 201 if new else 200, media_type=_JSON)


def _note_jobs(request: Request, records: Sequence[JobRecord]) -> None:
    """Have the audit log say which jobs a request was about: the first, the last, how many, and whose."""
    ids = [record.id for record in records]
    users = sorted({record.request.user for record in records})
    note(request, jobs=ids if len(ids) <= FEW else [ids[0], "…", ids[-1]], count=len(ids), users=users)


def _requests(context: ApiContext, person: Person, asked: Sequence[Submission], key: str | None) -> list[JobRequest]:
    """The checked requests of a submission. If one is refused, nothing has changed yet."""
    context.disk.refuse_if_full()
    if len(asked) > 1 and any(one.array is not None for one in asked):
        raise InputError("an array cannot be submitted in a list with other jobs")
    requests = []
    for number, one in enumerate(asked):
        own_key = one.client_key or (key if key is None or len(asked) == 1 else f"{key}/{number}")
        request = _request(context, person, one, own_key)
        if one.array is None:
            requests.append(request)
            continue
        if len(set(one.array)) != len(one.array):
            raise InputError("array: a task number is given twice")
        requests += [replace(request.task(task), client_key=own_key and f"{own_key}/{task}") for task in one.array]
    keys = [request.client_key for request in requests if request.client_key is not None]
    if len(set(keys)) != len(keys):
        raise InputError("client_key: two jobs of this submission have the same key")
    return requests


def _request(context: ApiContext, person: Person, one: Submission, key: str | None) -> JobRequest:
    user, account = context.access.owner(person, one.user)
    terms = {name: value for name, value in vars(one).items() if name != "array"}
    # Once more, because of what was added: all that is kept can be read again.
    return checked(JobRequest, terms | {"user": user, "client_key": key, "account": account})


def _add_reading(router: APIRouter, context: ApiContext) -> None:
    @router.get("/jobs", responses={200: {"model": Rows}})
    async def ls(
        request: Request,
        state: Annotated[list[StateIn] | None, Query(description="one state, or several")] = None,
        user: Annotated[Name | None, Query()] = None,
        queue: Annotated[Name | None, Query()] = None,
        since: Since = None,
        limit: Limit = 100_000,
    ) -> Response:
        """Jobs in order of submission: the latest `limit` of those that were submitted at or after `since`."""

        def listed() -> Response:
            least_s = _by_our_clock(context, since)
            wanted = Wanted(None if state is None else frozenset(state), user, queue, submitted_since_s=least_s)
            found = context.scheduler.lists.submitted(wanted, limit)
            return Response(context.listing.text(found, _sees(context, request)), media_type=_JSON)

        return await context.lists.run(context.person(request).name, listed)

    @router.get("/history", responses={200: {"model": Rows}})
    async def history(
        request: Request,
        user: Annotated[Name | None, Query()] = None,
        queue: Annotated[Name | None, Query()] = None,
        since: Since = None,
        limit: Limit = 1000,
    ) -> Response:
        """Jobs that have ended at or after `since`, the latest first."""

        def listed() -> Response:
            wanted = Wanted(ENDED, user, queue, ended_since_s=_by_our_clock(context, since))
            found = context.scheduler.lists.ended(wanted, limit)
            return Response(context.listing.text(found, _sees(context, request)), media_type=_JSON)

        return await context.lists.run(context.person(request).name, listed)

    @router.get("/history/export", response_class=StreamingResponse, responses=_LINES)
    def export(request: Request, user: Annotated[Name | None, Query()] = None, since: Since = None) -> Response:
        """All about every job that has ended at or after `since`, without environments: one object per line."""
        wanted = Wanted(ENDED, user, ended_since_s=_by_our_clock(context, since))
        found = context.scheduler.lists.ended(wanted, MOST_INT)
        person = context.person(request)
        lines = (views.line(context.scheduler, one, seen=context.may_see(person, one)) for one in found)
        return StreamingResponse(lines, media_type=_JSON_LINES)

    @router.get("/jobs/{name}", responses={200: {"model": Job | ArrayJob}})
    async def show(request: Request, name: Id) -> Response:
        """Everything about one job; for an array, its tasks."""
        person, records = context.person(request), _found(context, name)
        if records[0].id != name:
            sees = _sees(context, request)
            return await context.lists.run(
                person.name, lambda: Answer({"id": name, "tasks": views.rows(context.scheduler, records, sees)})
            )
        own = context.access.may_control(person, records[0].request.user)
        return Answer(views.full(context.scheduler, records[0], own=own, seen=context.may_see(person, records[0])))


def _sees(context: ApiContext, request: Request) -> views.Sees:
    person = context.person(request)
    return (lambda record: context.may_see(person, record)) if context.private else views.all_seen


def _by_our_clock(context: ApiContext, since: float | None) -> float | None:
    """A date by the time of day as records have it."""
    return None if since is None else since - context.scheduler.clock.shift_s


def _found(context: ApiContext, name: str) -> list[JobRecord]:
    records = context.scheduler.store.tasks(name)
    if not records:
        raise UnknownJobError(f"there is no job {name!r}")
    return records


def _add_control(router: APIRouter, context: ApiContext) -> None:
    def add(verb: str, act: Callable[[str, str], list[JobRecord]], what: str) -> None:
        @router.post(f"/jobs/{{name}}/{verb}", name=verb, description=what, responses={200: {"model": ChangedRows}})
        def control(request: Request, name: Id) -> Response:
            return _changed(context, request, name, act)

    scheduler = context.scheduler

    @router.post("/jobs/{name}/cancel", responses={200: {"model": CancelledRows}})
    def cancel(request: Request, name: Id) -> Response:
        """End a job. Its processes are asked to stop, and killed after their grace period."""
        return _changed(context, request, name, scheduler.cancel, lambda record: {"stopping_s": _stopping_s(record)})

    add("suspend", scheduler.suspend, "Take a job off its GPUs until it is resumed.")
    add("resume", scheduler.release, "Let a suspended or held job go on.")
    add("hold", scheduler.hold, "Do not start a job until it is released.")
    add("release", scheduler.release, "Let a held or suspended job run.")

    @router.post("/jobs/{name}/requeue", responses={200: {"model": RequeuedRows}})
    def requeue(request: Request, name: Id) -> Response:
        """Stop a running job and put it back in the queue. Without a checkpoint it loses its work."""
        starts = {record.number: _starts_again(record) for record in scheduler.store.tasks(name)}
        return _changed(
            context,
            request,
            name,
            scheduler.requeue,
            lambda record: starts.get(record.number) or _starts_again(record),
        )

    @router.patch("/jobs/{name}", responses={200: {"model": ChangedRows}})
    def update(request: Request, name: Id, body: Update) -> Response:
        """Change the terms of a job. A new time limit also applies to a running job."""
        changes = body.model_dump(exclude_unset=True)
        if not changes:
            raise InputError("there is nothing to change")
        note(request, changes=changes)
        return _changed(context, request, name, lambda one, by: scheduler.update(one, changes, by))


def _stopping_s(record: JobRecord) -> float:
    """How long the processes of a job that was asked to stop may still run."""
    attempt = record.attempt
    return record.request.grace_s if attempt is not None and attempt.ended_s is None else 0.0


def _starts_again(record: JobRecord) -> dict[str, Any]:
    """Where a job that is stopped now starts again: from the beginning, or from the checkpoint that it has.

    Where a job that saves on request starts again is known when it has saved.
    """
    progress = record.progress
    known = record.state is JobState.RUNNING and not record.saves_when_asked and progress.checkpoint is not None
    return {"from_the_beginning": record.loses_its_work, "from_step": progress.checkpoint_step if known else None}


def _changed(
    context: ApiContext,
    request: Request,
    name: str,
    act: Callable[[str, str], list[JobRecord]],
    more: Callable[[JobRecord], dict[str, Any]] = lambda record: {},
) -> Response:
    """Do something to a job, or to the tasks of an array; the answer has each job and whether it had ended before.

    `more` gives further fields of each.
    """
    person, found, ended = context.person(request), _found(context, name), set[int]()
    _note_jobs(request, found)
    for record in found:
        if not context.access.may_control(person, record.request.user):
            raise NotAllowedError(f"job {record.id} is {record.request.user}'s; you are {person.name}")
        if record.state.ended:
            ended.add(record.number)
    acted = {record.number: record for record in act(name, person.name)}
    records = [acted.get(record.number, record) for record in found]
    rows = zip(views.rows(context.scheduler, records), records, strict=True)
    return Answer({"jobs": [row | {"had_ended": record.number in ended} | more(record) for row, record in rows]})


def _add_logs(router: APIRouter, context: ApiContext) -> None:
    @router.get("/jobs/{name}/logs", response_class=StreamingResponse, responses=_TEXT)
    async def logs(
        request: Request,
        name: Id,
        rank: Annotated[int | None, Query(ge=0, le=4096, description="one rank; default: all")] = None,
        attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
        offset: Annotated[int | None, Query(ge=0, le=MOST_INT, description="in bytes, for one rank")] = None,
        tail: Annotated[int | None, Query(ge=0, le=1_000_000, description="only the last lines, this many")] = None,
        tail_bytes: Annotated[int | None, Query(ge=0, le=MOST_INT, description="only whole lines at its end")] = None,
        follow: Annotated[bool, Query(description="continue until the job has ended")] = False,
    ) -> Response:
        """What a job has written in all its attempts. With several ranks, each line starts with `[rank]`.

        For one rank, and without `tail`, the header `X-Fairway-Offset` says at which byte the answer begins.
        """
        record, person = context.job(name), context.person(request)
        if not context.may_see(person, record):
            owner = record.request.user
            raise NotAllowedError(f"job {name} is {owner}'s, and logs are private here; you are {person.name}")
        found = Logs(context.scheduler, record, rank=rank, attempt=attempt)
        one = len(found.ranks()) == 1
        if sum(value is not None for value in (offset, tail, tail_bytes)) > 1 or (offset is not None and not one):
            raise InputError("an offset needs one rank, and no tail; a tail is in lines or in bytes")
        if one and tail_bytes is not None:
            offset, tail_bytes = await run_in_threadpool(found.begin_of_tail, found.ranks()[0], tail_bytes), None
        headers = {OFFSET: str(offset or 0)} if one and tail is None else {}
        part = LogPart(offset or 0, tail, tail_bytes)

        def over() -> bool:
            return context.closing or not context.signed_in(request)

        coming = found.follow(over, part) if follow else found.now(part)
        return StreamingResponse(coming, media_type=_PLAIN, headers=headers)


def _add_forecasts(router: APIRouter, context: ApiContext) -> None:
    def why_so(person: Person, name: str, told: Literal["why", "submit"]) -> Response:
        from fairway.api.what_if import why

        answer, record = why(context.scheduler, name, told), context.scheduler.store.get(name)
        if record is not None and not context.may_see(person, record):
            answer["reason"] = for_others(answer["reason"])
        return Answer(answer)

    def looked_ahead(question: WhatIf) -> Response:
        from fairway.api.what_if import what_if

        return Answer(what_if(context.scheduler, question))

    def looked_back(question: HistoryReplay) -> Response:
        from fairway.api.past_days import replay_past

        return Answer(replay_past(context.scheduler, question))

    def history_since(since_s: float) -> Response:
        from fairway.api.past_days import past_days

        return Answer(past_days(context.scheduler, since_s).plain())

    @router.get("/history/trace", responses={200: {"content": {"application/json": {}}}})
    async def history_trace(request: Request, since: Since = None) -> Response:
        """The jobs since a date as a trace, with what became of each: what `fairway compare --history` replays."""
        return await context.forecasts.run(context.person(request).name, lambda: history_since(since or 0.0))

    @router.post("/history/replay", responses={200: {"content": {"application/json": {}}}})
    async def replay_history(request: Request, body: HistoryReplay) -> Response:
        """What other policies would have made of the jobs of the last days, beside what really happened."""
        person = context.person(request)
        for policy in body.policies:
            refuse_files(context, person, policy)
        return await context.forecasts.run(person.name, lambda: looked_back(body))

    @router.get("/jobs/{name}/why", responses={200: {"content": {"application/json": {}}}})
    async def why(
        request: Request,
        name: Id,
        told: Annotated[Literal["why", "submit"], Query(description="where the answer is told")] = "why",
    ) -> Response:
        """Why a job waits: the policy's reason, who is ahead, what would free GPUs, and when it may start."""
        person = context.person(request)
        return await context.forecasts.run(person.name, lambda: why_so(person, name, told))

    @router.get("/eta", responses={200: {"model": PromisesOut}})
    async def eta(
        request: Request,
        policy: Annotated[str | None, Query(max_length=1000)] = None,
        user: Annotated[Name | None, Query()] = None,
        since: Since = None,
    ) -> Response:
        """How good the starts and ends were that were told, by policy and by user; those told at or after `since`."""
        return await context.lists.run(
            context.person(request).name,
            lambda: Answer(record_of_promises(context.scheduler, policy, user, since)),
        )

    @router.post("/what-if", responses={200: {"content": {"application/json": {}}}})
    async def what_if(request: Request, body: WhatIf) -> Response:
        """When jobs start and end: those in the queue, new ones, or all under another policy or with other GPUs."""
        person = context.person(request)
        refuse_files(context, person, body.policy or "")
        return await context.forecasts.run(person.name, lambda: looked_ahead(body))


def refuse_files(context: ApiContext, person: Person, policy: str) -> None:
    """The scheduler's user reads the files of knobs, so only that user and root may name such files."""
    own = person.uid in (0, context.access.own_uid) and person.operator
    if not own and files_of_knobs(policy):
        raise NotAllowedError("only the scheduler's own user can have a policy read files")
