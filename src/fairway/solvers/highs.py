"""Linear programs whose columns are added step by step, by HiGHS.

A program has its rows from the start. Columns are added, and each solve starts from the basis of the last one. A basis
can be taken out as plain numbers and put into another program with the same rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints

FEASIBLE = 1e-9
"""The largest breach that HiGHS may leave. Its own limit is 1e-7, which is too much for shares that have to add up."""


class Columns(NamedTuple):
    """Columns of one shape: the rows that each touches, its values there (both columns by entries), and its cost."""

    rows: Ints
    values: Floats
    gain: Floats


class LpPoint(NamedTuple):
    """Values of the columns, multipliers of the rows (positive where more room would gain), the optimum."""

    columns: Floats
    multipliers: Floats
    value: float


class ColumnProgram:
    """Maximise the gain of non-negative columns between limits of the rows."""

    def __init__(self, lower: Floats, upper: Floats) -> None:
        import highspy

        self._kinds = highspy
        self._solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("primal_feasibility_tolerance", FEASIBLE),
            ("dual_feasibility_tolerance", FEASIBLE),
        ):
            self._solver.setOptionValue(option, value)
        self._bounded_above = np.isfinite(upper)
        none = np.zeros(0, dtype=np.int32)
        self._solver.addRows(len(lower), lower, upper, 0, none, none, np.zeros(0))
        self.columns = 0
        self.iterations = 0

    def add(self, columns: Columns) -> None:
        """Add columns. Those that are there keep their numbers."""
        count, entries = columns.rows.shape
        if not count:
            return
        starts = np.arange(count, dtype=np.int32) * entries
        none, most = np.zeros(count), np.full(count, np.inf)
        self._solver.addCols(
            count, -columns.gain, none, most, count * entries, starts,
            columns.rows.ravel().astype(np.int32), np.ascontiguousarray(columns.values.ravel()),
        )  # fmt: skip
        self.columns += count

    def solve(self) -> LpPoint | None:
        """The best point, found from where the last solve ended; None if there is none."""
        self._solver.run()
        info = self._solver.getInfo()
        self.iterations += info.simplex_iteration_count
        if self._solver.getModelStatus() != self._kinds.HighsModelStatus.kOptimal:
            return None
        found = self._solver.getSolution()
        columns, duals = np.array(found.col_value), np.array(found.row_dual)
        return LpPoint(np.maximum(columns, 0.0), -duals, -float(info.objective_function_value))

    def basis(self) -> tuple[Bools, Bools]:
        """Which columns and which rows (that is, their slacks) are in the basis of the last solve."""
        basic, found = self._kinds.HighsBasisStatus.kBasic, self._solver.getBasis()
        columns, rows = ([each == basic for each in part] for part in (found.col_status, found.row_status))
        return np.array(columns, dtype=np.bool_), np.array(rows, dtype=np.bool_)

    def begin_at(self, columns: Bools, rows: Bools) -> None:
        """Start the next solve at this basis. It need not be a good one: HiGHS repairs it."""
        status = self._kinds.HighsBasisStatus
        limit = [status.kUpper if above else status.kLower for above in self._bounded_above.tolist()]
        start = self._kinds.HighsBasis()
        start.col_status = [status.kBasic if each else status.kLower for each in columns.tolist()]
        start.row_status = [status.kBasic if each else at for each, at in zip(rows.tolist(), limit, strict=True)]
        start.valid = start.alien = True
        self._solver.setBasis(start)
