"""How wrong forecasts are: trainings whose course is known are replayed, and forecast on the way.

A training is forecast at equal steps of its run time without interruptions, since that is what a scheduler waits for.
An error is predicted minus true remaining time. Relative to the job's whole run time it is also the relative error of
the predicted run time, the measure of Shockwave (Zheng et al., NSDI 2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats
from fairway.core.job import Regime
from fairway.core.prospect import Prospect, Spell, Stage, Training
from fairway.models.forecast import METHODS, Method, forecast

POINTS = 100
"""The number of points of its run time at which a training is forecast."""


class Stretch(NamedTuple):
    """A part of a training at one batch size: how many epochs it has, and how long each takes."""

    batch_size: int
    epochs: float
    epoch_s: float


class Replay(NamedTuple):
    """The forecasts of one training by one method, at equal steps of its run time, beside the truth."""

    run_s: float
    true_s: Floats
    predicted_s: Floats
    spread_s: Floats

    @property
    def error_s(self) -> Floats:
        """Predicted minus true remaining time."""
        return self.predicted_s - self.true_s


class ForecastScore(NamedTuple):
    """Errors of one method over many trainings, each with the same weight.

    `mae_s` is the mean absolute error in seconds, `relative` that over the run time of each job, and `bias` the same
    with its sign (above 0: too long). `unsure` is the part of all points at which the method gives a spread;
    `within_one` and `within_two` are how often the truth lies within one and two of them there, None if it gives none.
    """

    jobs: int
    mae_s: float
    relative: float
    bias: float
    unsure: float
    within_one: float | None
    within_two: float | None


def stretches_of(prospect: Prospect, regimes: Sequence[Regime]) -> list[Stretch]:
    """The true course of a job with these regimes, on the GPU type that is fastest for it; empty if there is none.

    `prospect` is what it announces, stage by stage the same regimes.
    """
    parts = np.diff([0.0, *(regime.until for regime in regimes)]) * prospect.epochs
    speeds = np.array([stage.speeds for stage in prospect.stages], dtype=float)
    with np.errstate(divide="ignore"):
        epoch_s = 1.0 / speeds
    kind = int(np.argmin(portable.dots(np.where(np.isfinite(epoch_s), epoch_s, 1e300).T, parts)))
    if not np.isfinite(epoch_s[:, kind]).all():
        return []
    rows = zip(prospect.stages, parts.tolist(), epoch_s[:, kind].tolist(), strict=True)
    return [Stretch(stage.batch_size, epochs, each_s) for stage, epochs, each_s in rows]


def training_at(course: Sequence[Stretch], elapsed_s: float, announced: Sequence[Stretch] | None = None) -> Training:
    """What is known of a training after this much of its run time: a change is seen once it has happened."""
    stages = tuple(Stage(each.batch_size, (1.0 / each.epoch_s,)) for each in announced or course)
    spells: list[Spell] = []
    for batch_size, epochs, epoch_s in course:
        if spells and elapsed_s < 0.0:
            break
        spells.append(Spell(batch_size, min(epochs, max(0.0, elapsed_s) / epoch_s)))
        elapsed_s -= epochs * epoch_s
    return Training(math.fsum(each.epochs for each in course), stages, tuple(spells))


def replay(
    course: Sequence[Stretch], method: Method, points: int = POINTS, announced: Sequence[Stretch] | None = None
) -> Replay:
    """Forecast a training again and again while it runs its course.

    `announced` are the stages that its owner announces, if those differ from the ones that come; their epochs do not
    count.
    """
    epoch_s = [each.epoch_s for each in announced or course]
    run_s = math.fsum(each.epochs * each.epoch_s for each in course)
    true_s = run_s * (1.0 - np.arange(points) / points)
    found = [forecast(training_at(course, run_s - left_s, announced), epoch_s, method) for left_s in true_s.tolist()]
    predicted_s = np.array([each.remaining_s for each in found])
    return Replay(run_s, true_s, predicted_s, np.array([each.spread_s for each in found]))


def replays(
    courses: Sequence[Sequence[Stretch]], points: int = POINTS, announced: Sequence[Sequence[Stretch]] | None = None
) -> dict[Method, list[Replay]]:
    """The replays of many trainings by every method."""
    told = courses if announced is None else announced
    return {
        method: [replay(course, method, points, stages) for course, stages in zip(courses, told, strict=True)]
        for method in METHODS
    }


def score(several: Sequence[Replay]) -> ForecastScore:
    """The errors over some replays; there must be at least one."""
    error_s = np.array([each.error_s for each in several])
    relative = error_s / np.array([each.run_s for each in several])[:, None]
    spread_s = np.array([each.spread_s for each in several])
    unsure = spread_s > 0.0
    spreads = np.abs(error_s[unsure]) / spread_s[unsure]
    return ForecastScore(
        len(several),
        float(np.abs(error_s).mean()),
        float(np.abs(relative).mean()),
        float(relative.mean()),
        float(unsure.mean()),
        float((spreads <= 1.0).mean()) if len(spreads) else None,
        float((spreads <= 2.0).mean()) if len(spreads) else None,
    )


def error_curve(several: Sequence[Replay]) -> list[float]:
    """The mean absolute error relative to the run time, at each point of training."""
    return [float(x) for x in np.mean([np.abs(each.error_s) / each.run_s for each in several], axis=0)]


def scores(by_method: Mapping[Method, Sequence[Replay]]) -> dict[Method, ForecastScore]:
    """The score of every method."""
    return {method: score(several) for method, several in by_method.items()}
