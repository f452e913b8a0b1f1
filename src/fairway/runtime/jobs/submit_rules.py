"""What happens to a request when it is submitted: its queue, its defaults, and whether it is allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairway.core.errors import InputError
from fairway.core.units import MOST_PRIORITY
from fairway.runtime.daemon.config import Config, Queue, Terms
from fairway.runtime.jobs.estimates import same_type
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.schema import MOST_WEIGHT

LEAST_WEIGHT = 1e-6
DEFAULT_QUEUE = "default"


class NotAdmittedError(InputError):
    """The configuration does not allow this job."""


def admitted(
    requests: Sequence[JobRequest], config: Config, active: Callable[[], Sequence[tuple[str, str]]] = list
) -> list[JobRequest]:
    """The requests as they are queued, all of them or none.

    `active` gives the user and the queue of every job that has not ended. It is called only if the configuration limits
    numbers of jobs.
    """
    made = [_with_terms(request, config) for request in requests]
    limited = [*config.users.values(), *config.queues.values()]
    if made and any(terms.max_jobs is not None for terms in limited):
        _refuse_too_many(made, config, active())
    return made


def amended(request: JobRequest, changes: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The changes that are made to a queued job when its owner asks for some: by the same rules as at its submission.

    If the time limit is removed, the longest allowed limit applies.
    """
    made = dict(changes)
    user, queue = config.user_of(request.user), config.queue_of(request.queue)
    for terms, who in ((user, f"user {request.user}"), (queue, f"queue {request.queue}")):
        _refuse_terms(changes.get("priority"), changes.get("limit_s"), terms, who)
    weight, priority = _factors(request, config)
    if "weight" in changes:
        made["weight"] = _weighted(changes["weight"] * weight)
    if "priority" in changes:
        made["priority"] = _bounded(changes["priority"] + priority)
    if "limit_s" in changes:
        made["limit_s"] = _shortest(changes["limit_s"], user, queue)
    return made


def changed_terms(request: JobRequest, old: Config, new: Config) -> JobRequest:
    """A request that was admitted under one configuration, with the weight and priority of another."""
    before, after = _factors(request, old), _factors(request, new)
    if before == after:
        return request
    weight = _weighted(request.weight / before[0] * after[0])
    return replace(request, weight=weight, priority=_bounded(request.priority - before[1] + after[1]))


def _factors(request: JobRequest, config: Config) -> tuple[float, int]:
    user, queue = config.user_of(request.user), config.queue_of(request.queue)
    return user.weight * queue.weight, user.priority + queue.priority


def _weighted(weight: float) -> float:
    return min(max(weight, LEAST_WEIGHT), MOST_WEIGHT)


def _bounded(priority: int) -> int:
    return max(-MOST_PRIORITY, min(priority, MOST_PRIORITY))


def _with_terms(request: JobRequest, config: Config) -> JobRequest:
    request = replace(request, queue=_queue_of(request, config))
    user, queue = config.user_of(request.user), config.queue_of(request.queue)
    for terms, who in ((user, f"user {request.user}"), (queue, f"queue {request.queue}")):
        _refuse_too_large(request, terms, who)
    weight, priority = _factors(request, config)
    most = [terms.max_gpus_per_job for terms in (user, queue) if terms.max_gpus_per_job is not None]
    defaults = config.defaults
    asked_s = request.grace_s
    return replace(
        request,
        weight=_weighted(request.weight * weight),
        priority=_bounded(request.priority + priority),
        gpus_max=min([request.gpus_max, *most]),
        limit_s=_limit_s(request, user, queue, defaults.limit_s),
        retries=request.retries or defaults.retries,
        grace_s=asked_s if defaults.grace_s is None or asked_s != JobRequest.grace_s else defaults.grace_s,
    )


def _queue_of(request: JobRequest, config: Config) -> str:
    """The queue of a request; `NotAdmittedError` if there is none or it does not take the request."""
    default = config.defaults.queue or (DEFAULT_QUEUE if DEFAULT_QUEUE in config.queues else "")
    name = request.queue or default
    if not config.queues:
        return name
    known = ", ".join(config.queues)
    if not name:
        raise NotAdmittedError(f"name a queue; there are {known}")
    if name not in config.queues:
        raise NotAdmittedError(f"there is no queue {name!r}; there are {known}")
    users = config.queues[name].users
    if users and request.user not in users:
        raise NotAdmittedError(f"queue {name} is for {', '.join(users)} only")
    return name


def _refuse_too_large(request: JobRequest, terms: Terms, who: str) -> None:
    most = [terms.max_gpus_per_job, terms.max_gpus]
    if isinstance(terms, Queue):
        most.append(terms.max_gpus_per_user)
    for limit in most:
        if limit is not None and request.gpus > limit:
            raise NotAdmittedError(f"it asks for {request.gpus} GPU{'s' * (request.gpus != 1)}; {who} may have {limit}")
    wanted = request.gpu_types
    barred = [name for name in wanted for kind, count in terms.types.items() if same_type(name, kind) and not count]
    if wanted and len(barred) == len(wanted):
        raise NotAdmittedError(f"{who} may not use GPUs of type {', '.join(wanted)}")
    _refuse_terms(request.priority, request.limit_s, terms, who)


def _refuse_terms(priority: int | None, limit_s: float | None, terms: Terms, who: str) -> None:
    if terms.max_priority is not None and priority is not None and priority > terms.max_priority:
        raise NotAdmittedError(f"priority {priority} is above {terms.max_priority}, the most for {who}")
    if terms.max_limit_s is not None and limit_s is not None and limit_s > terms.max_limit_s:
        raise NotAdmittedError(f"time limit {limit_s:g} s is above {terms.max_limit_s:g} s, the most for {who}")


def _limit_s(request: JobRequest, user: Terms, queue: Queue, default_s: float | None) -> float | None:
    """The time limit: as asked for, else that of the user, of the queue, or the default; never above the longest."""
    chosen = next((one for one in (request.limit_s, user.limit_s, queue.limit_s, default_s) if one is not None), None)
    return _shortest(chosen, user, queue)


def _shortest(limit_s: float | None, user: Terms, queue: Queue) -> float | None:
    limits = [one for one in (limit_s, user.max_limit_s, queue.max_limit_s) if one is not None]
    return min(limits) if limits else None


def _refuse_too_many(requests: Sequence[JobRequest], config: Config, active: Sequence[tuple[str, str]]) -> None:
    for at, terms_of, kind in ((0, config.user_of, "user"), (1, config.queue_of, "queue")):
        for name, new in Counter((request.user, request.queue)[at] for request in requests).items():
            most = terms_of(name).max_jobs
            if most is not None:
                total = new + [one[at] for one in active].count(name)
                if total > most:
                    raise NotAdmittedError(f"{kind} {name} may have {most} jobs queued and running; this makes {total}")
