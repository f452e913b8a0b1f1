"""Allocations by the simplex method, for problems whose feasible set has no interior.

Floors that are as high as possible leave an interior-point method no room to move. The simplex method still finds a
vertex, and its multipliers are exact zeros where a limit does not bind.
"""

from __future__ import annotations

import numpy as np

from fairway.core.portable import dots, rounded
from fairway.solvers.allocation import BITS, GRID, Allocation, Solution, nothing_found, proof_of
from fairway.solvers.highs import ColumnProgram, Columns


def solve_at_vertex(problem: Allocation) -> Solution:
    """The best allocation, at a corner. The level cannot be negative here."""
    jobs, types = problem.usable.shape
    job, kind = np.nonzero(problem.usable & (problem.capacity > 0))
    largest = problem.rows.max(axis=1, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    time, gpus, row = np.arange(jobs), jobs + np.arange(types), jobs + types + np.arange(jobs)
    lower = np.concatenate([np.full(jobs + types, -np.inf), np.where(problem.held, problem.floors / unit, -np.inf)])
    upper = np.concatenate([np.ones(jobs), problem.capacity, np.full(jobs, np.inf)])
    program = ColumnProgram(lower, upper)
    values = np.column_stack([np.ones(len(job)), problem.gangs[job], problem.rows[job, kind] / unit[job]])
    program.add(Columns(np.column_stack([time[job], gpus[kind], row[job]]), values, problem.gain[job, kind]))
    rise = (problem.held & (problem.weights > 0)).nonzero()[0]
    program.add(Columns(row[rise][None], -(problem.weights / unit)[rise][None], np.array([problem.level_gain])))
    found = program.solve()
    x = np.zeros((jobs, types))
    if found is None:
        return nothing_found(problem)
    x[job, kind] = np.floor(found.columns[: len(job)] / GRID + 0.5) * GRID
    x /= np.maximum(np.add.reduce(x, axis=1)[:, None], 1.0)
    x /= np.maximum(dots(x.T, problem.gangs) / np.where(problem.capacity > 0, problem.capacity, 1.0), 1.0)
    level = rounded(float(found.columns[-1]), BITS) if len(rise) else 0.0
    multipliers = rounded(np.maximum(-found.multipliers[row] / unit, 0.0), BITS)
    prices = rounded(np.maximum(found.multipliers[gpus], 0.0), BITS)
    proof = proof_of(problem, x, level, multipliers, prices)
    return Solution(x, level, multipliers, proof.holds, program.iterations, prices, proof)
