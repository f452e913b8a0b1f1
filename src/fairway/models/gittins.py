"""The Gittins index of a job: how likely it is to end soon, for each unit of service that finding out costs.

With S the service that a job takes in all and a what it has had,

    G(a) = sup over D > 0 of  P(S - a <= D | S > a) / E[min(S - a, D) | S > a].

Serving the highest index first minimises mean completion time on one server when the distribution of S is known
(Gittins 1979; Aalto et al. 2009 for the queue). Tiresias (NSDI'19) measures service in GPU-seconds. Over samples, the
supremum is reached where a + D is one of them.
"""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Floats

MOST_CELLS = 48


def gittins_index(samples: Floats, attained: float, quantum: float | None = None) -> float:
    """The index at one age, from sorted samples of total service; 0 if no sample is larger.

    `quantum` fixes D instead of taking the best one: the discretised index.
    """
    first = int(samples.searchsorted(attained, side="right"))
    left = samples[first:] - attained
    count = len(left)
    if not count:
        return 0.0
    if quantum is not None:
        return float(np.count_nonzero(left <= quantum) / np.minimum(left, quantum).sum())
    done = np.arange(1, count + 1)
    spent = left.cumsum() + (count - done) * left
    return float((done / spent).max())


def index_table(samples: Floats, quantum: float | None = None) -> tuple[Floats, Floats]:
    """The index as a step function of age: where its cells begin, and the index there.

    Cells begin at quantiles of the samples, so they are dense where jobs end, and samples count as the next of them.
    (Just before a single sample the index of the samples themselves rises without bound, which says nothing about other
    jobs.) Up to `MOST_CELLS` different samples the index is exact.
    """
    samples = samples[samples > 0]
    marks = np.unique(samples)
    if len(marks) > MOST_CELLS:
        marks = np.unique(np.quantile(samples, np.linspace(0.0, 1.0, MOST_CELLS + 1)[1:], method="higher"))
    rounded = np.sort(marks[marks.searchsorted(samples)]) if len(marks) else samples
    cells = np.concatenate([[0.0], marks])
    return cells, np.array([gittins_index(rounded, float(age), quantum) for age in cells])
