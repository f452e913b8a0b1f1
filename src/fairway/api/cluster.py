"""The part of the API about the cluster: nodes, shares, the policy, the scheduler itself, events and figures."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from fairway.api import views
from fairway.api.answers import Answer, sent_packed
from fairway.api.auth_middleware import note
from fairway.api.context import ApiContext
from fairway.api.jobs import refuse_files
from fairway.api.operators import operator
from fairway.api.schema import (
    Collect,
    CollectedOut,
    Drained,
    DrainIn,
    NodeOut,
    Nodes,
    PolicyIn,
    PolicyOut,
    ProfileOut,
    Reloaded,
    Share,
    Since,
    Status,
)
from fairway.api.view_schema import TimelineOut
from fairway.policies import make_policy
from fairway.runtime.daemon.config import Keep

_SHARING = "take the pairs of this way of sharing into `throughputs`; default: the way with most pairs"
NodeName = Annotated[str, Path(max_length=255, description="the name of a node")]
_FIGURES = "text/plain; version=0.0.4; charset=utf-8"
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "A stream of events without end",
    }
}
_PROMETHEUS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' format"}
}


def cluster_router(context: ApiContext) -> APIRouter:
    """All routes about the cluster."""
    router = APIRouter(tags=["cluster"])
    _add_state(router, context)
    _add_policy(router, context)
    _add_streams(router, context)
    return router


def root_router(context: ApiContext) -> APIRouter:
    """Routes at the root: Prometheus asks for `/metrics` by default."""
    router = APIRouter(tags=["cluster"])
    _add_figures(router, context)
    return router


def _add_state(router: APIRouter, context: ApiContext) -> None:
    @router.get("/nodes", responses={200: {"model": Nodes}})
    def nodes() -> Response:
        """Machines, their GPUs, and who has them."""
        return Answer({"nodes": views.nodes(context.daemon)})

    @router.post("/nodes/{name}/drain", responses={200: {"model": Drained}})
    def drain(request: Request, name: NodeName, body: DrainIn) -> Response:
        """Start nothing on a node any more. Its jobs end by themselves, or move now. For operators."""
        note(request, node=name, reason=body.reason, move=body.move)
        person = operator(context, request, "drain nodes")
        moved = context.scheduler.drain(name, by=person.name, why=body.reason, move=body.move)
        return Answer({"node": _node(context, name), "moved": [record.id for record in moved]})

    @router.post("/nodes/{name}/undrain", responses={200: {"model": NodeOut}})
    def undrain(request: Request, name: NodeName) -> Response:
        """Let jobs start on a node again. For operators."""
        note(request, node=name)
        operator(context, request, "undrain nodes")
        context.scheduler.undrain(name)
        return Answer(_node(context, name))

    @router.get("/share", responses={200: {"model": Share}})
    async def share(request: Request) -> Response:
        """What every user holds now and has used."""
        user = context.person(request).name
        return await context.lists.run(user, lambda: Answer({"users": views.share(context.scheduler)}))

    @router.get("/timeline", responses={200: {"model": TimelineOut}})
    async def timeline(request: Request, since: Since = None, until: Since = None) -> Response:
        """Who computed on which GPU when: the last hours up to now, or a window of dates. At most 20,000 spans."""

        def made() -> Response:
            return sent_packed(request, context.timeline.packed(since, until))

        return await context.lists.run(context.person(request).name, made)

    @router.get("/profile", responses={200: {"model": ProfileOut}})
    async def profile(
        request: Request, sharing: Annotated[str | None, Query(max_length=100, description=_SHARING)] = None
    ) -> Response:
        """How fast jobs were measured to be, and what pairs of them keep on the same GPUs."""
        user = context.person(request).name
        return await context.lists.run(user, lambda: Answer(views.profile(context.scheduler, sharing)))

    @router.get("/snapshot", responses={200: {"content": {"application/json": {}}}})
    async def snapshot(request: Request) -> Response:
        """What the scheduler sees and decides now, for `fairway replay`."""
        user = context.person(request).name
        return await context.lists.run(
            user, lambda: Response(context.scheduler.incident(), media_type="application/json")
        )

    @router.get("/status", responses={200: {"model": Status}})
    def status(request: Request) -> Response:
        """The scheduler itself, and who you are to it."""
        told = views.status(context.daemon, context.disk, context.person(request), context.began_s)
        return Answer(told | {"audit_problem": context.audit.problem})


def _node(context: ApiContext, name: str) -> dict[str, Any]:
    """A node as it is now."""
    return next(one for one in views.nodes(context.daemon) if one["name"] == name)


def _add_policy(router: APIRouter, context: ApiContext) -> None:
    @router.get("/policy", responses={200: {"model": PolicyOut}})
    def policy() -> Response:
        """The policy that decides now."""
        return Answer(views.policy(context.scheduler))

    @router.put("/policy", responses={200: {"model": PolicyOut}})
    def set_policy(request: Request, body: PolicyIn) -> Response:
        """Switch to another policy. The change itself stops no job. For operators."""
        note(request, policy=body.policy)
        person = operator(context, request, "change the policy")
        refuse_files(context, person, body.policy)
        context.scheduler.set_policy(make_policy(body.policy), body.policy)
        return Answer(views.policy(context.scheduler))

    @router.post("/gc", responses={200: {"model": CollectedOut}})
    def gc(request: Request, body: Collect) -> Response:
        """Delete jobs that have ended, with their logs and checkpoints. For operators."""
        note(request, older_s=body.older_s, keep=body.keep, dry_run=body.dry_run)
        operator(context, request, "delete jobs")
        asked = None if body.older_s is None and body.keep is None else Keep(body.older_s, body.keep)
        told = context.daemon.retention.collect(asked, dry_run=body.dry_run)
        return Answer({**told._asdict(), "dry_run": body.dry_run})

    @router.post("/reload", responses={200: {"model": Reloaded}})
    def reload(request: Request) -> Response:
        """Read the configuration again. If it has an error, nothing changes. For operators."""
        operator(context, request, "reload the configuration")
        return Answer({"file": context.daemon.reload()})


def _add_streams(router: APIRouter, context: ApiContext) -> None:
    @router.get("/events", response_class=StreamingResponse, responses=_EVENTS)
    async def events(
        request: Request,
        seen: Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)] = None,
        last: Annotated[str | None, Query(max_length=100, description="the same, for clients without headers")] = None,
    ) -> Response:
        """What happens, as server-sent events. With the id of the last event seen, those after it come first."""
        user, headers = context.person(request).name, {"Cache-Control": "no-store"}
        why = context.stream.refusal(user)
        if why:
            raise HTTPException(429, why, {"Retry-After": "10"})
        coming = context.stream.follow(seen or last, user=user, counts=lambda: context.signed_in(request))
        return StreamingResponse(coming, media_type="text/event-stream", headers=headers)

    _add_figures(router, context)


def _add_figures(router: APIRouter, context: ApiContext) -> None:
    @router.get("/metrics", response_class=Response, responses=_PROMETHEUS)
    async def metrics(request: Request) -> Response:
        """Figures for Prometheus."""
        user = context.person(request).name
        return await context.lists.run(user, lambda: Response(context.figures.text(), media_type=_FIGURES))
