"""The API as an ASGI application: REST under /v1, described by /v1/openapi.json."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fastapi import FastAPI

from fairway import __version__
from fairway.api.auth_middleware import AuthMiddleware
from fairway.api.cluster import cluster_router, root_router
from fairway.api.context import ApiContext
from fairway.api.errors import add_handlers
from fairway.api.job_views import job_views_router
from fairway.api.jobs import jobs_router
from fairway.api.operators import operators_router
from fairway.api.page_data import page_data_router
from fairway.api.people import Access
from fairway.api.schema import Error
from fairway.api.web_page import links_router, page_router
from fairway.runtime.daemon.daemon import Daemon

_REFUSALS = {
    401: "Over TCP: the token is missing or wrong, or has expired",
    403: "Not yours",
    404: "There is no such job or node",
    405: "This method is not possible here",
    409: "The job is in a state in which this cannot be done",
    413: "The body is larger than 1 MiB",
    422: "Something in the request is wrong",
    429: "Too much is being asked at once",
    503: "The scheduler is stopping",
    507: "The disk is nearly full; running jobs are not affected",
}


def operators_of(daemon: Daemon) -> Callable[[], Collection[str]]:
    """Who a daemon's configuration makes an operator, at any time."""

    def operators() -> Collection[str]:
        found: Any = getattr(daemon, "operators", ())
        return tuple(found() if callable(found) else found)

    return operators


def make_app(daemon: Daemon, access: Access | None = None) -> FastAPI:
    """The application that serves one daemon. `app.state.context` is what its routes share."""
    context = ApiContext(daemon, access or Access(operators=operators_of(daemon)))
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": Error, "description": what} for status, what in _REFUSALS.items()
    }
    app = FastAPI(
        title="Fairway",
        version=__version__,
        description="Jobs on shared GPUs: submit them, watch them, and ask why they wait.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=refusals,
    )
    app.state.context = context
    add_handlers(app)
    routers = (jobs_router, job_views_router, cluster_router, operators_router, links_router, page_data_router)
    for router in [one(context) for one in routers]:
        app.include_router(router, prefix="/v1")
    app.include_router(root_router(context))
    app.include_router(page_router(context))
    app.add_middleware(AuthMiddleware, access=context.access, audit=context.audit)
    return app
