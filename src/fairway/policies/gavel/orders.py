"""First come and shortest first on mixed GPUs: jobs in order take the fastest GPUs that are left (Gavel, OSDI 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.portable import dots, rounded
from fairway.policies.gavel.base import PlanningPolicy
from fairway.policies.gavel.pairs import fifo_partners
from fairway.policies.gavel.shares import Style
from fairway.policies.gavel.situation import Shares, Situation
from fairway.policies.gavel.throughputs import Throughputs
from fairway.policies.registry import register


def served_in_order(rates: Floats, gangs: Floats, capacity: Floats, order: Ints, keep: Floats, strict: bool) -> Floats:
    """All the time on one type for each job that fits, in the given order. `keep` has the types that jobs have already.

    A job takes the fastest type with enough GPUs left, the first of equals. With `strict`, no job is served behind one
    that does not fit.
    """
    x = keep.copy()
    left = capacity - dots(x.T, gangs)
    has: Bools = np.asarray(x.any(axis=1))
    for row in order.tolist():
        if has[row]:
            continue
        fits = (left >= gangs[row]) & (rates[row] > 0)
        if not fits.any():
            if strict and rates[row].any():
                break
            continue
        kind = int(np.argmax(np.where(fits, rates[row], -1.0)))
        x[row, kind] = 1.0
        left[kind] -= gangs[row]
    return x


@register
@dataclass(frozen=True)
class GavelFifo(PlanningPolicy):
    """First come, first served on mixed GPUs: each job in turn takes the fastest GPUs that are left.

    Knows: speeds by GPU type, gang sizes. Stops no job, but moves jobs to faster GPUs that become free, in order. The
    agnostic form takes the first type with enough GPUs and stays there. No job is served behind a gang that does not
    fit. With `packing`, waiting jobs share GPUs with running ones, in order, as long as the two together keep more than
    1.5 of their speeds.
    """

    name: ClassVar[str] = "gavel_fifo"

    @property
    def style(self) -> Style:
        """No job runs out of turn, not even on idle GPUs."""
        return Style(idle_fill=False)

    def plan(self, situation: Situation) -> Shares:
        """The fastest type that is left for each job, in the order of submission."""
        throughputs = self.throughputs(situation)
        order = np.arange(throughputs.jobs)
        x = self.served(throughputs, situation, order)
        return fifo_partners(throughputs, x, order) if self.packing else Shares(x)

    def served(self, throughputs: Throughputs, situation: Situation, order: Ints) -> Floats:
        """All the time on one type for each job that is served."""
        rates, gangs, capacity = throughputs.rates, throughputs.gangs, throughputs.capacity
        keep = _moved_up(_held_alone(situation), rates, gangs, capacity, situation)
        return served_in_order(rates, gangs, capacity, order, keep, strict=True)


@register
@dataclass(frozen=True)
class GavelSjf(PlanningPolicy):
    """Shortest job first on mixed GPUs: in the order of run time, jobs take the fastest GPUs that are left.

    Knows: true remaining work (an oracle), speeds by GPU type, gang sizes. Preempts. With `packing`, waiting jobs share
    GPUs with running ones as under `gavel_fifo`.
    """

    name: ClassVar[str] = "gavel_sjf"
    oracles: ClassVar[frozenset[str]] = frozenset({"duration"})

    def plan(self, situation: Situation) -> Shares:
        """The shortest first, whether it runs now or not."""
        throughputs = self.throughputs(situation)
        best = throughputs.rates.max(axis=1, initial=0.0)
        length_s = situation.steps_left / np.where(best > 0, best, 1e-12)
        order = np.argsort(rounded(length_s), kind="stable")
        nobody = np.zeros_like(throughputs.rates)
        x = served_in_order(throughputs.rates, throughputs.gangs, throughputs.capacity, order, nobody, strict=False)
        return fifo_partners(throughputs, x, order) if self.packing else Shares(x)


def _held_alone(situation: Situation) -> Floats:
    """The GPU type that each job holds now, without guests."""
    snapshot = situation.snapshot
    x = np.zeros_like(situation.rates)
    rows = (snapshot.running & (snapshot.host < 0)).nonzero()[0]
    x[rows, snapshot.gpu_type[rows]] = 1.0
    return np.where(situation.rates > 0, x, 0.0)


def _moved_up(keep: Floats, rates: Floats, gangs: Floats, capacity: Floats, situation: Situation) -> Floats:
    """Running jobs, in order, moved to faster types that have GPUs for them beside all jobs that run there."""
    x, left = keep.copy(), capacity - dots(keep.T, gangs)
    fixed = set(situation.snapshot.protected_rows.tolist())
    for row in np.flatnonzero(keep.any(axis=1)).tolist():
        now = int(np.argmax(keep[row]))
        fits = (left >= gangs[row]) & (rates[row] > rates[row, now] * (1.0 + 1e-9))
        if fits.any() and row not in fixed:
            better = int(np.argmax(np.where(fits, rates[row], -1.0)))
            x[row] = 0.0
            x[row, better] = 1.0
            left[better] -= gangs[row]
            left[now] += gangs[row]
    return x
