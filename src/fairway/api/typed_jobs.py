"""Checks jobs as they are typed: what `POST /v1/jobs` would refuse, and what their owner should know.

Nothing is run. Of this machine's disk the sender learns what a submission would tell as well: whether the program and
the directory of the job are there for its owner.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from fairway.api.context import ApiContext
from fairway.api.people import NotAllowedError, Person
from fairway.api.schema import Submission
from fairway.api.view_schema import Typed
from fairway.core.errors import InputError
from fairway.runtime.guard.unheeded import unheeded
from fairway.runtime.jobs.request import JobRequest, checked, problems_in
from fairway.submission.draft import Draft
from fairway.submission.quantities import Array
from fairway.submission.typed_text import Remark, remark_of, typed_draft

_FIELDS = frozenset(field.name for field in fields(Submission))
_BESIDE = ("array", "client_key")
"""Fields of a submission that are none of its job."""


def check_typed(context: ApiContext, person: Person, typed: Typed) -> dict[str, Any]:
    """What is wrong with a submission, and bodies for `POST /v1/jobs` if nothing is."""
    problems, warnings, bodies = list[Remark](), list[Remark](), list[dict[str, Any]]()
    try:
        terms = {name: value for name, value in typed.terms.items() if name != "command"}
        problems += _problems({"command": ["?"], **terms}, whole=False)
        if not problems:
            draft = typed_draft(typed.kind, typed.text, terms, datetime.now().astimezone())
            warnings += [remark_of(remark, fields=_FIELDS) for remark in draft.remarks]
            body = _body(draft, terms)
            problems += _problems(body)
            if not problems:
                warnings += _refuse(context, person, body)
                bodies.append(body)
    except (InputError, NotAllowedError) as error:
        line = getattr(error, "line", None)
        problems.append(remark_of(getattr(error, "message", str(error)), line, _FIELDS))
    return {
        "ok": not problems,
        "problems": [one._asdict() for one in problems],
        "warnings": [one._asdict() for one in warnings],
        "jobs": [] if problems else bodies,
    }


def _problems(body: dict[str, Any], *, whole: bool = True) -> list[Remark]:
    """What is wrong with the fields of a submission. `whole`: also how they fit together."""
    try:
        found = problems_in(Submission, body)
    except InputError:
        if whole:
            raise
        return []
    return [
        Remark(None, place.partition(".")[0] or None, f"{place}: {text}" if place else text) for place, text in found
    ]


def _body(draft: Draft, terms: dict[str, Any]) -> dict[str, Any]:
    """A submission without what has its default. Its values may still be wrong."""
    values = draft.values({})
    array = values.pop("array", None)
    own = {name: values.pop(name) for name in _BESIDE if name in values}
    try:
        made = checked(JobRequest, values).plain()
    except InputError:
        # As it is: what is wrong with it is told field by field.
        made = values
    body = {**made, "cwd": values.get("cwd", "/"), **own}
    body["command"] = list(body["command"])
    told = draft.array if isinstance(draft.array, Array) and "array" not in terms else None
    if told is not None:
        body["array"] = list(told.tasks)
        if told.at_once:
            body["array_at_once"] = told.at_once
    elif array is not None:
        body["array"] = list(array)
    return body


def _refuse(context: ApiContext, person: Person, body: dict[str, Any]) -> list[Remark]:
    """Raise what a submission by this person would be refused for here; returns what they should know."""
    known: list[Remark] = []
    one = checked(Submission, body)
    user, account = one.user or person.name, ""
    if person.role == "read":
        known.append(Remark(None, None, "you may only look here; it cannot be submitted with this role"))
    else:
        user, account = context.access.owner(person, one.user)
    values = {name: value for name, value in vars(one).items() if name != "array"}
    request = checked(JobRequest, values | {"user": user, "account": account})
    context.scheduler.commands.refuse_impossible([request])
    context.daemon.settings.refuse([request])
    if person.role != "read":
        context.scheduler.refuse_unstartable([request])
    known += [Remark(None, None, note) for note in unheeded([request], context.scheduler.guard.policy)]
    if one.array is not None and len(set(one.array)) != len(one.array):
        raise InputError("array: a task number is given twice")
    return known
