"""What Sia knows about each job: a model of its step times for each GPU type on which it has run.

A model is fitted again only when the job has reported something new on that type, and remembered until then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.batch import Adaptive, BatchLimits
from fairway.core.snapshot import Snapshot
from fairway.models.step_time import StepModel
from fairway.policies.pollux.jobs import NO_TIMES, LearnedJobs, parameters_of, report_problem

_PARAMETERS = 7


class TypedJobs(NamedTuple):
    """The jobs of a snapshot, by row.

    `adapts` are those whose batch may be chosen; the others are rigid. `models`, `limits` and `seen` are by row and GPU
    type: parameters of a `StepModel` (NaN where a job has not run), `BatchLimits`, and the most GPUs of timed steps.
    """

    adapts: Bools
    models: Floats
    limits: Ints
    noise: Floats
    seen: Ints
    strange: dict[int, str]
    memory: dict[str, Any]

    def on(self, kinds: Ints) -> LearnedJobs:
        """What is known about each row on one GPU type, or on the type that is known best if it has not run there."""
        models: list[StepModel | None] = []
        limits: list[BatchLimits | None] = []
        for row, kind in enumerate(np.maximum(kinds, 0).tolist()):
            known = ~np.isnan(self.models[row, :, 0])
            source = kind if known[kind] else int(np.where(known, self.seen[row], -1).argmax())
            adapts = bool(self.adapts[row])
            models.append(StepModel(*self.models[row, source].tolist()) if adapts and known[source] else None)
            first, largest, least, most, accumulation = self.limits[row, kind].tolist()
            limits.append(BatchLimits(first, largest, least, most, accumulation > 0) if adapts else None)
        return LearnedJobs(limits, models, self.noise, self.seen.max(axis=1), self.strange, self.memory)


def learned_by_type(snapshot: Snapshot) -> TypedJobs:
    """What the jobs have reported, with new fits for those that have reported more."""
    count, names = len(snapshot), [gpu.name for gpu in snapshot.cluster.types]
    # What was learned on another set of types is not aligned to these.
    columns = [f"{column} on {', '.join(names)}" for column in ("fitted", "models")]
    fitted = snapshot.recall(columns[0], -1)
    models = snapshot.recall(columns[1], np.full((count, len(names) * _PARAMETERS), np.nan))
    models = models.reshape(count, len(names), _PARAMETERS)
    adapts = np.zeros(count, dtype=np.bool_)
    limits = np.ones((count, len(names), len(BatchLimits._fields)), dtype=np.int64)
    noise, seen, strange = np.zeros(count), np.zeros((count, len(names)), dtype=np.int64), dict[int, str]()
    for row in range(count):
        facts = snapshot.facts(row)
        adaptive = facts.adaptive
        if adaptive is None:
            continue
        if fitted[row] != adaptive.reports:
            _refit(models[row], names, adaptive, int(fitted[row]))
            fitted[row] = adaptive.reports
        problem = report_problem(facts, adaptive, int(snapshot.gpus_min[row]))
        timings = [timing for timing in adaptive.timings if timing.gpu_type in names]
        if problem is None and timings and np.isnan(models[row, :, 0]).all():
            problem = NO_TIMES
        if problem is not None:
            strange[row] = problem
            continue
        adapts[row] = True
        limits[row] = [adaptive.limits_on(name) for name in names]
        noise[row] = facts.noise_scale if facts.noise_scale > 0 else 0.0
        for timing in timings:
            kind = names.index(timing.gpu_type)
            seen[row, kind] = max(seen[row, kind], timing.replicas)
    memory = {"jobs": snapshot.jobs.copy(), columns[0]: fitted, columns[1]: models.reshape(count, -1)}
    return TypedJobs(adapts, models, limits, noise, seen, strange, memory)


def _refit(models: Floats, names: list[str], adaptive: Adaptive, fitted: int) -> None:
    """Fit the models of the types of which there are new timings, or all if none was fitted."""
    latest = adaptive.timings if fitted < 0 else adaptive.timings[-(adaptive.reports - fitted) :]
    news = {timing.gpu_type for timing in latest}
    for kind, name in enumerate(names):
        if name in news:
            models[kind] = parameters_of([timing for timing in adaptive.timings if timing.gpu_type == name])
