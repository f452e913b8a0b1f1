"""The part of the API that is made for the web page: all jobs in short, and the forecast that pages share."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from fairway.api import views
from fairway.api.answers import Answer, sent_packed
from fairway.api.context import ApiContext
from fairway.api.page_schema import ForecastOut, NoForecastYet, ShortJobs
from fairway.api.short_list import PackedAnswer

MOST_ROWS = 500
Names = Annotated[
    list[Annotated[str, Field(pattern=r"^[0-9]{1,18}(_[0-9]{1,18})?$")]] | None,
    Query(alias="id", max_length=MOST_ROWS, description="only these jobs"),
]


def page_data_router(context: ApiContext) -> APIRouter:
    """The routes for the page's data."""
    router = APIRouter(tags=["page"])

    @router.get("/page/jobs", responses={200: {"model": ShortJobs}})
    async def page_jobs(request: Request, names: Names = None) -> Response:
        """All active jobs and the latest that have ended, in short; with `id` only some jobs."""
        person, short = context.person(request), context.short_list
        all_seen = not context.private or person.operator
        who = "" if all_seen else person.name
        sees: views.Sees = views.all_seen if all_seen else lambda record: context.may_see(person, record)
        if names:
            return await context.lists.run(person.name, lambda: sent_packed(request, short.some(names, who, sees)))
        kept = short.kept(who)
        if kept is not None:
            return sent_packed(request, kept.content)
        return await context.lists.run(person.name, lambda: sent_packed(request, short.made(who, sees).content))

    @router.get("/forecast", responses={200: {"model": ForecastOut}, 202: {"model": NoForecastYet}})
    async def forecast(request: Request) -> Response:
        """When all jobs are expected to start and end. It is made in the background, for all who look."""
        latest = context.page_forecast.look()
        return Answer({"made_s": None}, 202) if latest is None else _new(request, latest)

    return router


def _new(request: Request, latest: PackedAnswer) -> Response:
    """A forecast, unless the browser has it already."""
    headers = {
        "ETag": f'"{latest.made_s:.3f}"',
        "Cache-Control": "private, no-cache",
        "Vary": "Accept-Encoding, Cookie",
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return sent_packed(request, latest.content, headers)
