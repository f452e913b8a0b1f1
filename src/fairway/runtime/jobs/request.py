"""What a user submits: a command with its demands, checked in one place for the API, the command line and scripts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Literal

from fairway.core.errors import InputError
from fairway.core.job import MOST_PRIORITY, MOST_SECONDS

Preempt = Literal["checkpoint", "suspend", "restart", "never"]
PREEMPTS: tuple[Preempt, ...] = ("checkpoint", "suspend", "restart", "never")
Processes = Literal["one", "per_gpu"]
DependencyKind = Literal["afterok", "afterany", "afternotok"]
DEPENDENCIES: tuple[DependencyKind, ...] = ("afterok", "afterany", "afternotok")

MOST_ARGUMENTS, MOST_TEXT, MOST_ENVIRONMENT = 4096, 131_072, 1024
MOST_GPUS, MOST_SHOWN = 4096, 4096
MOST_INT = 2**53
MOST_WEIGHT = 1e6
MOST_NAME = 200
_NAME = re.compile(r"[^\x00-\x1f\x7f/]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Dependency:
    """Wait for another job: until it has completed (`afterok`), ended (`afterany`), or failed (`afternotok`)."""

    kind: DependencyKind
    job: str


@dataclass(frozen=True)
class JobRequest:
    """One job as its owner asks for it.

    `gpus` is the gang, `gpus_min..gpus_max` the elastic range. `preempt` says how its GPUs can be taken away: by
    "checkpoint" (SIGTERM, it saves and exits with 75), by "suspend" in place (its memory stays), by a "restart" from
    the beginning, or "never". `limit_s` is the longest it may run, `expected_s` a guess of its run time. `steps`,
    `epochs`, `model` and `batch_size` tell schedulers more where they are known. `processes` starts the command once,
    or once for each GPU with ranks as torchrun would give them. `client_key` makes a submission idempotent. `account`
    is whom the processes run as where the scheduler is root's; it is set by whoever has checked who submits. Of an
    array at most `array_at_once` tasks run at a time, if that is not 0. `shown` is what people see in the place of a
    command that is not what they wrote, as where a script of theirs is wrapped.
    """

    command: tuple[str, ...]
    user: str = ""
    name: str = ""
    queue: str = ""
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 1
    gpus_min: int = 0
    gpus_max: int = 0
    gpu_types: tuple[str, ...] = ()
    memory_bytes: int = 0
    priority: int = 0
    weight: float = 1.0
    limit_s: float | None = None
    expected_s: float | None = None
    deadline_s: float | None = None
    begin_s: float | None = None
    preempt: Preempt = "suspend"
    grace_s: float = 60.0
    retries: int = 0
    processes: Processes = "one"
    hold: bool = False
    depends: tuple[Dependency, ...] = ()
    steps: float | None = None
    epochs: float | None = None
    model: str = ""
    batch_size: int | None = None
    slurm_env: bool = False
    array_task: int | None = None
    array_at_once: int = 0
    client_key: str | None = None
    account: str = ""
    shown: str = ""

    def __post_init__(self) -> None:
        low, high = self.gpus_min or self.gpus, self.gpus_max or self.gpus
        object.__setattr__(self, "gpus_min", low)
        object.__setattr__(self, "gpus_max", high)
        problem = _problem_in_command(self) or _problem_in_demands(self) or _problem_in_terms(self)
        if problem:
            raise InputError(f"this job cannot be taken: {problem}")

    @property
    def elastic(self) -> bool:
        return self.gpus_min != self.gpus_max

    def plain(self) -> dict[str, Any]:
        """The request as JSON values, without what has its default."""
        made = {**vars(self), "env": dict(self.env), "depends": [asdict(one) for one in self.depends]}
        return {name: made[name] for name, default in _defaults() if made[name] not in (default, [], ())}

    @staticmethod
    def from_plain(values: Mapping[str, Any]) -> JobRequest:
        """Read what `plain` gave."""
        known = dict(values)
        for name in ("command", "gpu_types"):
            if name in known:
                known[name] = tuple(known[name])
        known["depends"] = tuple(Dependency(**one) for one in known.get("depends", ()))
        return JobRequest(**known)

    def task(self, number: int) -> JobRequest:
        """The same request as one task of an array."""
        return replace(self, array_task=number, env={**self.env, "FAIRWAY_ARRAY_TASK_ID": str(number)})


def is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8. A word of a command line that is no UTF-8 cannot."""
    # Nearly everything is ASCII, which costs nothing to see.
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)


@cache
def _defaults() -> tuple[tuple[str, Any], ...]:
    """The fields of a request with what they are where nothing else is said."""
    return tuple((one.name, None if callable(one.default_factory) else one.default) for one in fields(JobRequest))


def _problem_in_command(request: JobRequest) -> str | None:
    if not request.command or not request.command[0]:
        return "there is no command"
    if len(request.command) > MOST_ARGUMENTS or sum(map(len, request.command)) > MOST_TEXT:
        return f"the command is longer than {MOST_ARGUMENTS} words or {MOST_TEXT} characters"
    if any("\0" in word for word in request.command):
        return "the command has a null character"
    for word in request.command:
        if not is_text(word):
            return f"the command has a word that is not UTF-8: {word[:60]!a}"
    if len(request.shown) > MOST_SHOWN or "\0" in request.shown:
        return f"what is shown of the command is longer than {MOST_SHOWN} characters, or has a null character"
    for what in ("name", "queue", "user", "model"):
        if len(getattr(request, what)) > MOST_NAME:
            return f"the {what} {getattr(request, what)[:20] + '…'!r} is longer than {MOST_NAME} characters"
        if not _NAME.fullmatch(getattr(request, what)) or not is_text(getattr(request, what)):
            return f"the {what} {getattr(request, what)[:60]!r} has characters that a name may not have"
    if not PurePosixPath(request.cwd).is_absolute() or "\0" in request.cwd:
        return f"the working directory {request.cwd[:60]!r} is not an absolute path"
    if not is_text(request.cwd):
        return f"the name of the working directory is not UTF-8: {request.cwd[:60]!a}"
    if len(request.env) > MOST_ENVIRONMENT:
        return f"there are more than {MOST_ENVIRONMENT} environment variables"
    for name, value in request.env.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value or len(value) > MOST_TEXT:
            return f"{name[:60]!r} is no environment variable, or its value has a null character or is too long"
        if not is_text(value):
            return f"the value of the environment variable {name[:60]} is not UTF-8"
    return None


def _problem_in_demands(request: JobRequest) -> str | None:
    if not 1 <= request.gpus_min <= request.gpus <= request.gpus_max <= MOST_GPUS:
        return f"GPUs {request.gpus_min}..{request.gpus_max} with {request.gpus} to begin with make no sense"
    if request.elastic and request.preempt != "checkpoint":
        return "only jobs that can be preempted by checkpoint can change their number of GPUs"
    if not 0 <= request.memory_bytes <= MOST_INT:
        return f"memory {request.memory_bytes} is not from 0 to {MOST_INT} bytes"
    if request.preempt not in PREEMPTS:
        return f"preempt {request.preempt!r} is not one of {', '.join(PREEMPTS)}"
    if request.processes not in ("one", "per_gpu"):
        return f"processes {request.processes!r} is neither 'one' nor 'per_gpu'"
    if not 0 <= request.array_at_once <= 1_000_000:
        return f"{request.array_at_once} tasks of an array at a time make no sense"
    if not 0 <= request.retries <= 1000:
        return f"retries {request.retries} is not from 0 to 1000"
    if any(one.kind not in DEPENDENCIES for one in request.depends):
        return f"a dependency is one of {', '.join(DEPENDENCIES)}"
    if len(request.depends) > 1000:
        return "there are more than 1000 dependencies"
    return None


def _problem_in_terms(request: JobRequest) -> str | None:
    for what in ("limit_s", "expected_s", "deadline_s", "begin_s", "grace_s", "steps", "epochs"):
        value = getattr(request, what)
        if value is not None and not (math.isfinite(value) and 0 <= value <= MOST_SECONDS):
            return f"{what} {value} is not a number from 0 to {MOST_SECONDS:g}"
    for what in ("limit_s", "expected_s", "steps", "epochs"):
        if getattr(request, what) == 0:
            return f"{what} must be more than 0"
    if not request.weight > 0:
        return f"weight {request.weight} is not a positive number"
    if request.weight > MOST_WEIGHT:
        return f"weight {request.weight:g} is too large; it must be at most {MOST_WEIGHT:,.0f}"
    if abs(request.priority) > MOST_PRIORITY:
        return f"priority {request.priority} is not from -{MOST_PRIORITY} to {MOST_PRIORITY}"
    if request.batch_size is not None and not 1 <= request.batch_size <= MOST_INT:
        return f"batch size {request.batch_size} is not from 1 to {MOST_INT}"
    if request.client_key is not None and not 0 < len(request.client_key) <= 200:
        return "the client key is empty or longer than 200 characters"
    return None
