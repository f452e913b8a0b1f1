"""Environments of jobs, each kept once: the tasks of an array, and all jobs with equal variables, share one object."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from copy import copy
from weakref import WeakValueDictionary

from fairway.runtime.jobs.request import JobRequest


class SharedEnvironment(dict[str, str]):
    """The variables of a job. It is never changed. `hash` is the same for equal variables, `size` is their length."""

    __slots__ = ("__weakref__", "hash", "size")

    def __init__(self, variables: Mapping[str, str], content_hash: str) -> None:
        super().__init__(variables)
        self.hash = content_hash
        self.size = sum(len(name) + len(value) for name, value in self.items())


_known: WeakValueDictionary[str, SharedEnvironment] = WeakValueDictionary()
"""All environments in memory. One that no job has any more leaves by itself."""


def hash_of(variables: Mapping[str, str]) -> str:
    """The hash of some variables, whatever their order."""
    text = json.dumps(variables, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


NO_VARIABLES = SharedEnvironment({}, hash_of({}))


def shared(variables: Mapping[str, str]) -> SharedEnvironment:
    """The one object for these variables."""
    if isinstance(variables, SharedEnvironment):
        return variables
    if not variables:
        return NO_VARIABLES
    content_hash = hash_of(variables)
    found = _known.get(content_hash)
    if found is None:
        found = _known.setdefault(content_hash, SharedEnvironment(variables, content_hash))
    return found


def sharing(requests: Iterable[JobRequest], *, account: str = "") -> list[JobRequest]:
    """The requests, with environments that they share, and with an account if they have none.

    Tasks of an array come with one object, which is hashed once.
    """
    requests = list(requests)
    made = {id(one.env): one.env for one in requests}
    known = {key: shared(env) for key, env in made.items()}
    return [with_environment(one, known[id(one.env)], one.account or account) for one in requests]


def with_environment(request: JobRequest, env: SharedEnvironment, account: str | None = None) -> JobRequest:
    """The request with another environment and account. Nothing else of it is checked again, which would take long."""
    made = copy(request)
    object.__setattr__(made, "env", env)
    if account is not None:
        object.__setattr__(made, "account", account)
    return made
