"""The part of the API for operators: tokens, and the log of what was changed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from fairway.api.answers import Answer
from fairway.api.auth_middleware import note
from fairway.api.context import ApiContext
from fairway.api.people import NotAllowedError, Person, user_id, user_name
from fairway.api.schema import AuditEntries, Since, TokenIn, TokenMade, TokenOut, TokenRows, TokenText
from fairway.api.tokens import Token
from fairway.core.errors import InputError
from fairway.runtime.jobs.request import Name

TokenName = Annotated[TokenText, Path(description="the name of a token")]


def operators_router(context: ApiContext) -> APIRouter:
    """All routes for operators."""
    router = APIRouter(tags=["operators"])
    _add_tokens(router, context)
    _add_audit(router, context)
    return router


def operator(context: ApiContext, request: Request, what: str) -> Person:
    """Who sent a request that only operators may send."""
    person = context.person(request)
    if not person.operator:
        raise NotAllowedError(f"only operators can {what}; you are {person.name}")
    return person


def _add_tokens(router: APIRouter, context: ApiContext) -> None:
    tokens = context.tokens

    @router.get("/tokens", responses={200: {"model": TokenRows}})
    def ls(request: Request) -> Response:
        """All tokens, without their secrets. For operators."""
        operator(context, request, "see tokens")
        return Answer({"tokens": [_shown(one) for one in tokens.all()]})

    @router.post("/tokens", status_code=201, responses={201: {"model": TokenMade}})
    def create(request: Request, body: TokenIn) -> Response:
        """Make a token. The answer has its secret, which is not kept. For operators."""
        person = operator(context, request, "make tokens")
        note(request, name=body.name, role=body.role, for_user=body.user or person.name)
        uid = user_id(body.user) if body.user and body.user != person.name else person.uid
        if uid is None:
            raise InputError(f"user: there is no account {body.user!r} on this machine")
        _refuse_stronger(context, person, uid)
        made, secret = tokens.create(body.name, body.role, uid, by=person.name, lasts_s=body.lasts_s)
        return Answer({**_shown(made), "token": secret}, 201)

    @router.post("/tokens/{name}/rotate", responses={200: {"model": TokenMade}})
    def rotate(request: Request, name: TokenName) -> Response:
        """Give a token a new secret, and as much time again. The old one counts no more. For operators."""
        person = operator(context, request, "renew tokens")
        _refuse_stronger(context, person, tokens.known(name).uid)
        made, secret = tokens.rotate(name, by=person.name)
        return Answer({**_shown(made), "token": secret})

    @router.delete("/tokens/{name}", responses={200: {"model": TokenOut}})
    def revoke(request: Request, name: TokenName) -> Response:
        """Revoke a token. It counts no more. For operators."""
        operator(context, request, "revoke tokens")
        return Answer(_shown(tokens.revoke(name)))


def _refuse_stronger(context: ApiContext, person: Person, uid: int) -> None:
    """Root and the scheduler's own user may do more than operators, so only they get tokens that stand for them."""
    if uid in (0, context.access.own_uid) and person.uid not in (0, uid):
        raise NotAllowedError(f"{person.name} cannot make tokens of {user_name(uid)}")


def _shown(token: Token) -> dict[str, Any]:
    return {
        "name": token.name,
        "role": token.role,
        "user": user_name(token.uid),
        "made_s": token.made_s,
        "made_by": token.made_by,
        "expires_s": token.expires_s,
    }


def _add_audit(router: APIRouter, context: ApiContext) -> None:
    @router.get("/audit", responses={200: {"model": AuditEntries}})
    def audit(
        request: Request,
        user: Annotated[Name | None, Query()] = None,
        since: Since = None,
        limit: Annotated[int, Query(ge=1, le=100_000)] = 1000,
    ) -> Response:
        """Who changed what since a date: the latest `limit` entries, the latest last. For operators."""
        operator(context, request, "read the audit log")
        return Answer({"entries": context.audit.entries(since_s=since or 0.0, user=user, limit=limit)})
