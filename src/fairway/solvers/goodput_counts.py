"""How many GPUs each adaptive job would get if all of them were on one large node.

This is the allocation without the borders between nodes: only the number of GPUs is limited. It is solved exactly, job
after job, for every number of GPUs (a knapsack with one choice per job). No placement is better, so it is also a bound.
"""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Floats, Ints


def best_counts(values: Floats, gpus: int) -> tuple[Ints, float]:
    """The number of GPUs for each job with the largest sum of `values` (jobs by numbers from 0 on), and that sum.

    Of equally good counts the smaller one is taken, for the last jobs first.
    """
    jobs, width = values.shape
    width = min(width, gpus + 1)
    chosen = np.zeros((jobs, gpus + 1), dtype=np.int16)
    best = np.zeros(gpus + 1)
    padded = np.full(gpus + width, -np.inf)
    every = np.arange(gpus + 1)
    for job in range(jobs):
        row = values[job]
        last = int(np.isfinite(row[:width]).nonzero()[0][-1]) + 1
        padded[width - 1 :] = best
        windows = np.lib.stride_tricks.sliding_window_view(padded[width - last :], last)
        options = windows[:, ::-1] + row[:last]
        at = options.argmax(axis=1)
        chosen[job] = at
        best = options[every, at]
    left = int(best.argmax())
    total, counts = float(best[left]), np.zeros(jobs, dtype=np.int64)
    for job in range(jobs - 1, -1, -1):
        counts[job] = chosen[job, left]
        left -= int(counts[job])
    return counts, total
