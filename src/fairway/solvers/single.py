"""Allocations on a single GPU type, in closed form. Most clusters have no other type.

The time that each job needs for a level is a line in the level. So the highest level is where the first limit is met: a
job has all the time, or the GPUs are used up. The largest sum is a fractional knapsack: floors first, then the jobs
that give most per GPU.
"""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Bools, Floats
from fairway.core.portable import dot
from fairway.solvers.allocation import Allocation, Solution, nothing_found, proof_of

TIED = 1e-9
SAME_GAIN = 1.0 / (1 << 40)
"""Gains that differ by no more than this fraction of the largest are the same."""


def solve_single(a: Allocation) -> Solution:
    """The best allocation where exactly one type has GPUs."""
    kind = int(np.argmax(a.capacity))
    rows = np.where(a.usable[:, kind], a.rows[:, kind], 0.0)
    able = rows > 0
    asks = a.held & (a.floors > 0)
    least = np.where(asks & able, a.floors / np.where(able, rows, 1.0), 0.0)
    capacity = float(a.capacity[kind])
    rest = capacity - dot(a.gangs, least)
    if (asks & ~able).any() or (least > 1.0 + TIED).any() or rest < -TIED * max(capacity, 1.0):
        return nothing_found(a)
    if a.level_gain > 0:
        return _level(a, kind, rows, able, np.minimum(least, 1.0), max(rest, 0.0))
    return _filled(a, kind, rows, np.minimum(least, 1.0), max(rest, 0.0))


def _level(a: Allocation, kind: int, rows: Floats, able: Bools, least: Floats, rest: float) -> Solution:
    weighs = a.held & able & (a.weights > 0)
    slope = np.where(weighs, a.weights / np.where(able, rows, 1.0), 0.0)
    gpus = dot(a.gangs, slope)
    if not gpus > 0:
        return _solution(a, kind, least, 0.0, np.zeros(len(least)), 0.0)
    room = np.where(weighs, (1.0 - least) / np.where(weighs, slope, 1.0), np.inf)
    level = min(float(room.min()), rest / gpus)
    scarce = rest / gpus <= room.min()
    held_down = a.gangs * slope if scarce else (room <= level * (1.0 + TIED)).astype(np.float64)
    time = np.minimum(least + slope * level, 1.0)
    return _solution(a, kind, time, level, held_down / np.add.reduce(held_down), 1.0 / gpus if scarce else 0.0)


def _filled(a: Allocation, kind: int, rows: Floats, time: Floats, rest: float) -> Solution:
    """Give what is left to the jobs that gain most per GPU; those that gain the same share it."""
    gain = np.where(a.usable[:, kind], a.gain[:, kind], 0.0) / a.gangs
    unit = float(gain.max(initial=0.0)) * SAME_GAIN
    values, group = np.unique(-np.rint(gain / unit) if unit > 0 else np.zeros_like(gain), return_inverse=True)
    wants = np.bincount(group, a.gangs * (1.0 - time), len(values))
    before = np.concatenate([[0.0], np.cumsum(wants)[:-1]])
    given = np.clip(rest - before, 0.0, wants)
    part = np.where((values < 0) & (wants > 0), given / np.where(wants > 0, wants, 1.0), 0.0)
    # A GPU is worth what the first job that goes short would gain; the floors of others cost the difference.
    short = float(gain.max(initial=0.0, where=part[group] < 1.0))
    owed = np.where(time > 0, np.maximum(short - gain, 0.0) * a.gangs / np.where(rows > 0, rows, 1.0), 0.0)
    return _solution(a, kind, np.minimum(time + (1.0 - time) * part[group], 1.0), 0.0, owed, short)


def _solution(a: Allocation, kind: int, time: Floats, level: float, multipliers: Floats, price: float) -> Solution:
    x, prices = np.zeros(a.usable.shape), np.zeros(len(a.capacity))
    x[:, kind], prices[kind] = time, price
    if a.level_gain > 0:
        # A floor without a weight costs the GPUs that it takes.
        weighs, rows = a.weights > 0, a.rows[:, kind]
        floors = price * a.gangs / np.where((rows > 0) & (a.floors > 0), rows, np.inf)
        owed = np.where(weighs, multipliers / np.where(weighs, a.weights, 1.0), floors)
    else:
        owed = multipliers
    proof = proof_of(a, x, level, owed, prices)
    return Solution(x, level, multipliers, proof.holds, 0, prices, proof)
