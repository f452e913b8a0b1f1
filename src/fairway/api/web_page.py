"""The web page: its files, signing in and out, and the links that sign in.

The files hold no data, so everybody may have them. All data comes from the API, which wants to know who asks.
"""

from __future__ import annotations

import gzip
import hashlib
import time
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fairway.api.answers import Answer
from fairway.api.auth_middleware import note, sender
from fairway.api.context import ApiContext
from fairway.api.errors import refusal
from fairway.api.page_port import written
from fairway.api.page_schema import LinkIn, LinkOut, SignIn
from fairway.api.people import SIGNED_OUT, NotAllowedError, Person, user_name
from fairway.api.request_origin import PEER, cookie_name, cookie_of, peer_of
from fairway.api.tokens import NoTokenError
from fairway.api.web_sessions import LINK_S, LONGEST_S, Bearer, TooManyFailuresError, csrf_of

INDEX = "index.html"
_KINDS = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "webmanifest": "application/manifest+json",
}


class Asset(NamedTuple):
    """A file of the page, as it is sent."""

    content: bytes
    packed: bytes
    kind: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """The files of the page by name. They are read once."""
    found = {}
    for one in files("fairway.web").joinpath("assets").iterdir():
        kind = _KINDS.get(one.name.rpartition(".")[2])
        if kind is not None:
            content = one.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            found[one.name] = Asset(content, gzip.compress(content, 9, mtime=0), kind, tag)
    return found


def page_router(context: ApiContext) -> APIRouter:
    """The page's files, and signing in: routes at the root, which are no part of the API."""
    router = APIRouter(include_in_schema=False)
    _add_sessions(router, context)
    _add_assets(router)
    return router


def links_router(context: ApiContext) -> APIRouter:
    """The route that gives links to the page."""
    router = APIRouter(tags=["page"])

    @router.post("/web", status_code=201, responses={201: {"model": LinkOut}})
    async def web(request: Request, body: LinkIn) -> Response:
        """A link that signs in to the web page once, as you. If no port is open, operators have one opened."""
        person, port = context.person(request), context.page_port
        note(request, read_only=body.read_only)
        if person.session:
            raise NotAllowedError("a page cannot make links; run `fairway web`")
        address = port.known(body.address)
        if address is None and not person.operator:
            raise NotAllowedError(
                "the page has no such port; an operator opens it: `fairway web`, or `fairway up --web`"
            )
        address = address or await port.open(body.address)
        role = "read" if body.read_only else person.role
        secret = context.sessions.link(Bearer(person.uid, role, person.token, _digest(context, person)))
        url = f"http://{written(address)}/"
        return Answer({"url": f"{url}#link={secret}", "address": url, "expires_s": LINK_S}, 201)

    return router


def _digest(context: ApiContext, person: Person) -> str:
    """The digest of the token that somebody came with: a link ends with it."""
    return context.access.digest(person.token) if person.token else ""


def _add_assets(router: APIRouter) -> None:
    @router.get("/")
    def index(request: Request) -> Response:
        """The page."""
        return _asset(request, INDEX)

    @router.get("/web/{name}")
    def asset(request: Request, name: Annotated[str, Path(max_length=100)]) -> Response:
        """A file of the page."""
        return _asset(request, name)


def _asset(request: Request, name: str) -> Response:
    found = assets().get(name)
    if found is None:
        raise HTTPException(404)
    headers = {"ETag": found.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(found.content, headers=headers, media_type=found.kind)
    return Response(found.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=found.kind)


def _add_sessions(router: APIRouter, context: ApiContext) -> None:
    sessions, access = context.sessions, context.access

    @router.post("/web/session")
    def sign_in(request: Request, body: SignIn) -> Response:
        """Sign in by a link or a token."""
        peer = peer_of(request.scope)
        try:
            sessions.check_failures(peer)
            bearer = _bearer(context, body, peer)
        except TooManyFailuresError as error:
            return refusal(429, str(error), {"Retry-After": "60"})
        except NoTokenError as error:
            sessions.note_failure(peer)
            _note_sign_in(context, {"uid": peer}, status=401, error=str(error))
            return refusal(401, str(error))
        # Whatever cookie came along is not used: the new session has a secret of its own.
        sessions.end(cookie_of(request.scope))
        session, secret = sessions.begin(bearer, peer)
        person = access.signed_in(session)
        _note_sign_in(context, sender(person), status=200, role=bearer.role)
        answer = Answer(_told(person, secret))
        answer.set_cookie(
            cookie_name(request.scope), secret, max_age=int(LONGEST_S), path="/", httponly=True, samesite="strict"
        )
        return answer

    @router.get("/web/session")
    def signed_in(request: Request) -> Response:
        """Who has signed in. On the Unix socket the kernel says it."""
        if str((request.scope.get("client") or ("",))[0]).startswith(PEER):
            return Answer(_told(access.person(request.scope), ""))
        session = access.session(request.scope)
        if session is None:
            return refusal(401, SIGNED_OUT)
        return Answer(_told(access.signed_in(session), cookie_of(request.scope)))

    @router.delete("/web/session")
    def sign_out(request: Request) -> Response:
        """Sign out: the cookie counts no more."""
        access.person(request.scope)
        sessions.end(cookie_of(request.scope))
        answer = Answer({})
        answer.delete_cookie(cookie_name(request.scope), path="/", httponly=True, samesite="strict")
        return answer


def _bearer(context: ApiContext, body: SignIn, peer: int) -> Bearer:
    """For whom somebody signs in; `NoTokenError` if the link or the token does not count."""
    if body.link is None:
        return context.access.bearer(f"Bearer {body.token}".encode())
    found = context.sessions.use_link(body.link, peer)
    if not context.access.stands(found):
        raise NoTokenError("the token that this link was made with counts no more")
    return found


def _note_sign_in(context: ApiContext, who: dict[str, Any], **about: Any) -> None:
    request = {"method": "POST", "path": "/web/session"}
    context.audit.note({"time_s": time.time(), "user": user_name(who["uid"]), **who, **request, **about})


def _told(person: Person, secret: str) -> dict[str, Any]:
    """Who somebody is, for the page."""
    return {
        "user": person.name,
        "role": person.role,
        "operator": person.operator,
        "csrf": csrf_of(secret) if secret else "",
    }
