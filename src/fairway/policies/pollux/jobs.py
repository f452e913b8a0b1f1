"""What Pollux knows about each job: limits of its batch, a model of its step times, the noise of its gradients.

A model is fitted again only when the job has reported something new, and remembered until then. A job that allows no
other batch is rigid: it gets the gang and the batch that its owner asked for. So does a job that reports nonsense.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.batch import Adaptive, BatchLimits, Timing, limits_of
from fairway.core.errors import InputError
from fairway.core.facts import Facts
from fairway.core.snapshot import Snapshot
from fairway.models.step_fit import averaged, fit
from fairway.models.step_time import StepModel

NO_TIMES = "none of the step times that it reports can be"


class LearnedJobs(NamedTuple):
    """The jobs of a snapshot, by row. `limits` is None for a rigid job, `models` for one that has not run yet.

    `seen` is the largest number of GPUs on which a job has timed its steps. `strange` says what is wrong with jobs that
    are treated as rigid although they asked to be adapted. `memory` is what to remember.
    """

    limits: list[BatchLimits | None]
    models: list[StepModel | None]
    noise: Floats
    seen: Ints
    strange: dict[int, str]
    memory: dict[str, Any]


def learned(snapshot: Snapshot) -> LearnedJobs:
    """What the jobs have reported, with new fits for those that have reported more."""
    count = len(snapshot)
    fitted, parameters = snapshot.recall("fitted", -1), snapshot.recall("models", np.full((count, 7), np.nan))
    limits: list[BatchLimits | None] = [None] * count
    noise, seen, strange = np.zeros(count), np.zeros(count, dtype=np.int64), dict[int, str]()
    for row in range(count):
        facts = snapshot.facts(row)
        adaptive = facts.adaptive
        if adaptive is None:
            continue
        if fitted[row] != adaptive.reports:
            fitted[row], parameters[row] = adaptive.reports, parameters_of(adaptive.timings)
        problem = report_problem(facts, adaptive, int(snapshot.gpus_min[row]))
        if problem is None and adaptive.reports and math.isnan(parameters[row, 0]):
            problem = NO_TIMES
        if problem is not None:
            strange[row] = problem
            continue
        limits[row] = adaptive.limits
        noise[row] = 0.0 if math.isnan(facts.noise_scale) else facts.noise_scale
        seen[row] = max((timing.replicas for timing in adaptive.timings), default=0)
    models = [
        StepModel(*parameters[row].tolist()) if limits[row] is not None and fitted[row] > 0 else None
        for row in range(count)
    ]
    return LearnedJobs(
        limits, models, noise, seen, strange, {"jobs": snapshot.jobs.copy(), "fitted": fitted, "models": parameters}
    )


def parameters_of(timings: Sequence[Timing]) -> Floats:
    """The parameters of the model of a job; NaN without a usable timing."""
    model = fit(averaged(timings)) if timings else None
    return np.full(7, np.nan) if model is None else np.array(model, dtype=np.float64)


def report_problem(facts: Facts, adaptive: Adaptive, gpus_min: int) -> str | None:
    """What makes no sense in the reports of a job, or None."""
    first, largest, least, most, accumulation = adaptive.limits
    try:
        limits_of(first, largest or None, least, most or None, accumulation)
    except InputError as error:
        return str(error)
    if adaptive.limits.most_gpus < gpus_min:
        return f"its batch of at most {largest or first} is too small for its {gpus_min} GPUs"
    if facts.noise_scale < 0:
        return f"it reports a noise scale of {facts.noise_scale:g}"
    return None
