"""Allocations in which two jobs may share GPUs, by HiGHS.

A pair is one more column for each GPU type: it takes time of both jobs, GPUs once, and gives each job its speed beside
the other. Pairs tie the blocks of jobs together, so the method for jobs alone does not apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.solvers.interior import Allocation


@dataclass(frozen=True)
class Paired:
    """A problem over jobs alone, and pairs of rows with what each pair adds to their rows and to the gain, by type."""

    alone: Allocation
    pairs: Ints
    rows: Floats
    gain: Floats


class PairedSolution(NamedTuple):
    """Time alone and in pairs, the level, the multipliers of the rows, and whether all this is optimal."""

    x: Floats
    pair_x: Floats
    level: float
    multipliers: Floats
    optimal: bool


def solve_paired(problem: Paired) -> PairedSolution:
    """The best allocation with pairs."""
    import highspy

    a, pairs = problem.alone, problem.pairs
    jobs, types = a.usable.shape
    lp = highspy.HighsLp()
    alone, single_type = np.nonzero(a.usable & (a.capacity > 0))
    good = (problem.rows.min(axis=2) > 0) & (a.capacity > 0)
    pair, pair_type = np.nonzero(good)
    first, second = pairs[pair, 0], pairs[pair, 1]
    # Rows: time of each job, GPUs of each type, floor of each job. Columns: jobs alone, pairs, the level.
    ones, pair_ones = np.ones(len(alone)), np.ones(len(pair))
    index = [
        np.column_stack([alone, jobs + single_type, jobs + types + alone]),
        np.column_stack([first, second, jobs + pair_type, jobs + types + first, jobs + types + second]),
        (jobs + types + np.arange(jobs))[a.weights > 0],
    ]
    value = [
        np.column_stack([ones, a.gangs[alone], a.rows[alone, single_type] * a.held[alone]]),
        np.column_stack(
            [
                *(pair_ones, pair_ones, a.gangs[first]),
                problem.rows[pair, pair_type, 0] * a.held[first],
                problem.rows[pair, pair_type, 1] * a.held[second],
            ]
        ),
        -a.weights[a.weights > 0],
    ]
    counts = np.concatenate([np.full(len(alone), 3), np.full(len(pair), 5), np.full(1, len(index[2]))])
    lp.num_col_ = len(alone) + len(pair) + 1
    lp.num_row_ = 2 * jobs + types
    lp.col_cost_ = -np.concatenate([a.gain[alone, single_type], problem.gain[pair, pair_type], [a.level_gain]])
    lp.col_lower_ = np.zeros(lp.num_col_)
    lp.col_upper_ = np.full(lp.num_col_, np.inf)
    lp.row_lower_ = np.concatenate([np.full(jobs + types, -np.inf), np.where(a.held, a.floors, -np.inf)])
    lp.row_upper_ = np.concatenate([np.ones(jobs), a.capacity, np.full(jobs, np.inf)])
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    lp.a_matrix_.index_ = np.concatenate([part.ravel() for part in index]).astype(np.int32)
    lp.a_matrix_.value_ = np.concatenate([part.ravel() for part in value])
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(lp)
    solver.run()
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    x, pair_x = np.zeros((jobs, types)), np.zeros((len(pairs), types))
    if not optimal:
        return PairedSolution(x, pair_x, 0.0, np.zeros(jobs), False)
    found = solver.getSolution()
    columns = np.maximum(np.array(found.col_value), 0.0)
    x[alone, single_type] = columns[: len(alone)]
    pair_x[pair, pair_type] = columns[len(alone) : -1]
    multipliers = np.abs(np.array(found.row_dual)[jobs + types :])
    return PairedSolution(x, pair_x, float(columns[-1]), multipliers, True)
