"""Allocations on a single GPU type, in closed form: most clusters have no other.

The time that a level asks of each job is a line in the level, so the highest one is where the first limit is met: a job
has all the time, or the GPUs are used up. The largest sum is a knapsack of fractions: floors first, then the jobs that
give most per GPU.
"""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Bools, Floats
from fairway.solvers.interior import Allocation, Solution

TIED = 1e-9
GAIN_DIGITS = 12
"""Gains that agree to so many digits of the largest are the same."""


def solve_single(a: Allocation) -> Solution:
    """The best allocation where exactly one type has GPUs."""
    kind = int(np.argmax(a.capacity))
    rows = np.where(a.usable[:, kind], a.rows[:, kind], 0.0)
    able = rows > 0
    asks = a.held & (a.floors > 0)
    least = np.where(asks & able, a.floors / np.where(able, rows, 1.0), 0.0)
    capacity = float(a.capacity[kind])
    rest = capacity - float(a.gangs @ least)
    if (asks & ~able).any() or (least > 1.0 + TIED).any() or rest < -TIED * max(capacity, 1.0):
        return _solution(a, kind, np.minimum(least, 1.0), 0.0, np.zeros(len(least)), False)
    if a.level_gain > 0:
        return _level(a, kind, rows, able, np.minimum(least, 1.0), max(rest, 0.0))
    time = _filled(a, kind, np.minimum(least, 1.0), max(rest, 0.0))
    return _solution(a, kind, time, 0.0, np.zeros(len(least)), True)


def _level(a: Allocation, kind: int, rows: Floats, able: Bools, least: Floats, rest: float) -> Solution:
    weighs = a.held & able & (a.weights > 0)
    slope = np.where(weighs, a.weights / np.where(able, rows, 1.0), 0.0)
    gpus = float(a.gangs @ slope)
    if not gpus > 0:
        return _solution(a, kind, least, 0.0, np.zeros(len(least)), True)
    room = np.where(weighs, (1.0 - least) / np.where(weighs, slope, 1.0), np.inf)
    level = min(float(room.min()), rest / gpus)
    held_down = a.gangs * slope if rest / gpus <= room.min() else (room <= level * (1.0 + TIED)).astype(np.float64)
    time = np.minimum(least + slope * level, 1.0)
    return _solution(a, kind, time, level, held_down / held_down.sum(), True)


def _filled(a: Allocation, kind: int, time: Floats, rest: float) -> Floats:
    """Give what is left to the jobs that gain most per GPU; those that gain the same share it."""
    gain = np.where(a.usable[:, kind], a.gain[:, kind], 0.0) / a.gangs
    values, group = np.unique(-gain.round(GAIN_DIGITS - _magnitude(gain)), return_inverse=True)
    wants = np.bincount(group, a.gangs * (1.0 - time), len(values))
    before = np.concatenate([[0.0], np.cumsum(wants)[:-1]])
    given = np.clip(rest - before, 0.0, wants)
    part = np.where((values < 0) & (wants > 0), given / np.where(wants > 0, wants, 1.0), 0.0)
    return np.minimum(time + (1.0 - time) * part[group], 1.0)


def _magnitude(values: Floats) -> int:
    top = float(values.max(initial=0.0))
    return int(np.ceil(np.log10(top))) if top > 0 else 0


def _solution(a: Allocation, kind: int, time: Floats, level: float, multipliers: Floats, optimal: bool) -> Solution:
    x = np.zeros(a.usable.shape)
    x[:, kind] = time
    prices = np.zeros(len(a.capacity))
    prices[kind] = float(multipliers @ (1.0 / np.maximum(a.gangs, 1.0)))
    return Solution(x, level, multipliers, optimal, 0, prices)
