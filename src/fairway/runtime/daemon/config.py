"""The configuration of a live scheduler: queues, users, tenants, GPU types, defaults, what to do with idle jobs.

It is a TOML file that is read again when it changes. Every key is checked. An error names the file and the key, and a
file with an error changes nothing. `docs/operations.md` lists the keys.

`refuse` and `refuse_too_many` say whether requests are allowed, and `given` what the configuration makes of one: its
queue and its defaults. `amended` does the same for the changes that an owner asks for.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from fairway.core.errors import InputError
from fairway.core.tenant import CellSpec, TenantSpec
from fairway.core.units import MOST_PRIORITY, duration_s, size_bytes
from fairway.runtime.daemon.gpu_sharing import SharingWish
from fairway.runtime.jobs.estimates import same_type
from fairway.runtime.jobs.request import (
    MOST_TASKS,
    MOST_WEIGHT,
    NOTHING_ELSE,
    FieldPath,
    Flag,
    JobRequest,
    Name,
    Positive,
    Priority,
    Retries,
    Seconds,
    Whole,
    checked,
)

EVERYBODY = "*"
"""The name for the limits of all users who are not named themselves."""
MOST_BYTES = 1 << 50
LEAST_WEIGHT = 1e-6
DEFAULT_QUEUE = "default"


def _written(read: Callable[[str], float]) -> BeforeValidator:
    """A quantity that is a number, or a text with a unit."""

    def number(value: Any) -> Any:
        try:
            return read(value) if isinstance(value, str) else value
        except InputError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(number)


Duration = Annotated[Seconds, _written(duration_s)]
PositiveDuration = Annotated[Positive, _written(duration_s)]
LogBytes = Annotated[
    Whole, Field(ge=4096, le=MOST_BYTES), _written(lambda text: int(text) if text.isdecimal() else size_bytes(text))
]
HeldBytes = Annotated[
    Whole, Field(ge=1 << 20, le=MOST_BYTES), _written(lambda text: int(text) if text.isdecimal() else size_bytes(text))
]
HostBytes = Annotated[
    Whole, Field(ge=0, le=MOST_BYTES), _written(lambda text: int(text) if text.isdecimal() else size_bytes(text))
]
Count = Annotated[Whole, Field(ge=0, le=1_000_000)]
KeptJobs = Annotated[Whole, Field(ge=0, le=100_000_000)]
Factor = Annotated[float, Field(strict=True, gt=0, le=1000, allow_inf_nan=False)]
ByType = Annotated[dict[str, Count], AfterValidator(lambda types: {name.lower(): types[name] for name in types})]


@dataclass(frozen=True)
class Terms:
    """What jobs of one queue or one user may have; None means no limit.

    `weight` multiplies the weight of each job, and `priority` is added to its priority. `max_gpus` and `max_running`
    count running jobs; `max_jobs` also counts waiting ones. `types` limits GPUs by type. `limit_s` is the time limit of
    jobs that ask for none, `max_limit_s` the longest that they may ask for.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    weight: Factor = 1.0
    priority: Priority = 0
    max_gpus: Count | None = None
    max_running: Count | None = None
    max_jobs: Count | None = None
    max_gpus_per_job: Count | None = None
    max_priority: Priority | None = None
    limit_s: PositiveDuration | None = None
    max_limit_s: PositiveDuration | None = None
    types: ByType = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.limit_s is not None and self.max_limit_s is not None and self.limit_s > self.max_limit_s:
            raise ValueError("limit_s is longer than max_limit_s")


@dataclass(frozen=True)
class Queue(Terms):
    """A queue. Only `users` may submit to it; if empty, every user may. Its other own fields limit each user."""

    users: tuple[Name, ...] = ()
    max_gpus_per_user: Count | None = None
    max_running_per_user: Count | None = None


@dataclass(frozen=True)
class Defaults:
    """What jobs get if they do not ask for something else, and how large their logs may grow.

    `log_progress`: the progress of jobs that report nothing is read off their logs. `export`: which variables of their
    submitters' shells jobs get, as `--export` has it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    queue: Name = ""
    retries: Retries = 0
    grace_s: Duration | None = None
    limit_s: PositiveDuration | None = None
    log_bytes: LogBytes = 100 << 20
    log_progress: Flag = True
    export: Annotated[str, Field(strict=True, max_length=4096, pattern=r"^[A-Za-z_]\w*(,[A-Za-z_]\w*)*$")] = "ALL"


@dataclass(frozen=True)
class Idle:
    """When the owner of an idle job is warned, and when the job loses its GPUs: after this many seconds.

    `action` says how: "hold" takes the job off its GPUs until its owner releases it, "cancel" ends it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    warn_s: PositiveDuration | None = None
    reclaim_s: PositiveDuration | None = None
    action: Literal["hold", "cancel"] = "hold"

    def __post_init__(self) -> None:
        if self.warn_s is not None and self.reclaim_s is not None and self.reclaim_s < self.warn_s:
            raise ValueError("reclaim_s is shorter than warn_s")


@dataclass(frozen=True)
class Bounds:
    """The most that a scheduler takes. No ordinary user meets these.

    `jobs`, `jobs_per_user` and `bytes_per_user` count jobs that have not ended. Bytes are those of their requests; an
    environment counts once.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    jobs: Count = 100_000
    jobs_per_user: Count = 20_000
    array_tasks: Annotated[Whole, Field(ge=1, le=MOST_TASKS)] = 10_000
    submissions_per_minute: Annotated[Whole, Field(ge=1, le=1_000_000)] = 6_000
    bytes_per_user: HeldBytes = 64 << 20


@dataclass(frozen=True)
class Keep:
    """Which jobs that have ended are kept: those that ended in the last `keep_s`, and the latest `keep_jobs`.

    A job that breaks one of the two rules leaves. None is no rule.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    keep_s: PositiveDuration | None = 30 * 86400.0
    keep_jobs: KeptJobs | None = 50_000


@dataclass(frozen=True)
class GpuTerms:
    """How GPUs are used. All suspended jobs together may take `host_memory_bytes` for their GPU memory.

    Half of the machine's memory is allowed if nothing is said. 0 leaves suspended jobs on their GPUs.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    host_memory_bytes: HostBytes | None = None


@dataclass(frozen=True)
class Tenant:
    """A team with a virtual cluster of its own, in the words of the tenants file of simulations.

    Its jobs are those in its `queues` (without any: in the queue of its name), and those of its `users` in queues that
    no tenant claims.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    cells: tuple[str, ...]
    queues: tuple[Name, ...] = ()
    users: tuple[Name, ...] = ()

    def __post_init__(self) -> None:
        if not self.cells:
            raise ValueError('it reserves no cells; write for example cells = ["1x8"]')
        try:
            self.spec("any")
        except InputError as error:
            raise ValueError(f"cells: {error.message}") from None

    def spec(self, name: str) -> TenantSpec:
        """The tenant under its name."""
        return TenantSpec(name, tuple(map(CellSpec.of, self.cells)), self.queues, self.users)


@dataclass(frozen=True)
class Config:
    """The whole configuration. Without a file there are only the bounds.

    `private`: only its owner and operators see the logs, the command and the directory of a job. `sharing` says how
    jobs that ask for a share of a GPU share it: by "mps", in "turns", or "auto", which is MPS where it can be had.
    `over_share` says what happens to a job that has more memory on a GPU than its share while others share the GPU.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    operators: tuple[Name, ...] = ()
    private: Flag = False
    sharing: SharingWish = "auto"
    over_share: Literal["warn", "cancel"] = "warn"
    queues: dict[Name, Queue] = field(default_factory=dict)
    users: dict[str, Terms] = field(default_factory=dict)
    defaults: Defaults = Defaults()
    idle: Idle = Idle()
    limits: Bounds = Bounds()
    retention: Keep = Keep()
    gpu: GpuTerms = GpuTerms()
    tenants: dict[Name, Tenant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.queues and self.defaults.queue and self.defaults.queue not in self.queues:
            raise ValueError(f"defaults.queue: there is no queue {self.defaults.queue!r}")
        for name, tenant in self.tenants.items() if self.queues else ():
            for queue in tenant.queues or (() if tenant.users else (name,)):
                if queue not in self.queues:
                    raise ValueError(f"tenants.{name}: there is no queue {queue!r}; there are {', '.join(self.queues)}")

    def tenant_specs(self) -> list[TenantSpec]:
        """The tenants, in the order of the file."""
        return [tenant.spec(name) for name, tenant in self.tenants.items()]

    def queue_names(self) -> list[str]:
        """The queues that jobs may name. Tenants and the default may name queues that have no terms of their own."""
        if self.queues:
            return list(self.queues)
        of_tenants = [tenant.queues or (() if tenant.users else (name,)) for name, tenant in self.tenants.items()]
        usual = [self.defaults.queue] if self.defaults.queue else []
        return list(dict.fromkeys([*usual, *(queue for queues in of_tenants for queue in queues)]))

    def queue_of(self, name: str) -> Queue:
        """The terms of a queue; terms without limits if the configuration does not name it."""
        return self.queues.get(name, _NO_QUEUE)

    def user_of(self, name: str) -> Terms:
        """The terms of a user."""
        return self.users.get(name) or self.users.get(EVERYBODY) or _NO_TERMS


_NO_QUEUE, _NO_TERMS = Queue(), Terms()
NO_CONFIG = Config()
_TABLES = {
    "queues": Queue,
    "users": Terms,
    "defaults": Defaults,
    "idle": Idle,
    "limits": Bounds,
    "retention": Keep,
    "gpu": GpuTerms,
    "tenants": Tenant,
}


class ConfigError(InputError):
    """The configuration cannot be used. The text names the file and the key."""


def read_config(path: Path) -> tuple[Config, str]:
    """The configuration in a file, and the text of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return parse_config(text, str(path)), text


def parse_config(text: str, name: str = "the configuration") -> Config:
    """The configuration that a text describes."""
    try:
        return checked(Config, tomllib.loads(text), unknown=_unknown)
    except (ValueError, InputError) as error:
        raise ConfigError(f"{name}: {error}") from None


def _unknown(place: FieldPath) -> str:
    """The message about an unknown key: it names the most similar key, or all keys."""
    known = [one.name for one in fields(_TABLES[str(place[0])] if len(place) > 1 else Config)]
    close = get_close_matches(str(place[-1]), known, n=1)
    return (
        f"there is no such key; did you mean {close[0]}?"
        if close
        else f"there is no such key; there are {', '.join(known)}"
    )


class NotAdmittedError(InputError):
    """The configuration does not allow this job."""


def refuse(request: JobRequest, config: Config) -> None:
    """Raise `NotAdmittedError` if a request is not allowed, however few jobs there are."""
    name = queue_named(request.queue, config)
    _refuse_queue(name, request.user, config)
    _refuse_too_large(request, config.user_of(request.user), f"user {request.user}")
    _refuse_too_large(request, config.queue_of(name), f"queue {name}")


def refuse_too_many(
    new: Mapping[tuple[str, str], int], config: Config, active: Callable[[], Iterable[tuple[str, str]]]
) -> None:
    """Raise `NotAdmittedError` if new jobs, counted by user and queue, are more than their users or queues may have.

    `active` gives the user and the queue of every job that has not ended. It is called only if the configuration limits
    numbers of jobs.
    """
    limited = [*config.users.values(), *config.queues.values()]
    if all(terms.max_jobs is None for terms in limited):
        return
    old = Counter(active())
    for at, terms_of, kind in ((0, config.user_of, "user"), (1, config.queue_of, "queue")):
        added, there = _summed(new, at), _summed(old, at)
        for name, count in added.items():
            most, total = terms_of(name).max_jobs, count + there[name]
            if most is not None and total > most:
                raise NotAdmittedError(f"{kind} {name} may have {most} jobs queued and running; this makes {total}")


def _summed(jobs: Mapping[tuple[str, str], int], at: int) -> Counter[str]:
    made: Counter[str] = Counter()
    for place, count in jobs.items():
        made[place[at]] += count
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


def given(request: JobRequest, config: Config) -> JobRequest:
    """A request that is allowed, with the terms that it gets."""
    request = replace(request, queue=queue_named(request.queue, config))
    user, queue = config.user_of(request.user), config.queue_of(request.queue)
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


def queue_named(asked: str, config: Config) -> str:
    """The queue of a request that asks for this one."""
    return asked or config.defaults.queue or (DEFAULT_QUEUE if DEFAULT_QUEUE in config.queues else "")


def _refuse_queue(name: str, user: str, config: Config) -> None:
    """Raise `NotAdmittedError` if there is no such queue, or it does not take jobs of this user."""
    queues = config.queue_names()
    if not name:
        if config.queues:
            raise NotAdmittedError(f"name a queue; there are {', '.join(queues)}")
        return
    if name not in queues:
        raise NotAdmittedError(_no_queue(name, queues))
    if name not in config.queues:
        return
    users = config.queues[name].users
    if users and user not in users:
        raise NotAdmittedError(f"queue {name} is for {', '.join(users)} only")


def _no_queue(name: str, queues: Sequence[str]) -> str:
    """The message about a queue that the configuration does not name."""
    if not queues:
        return f"there is no queue {name!r}; the configuration names none. Leave the queue out"
    close = get_close_matches(name, queues, n=1)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(queues)}"
    return f"there is no queue {name!r}; {meant}"


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
