"""How training loss falls, for jobs whose log says only that they ran.

The shape is that of Optimus (EuroSys'18): loss 1 / (b0·k + b1) + b2 after k epochs. A job's curve is drawn so that the
job ends where Optimus would call it converged: the last ten epochs lower the loss by less than 0.05.
"""

from __future__ import annotations

import math

import numpy as np

from fairway.core.job import LossCurve

CONVERGED_FALL = 0.05
CONVERGED_EPOCHS = 10
EPOCHS = (20.0, 60.0)
FIRST_LOSS = (2.0, 5.0)
FINAL_LOSS = (0.05, 0.6)


def drawn_curve(seed: int, key: int) -> LossCurve:
    """The curve of a job that has none of its own; `key` stands for the job, wherever in a trace it is."""
    random = np.random.default_rng([seed, key])
    epochs = _between(*EPOCHS, random)
    start = 1.0 / _between(*FIRST_LOSS, random)
    return LossCurve(epochs, _slope(epochs, start), start, _between(*FINAL_LOSS, random))


def _between(low: float, high: float, random: np.random.Generator) -> float:
    # Not `uniform`: on some CPUs it multiplies and adds in one step.
    return low + (high - low) * float(random.random())


def _slope(epochs: float, b1: float) -> float:
    """The b0 with which the last `CONVERGED_EPOCHS` lower the loss by `CONVERGED_FALL`: the larger root."""
    before = epochs - CONVERGED_EPOCHS
    a, b, c = epochs * before, b1 * (epochs + before) - CONVERGED_EPOCHS / CONVERGED_FALL, b1 * b1
    return (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)
