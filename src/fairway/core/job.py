"""What a user asks for: a job, and a workload of jobs.

A `JobSpec` gives the amount of work in exactly one of two ways: `duration_s`, seconds on the gang that was asked for
(most cluster logs have no more than that), or `steps`, mini-batches at the initial batch size, whose speed a profile
gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from fairway.core.batch import Tuning
from fairway.core.errors import InputError
from fairway.core.units import MOST_PRIORITY, MOST_SECONDS

Adaptation = Literal["none", "accordion", "gns", "schedule", "tuned"]
MOST_STEPS = 1e15
ADAPTATIONS: tuple[Adaptation, ...] = ("none", "accordion", "gns", "schedule", "tuned")


@dataclass(frozen=True, slots=True)
class Regime:
    """A stretch of training at one batch size: it ends when `until` (a fraction of the whole work) is done.

    `speed` multiplies the job's rate while the regime lasts, for jobs whose profile does not know the batch size.
    """

    until: float
    batch_size: int | None = None
    speed: float = 1.0


class LossCurve(NamedTuple):
    """How a job's training loss falls: 1 / (b0·k + b1) + b2 after k of its `epochs` (the model of Optimus)."""

    epochs: float
    b0: float
    b1: float
    b2: float

    def at(self, done: float) -> float:
        """The loss after a fraction of the work."""
        return 1.0 / (self.b0 * self.epochs * done + self.b1) + self.b2


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One training job as its owner described it. Times are seconds from the start of the workload.

    `gpus` is the gang that the job asks for and its work refers to; `gpus_min..gpus_max` is the elastic range
    (equal to `gpus` for a rigid job). Memory is per GPU. `checkpoint_s` is the cost of one stop and restart where
    the job knows it; None leaves it to the rules. `gpu_types` limits where it may run; empty means anywhere.
    `batch_size` is per GPU and pass; `global_batch` counts the samples of one update of the weights, where gradients
    of several passes are accumulated (None: `batch_size` on every GPU of the gang). A job that is not `preemptible`
    keeps its GPUs from its start to its end. `gpu_share` below 1 asks for that part of one GPU, of its memory and its
    time; a duration is then the time on that part. `tuning` says how a job whose `adaptation` is "tuned" trains with
    other GPUs and batches.
    """

    id: str
    submitted_s: float
    gpus: int = 1
    gpus_min: int = 0
    gpus_max: int = 0
    duration_s: float | None = None
    steps: float | None = None
    model: str = ""
    dataset: str = ""
    batch_size: int | None = None
    global_batch: int | None = None
    user: str = ""
    queue: str = ""
    name: str = ""
    weight: float = 1.0
    priority: int = 0
    deadline_s: float | None = None
    adaptation: Adaptation = "none"
    regimes: tuple[Regime, ...] = ()
    memory_bytes: int = 0
    skew: float | None = None
    checkpoint_s: float | None = None
    checkpoint_every_s: float | None = None
    gpu_types: tuple[str, ...] = ()
    gpu_share: float = 1.0
    status: str = ""
    loss: LossCurve | None = None
    preemptible: bool = True
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        if self.gpus_min == 0:
            object.__setattr__(self, "gpus_min", self.gpus)
        if self.gpus_max == 0:
            object.__setattr__(self, "gpus_max", self.gpus)
        problem = self._problem()
        if problem:
            raise InputError(f"job {self.id!r}: {problem}")

    @property
    def elastic(self) -> bool:
        return self.gpus_min != self.gpus_max

    def _problem(self) -> str | None:
        """The first thing that is wrong with this job, or None."""
        if not self.id:
            return "the id is empty"
        if not 0 <= self.submitted_s <= MOST_SECONDS:
            negative = "is negative" if self.submitted_s < 0 else f"is not a number of at most {MOST_SECONDS:g}"
            return f"submit time {self.submitted_s:g} {negative}"
        if self.gpus < 1:
            return f"needs at least 1 GPU, not {self.gpus}"
        if not 1 <= self.gpus_min <= self.gpus <= self.gpus_max:
            return f"the elastic range {self.gpus_min}..{self.gpus_max} does not hold gpus={self.gpus}"
        if (self.duration_s is None) == (self.steps is None):
            return "give exactly one of duration_s and steps"
        for what, value, most in (
            ("duration", self.duration_s, MOST_SECONDS),
            ("number of steps", self.steps, MOST_STEPS),
        ):
            if value is not None and not 0 <= value <= most:
                return f"the {what} {value:g} is not a finite number from 0 to {most:g}"
        if self.steps is not None and not self.model:
            return "steps need a model, so that a profile can tell their speed"
        return self._problem_in_terms()

    def _problem_in_terms(self) -> str | None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            return f"weight {self.weight} is not a positive number"
        if self.deadline_s is not None and not math.isfinite(self.deadline_s):
            return f"deadline {self.deadline_s} is not finite"
        if self.global_batch is not None and self.global_batch < 1:
            return f"global batch {self.global_batch} is not at least 1"
        if self.skew is not None and not 0 <= self.skew <= 1:
            return f"skew {self.skew} is not from 0 to 1"
        if abs(self.priority) > MOST_PRIORITY:
            return f"priority {self.priority} is not from -{MOST_PRIORITY} to {MOST_PRIORITY}"
        if not 0 < self.gpu_share <= 1:
            return f"gpu_share {self.gpu_share} is not in (0, 1]"
        if self.gpu_share < 1 and self.gpus_max > 1:
            return f"gpu_share {self.gpu_share} is a part of one GPU, and the job may have {self.gpus_max}"
        if self.memory_bytes < 0:
            return "memory is negative"
        if self.adaptation not in ADAPTATIONS:
            return f"adaptation {self.adaptation!r} is not one of {', '.join(ADAPTATIONS)}"
        for cost in (self.checkpoint_s, self.checkpoint_every_s):
            if cost is not None and not (math.isfinite(cost) and cost >= 0):
                return f"checkpoint time {cost} is not a finite number of at least 0"
        return self._problem_in_regimes()

    def _problem_in_regimes(self) -> str | None:
        last = 0.0
        for regime in self.regimes:
            if not last < regime.until <= 1:
                return "regimes must end at rising fractions of the work, within (0, 1]"
            if regime.batch_size is not None and regime.batch_size < 1:
                return f"a regime's batch size {regime.batch_size} is not at least 1"
            if not (math.isfinite(regime.speed) and regime.speed > 0):
                return f"a regime's speed {regime.speed} is not a positive number"
            last = regime.until
        if self.regimes and last != 1.0:
            return "the last regime must end at 1"
        if self.adaptation == "schedule" and not self.regimes:
            return "the adaptation 'schedule' needs regimes"
        if self.tuning is not None and (self.adaptation != "tuned" or self.regimes):
            return "tuning is for jobs of the adaptation 'tuned', which have no regimes of their own"
        problem = None if self.tuning is None else self.tuning.problem()
        if problem is not None:
            return f"tuning: {problem}"
        return None if self.loss is None else _problem_in_loss(self.loss)


def _problem_in_loss(curve: LossCurve) -> str | None:
    """What is wrong with a loss curve: it must be finite everywhere and never rise."""
    if not all(math.isfinite(value) for value in curve):
        return f"loss {tuple(curve)} has a value that is not finite"
    if not curve.epochs > 0:
        return f"loss: epochs {curve.epochs:g} is not positive"
    if not (curve.b0 >= 0 and curve.b1 > 0):
        return f"loss: b0 {curve.b0:g} must be at least 0 and b1 {curve.b1:g} positive"
    return None


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(JobSpec)}


def job_to_dict(job: JobSpec) -> dict[str, Any]:
    """The job as plain JSON values, without fields that have their default."""
    out: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(job, name)
        if name in ("gpus_min", "gpus_max") and value == job.gpus:
            continue
        if name not in ("id", "submitted_s", "gpus") and value == default:
            continue
        out[name] = value
    if job.regimes:
        out["regimes"] = [{"until": r.until, "batch_size": r.batch_size, "speed": r.speed} for r in job.regimes]
    if job.gpu_types:
        out["gpu_types"] = list(job.gpu_types)
    if job.loss is not None:
        out["loss"] = job.loss._asdict()
    if job.tuning is not None:
        out["tuning"] = job.tuning.plain()
    return out


@dataclass(frozen=True)
class Workload:
    """The jobs of one trace in the order of submission (ties keep the order of the file).

    `skipped` counts, by reason, the rows of the source that are not GPU jobs (a pod without a GPU, say); nothing is
    left out without being counted. `notes` are remarks for the reader, such as "ids renamed". `lines` gives the line of
    the source on which a job stands, where the format has lines.
    """

    jobs: tuple[JobSpec, ...]
    source: str = ""
    format: str = ""
    skipped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lines: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(jobs: list[JobSpec], **about: Any) -> Workload:
        """A workload from jobs in any order. Sorts them by submit time and refuses an id that occurs twice."""
        seen: set[str] = set()
        for job in jobs:
            if job.id in seen:
                raise InputError(f"duplicate job id {job.id!r}")
            seen.add(job.id)
        return Workload(tuple(sorted(jobs, key=lambda job: job.submitted_s)), **about)

    def __len__(self) -> int:
        return len(self.jobs)
