"""What cannot be known beforehand about a real job: how long it will run. Reports name the policies that read it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fairway.core import columns as c
from fairway.core import kernels
from fairway.core.arrays import Floats, Ints
from fairway.core.facts import NO_FACTS, Facts
from fairway.core.view import TableView


class Oracle:
    """True run times of the jobs on their own gangs, on the GPU type that suits each best."""

    __slots__ = ("_facts", "_floats", "_now_s", "_table")

    def __init__(self, table: TableView, facts: Mapping[int, Facts]) -> None:
        self._table = table
        self._facts = facts
        self._floats = table.floats
        self._now_s = table.now_s

    @property
    def remaining_s(self) -> Floats:
        """How long each job takes if it runs from now on, with the restart that it needs first."""
        return self._remaining_at(self._now_s)

    def before(self, moment_s: float, scale: Ints | None = None) -> Floats:
        """Remaining time (times `scale`) as of a moment ago. Jobs that have just arrived come behind their equals.

        In this order, jobs that have just drawn level keep the order that they had.
        """
        left = self._remaining_at(self._now_s - moment_s)
        behind = 2 * moment_s
        if scale is not None:
            left *= scale
            behind *= int(scale.max(initial=1))
        submitted_s, row = self._floats[c.SUBMITTED_S], len(left) - 1
        while row >= 0 and submitted_s[row] == self._now_s:
            left[row] += behind
            row -= 1
        return left

    def _remaining_at(self, time_s: float) -> Floats:
        return kernels.remaining(self._floats, time_s)

    @property
    def left_s(self) -> Floats:
        """How long each job still takes on its own gang, on the GPU type that suits it best, without restarts."""
        f = self._floats
        left: Floats = (f[c.REGIME_END] - self._table.progress) / f[c.BEST_SPEED] + f[c.TAIL_S]
        return left

    @property
    def work_left(self) -> Floats:
        """What each job still has to do, in the units of its speeds."""
        left: Floats = self._floats[c.WORK] - self._table.progress
        return left

    @property
    def steps_left(self) -> Floats:
        """The steps that each job still has to make, in the units of `scaling`."""
        told = np.array([self._facts.get(job, NO_FACTS).steps_left for job in self._table.jobs.tolist()])
        return np.where(np.isnan(told), self._floats[c.WORK] - self._table.progress, told)

    @property
    def total_s(self) -> Floats:
        """How long each job takes in all, without interruption. Work that is done counts at the speed of the present
        regime."""
        f = self._floats
        total: Floats = f[c.REGIME_END] / f[c.BEST_SPEED] + f[c.TAIL_S]
        return total
