"""The simulator tells what really happens: 30 jobs as real processes, and simulated from their own trace.

A short version of `benchmarks/fidelity.py`. A run that was disturbed may be repeated. These jobs were chosen because
every policy but FIFO stops several of them, and because no decision hangs on a single millisecond: simulated runs that
vary a little end nearly alike.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.testing.seeds import some
from fairway.testing.twin import TwinTerms, forecast, random_jobs, run_live

BOUND = 0.05
TRIES = 3
TERMS = (
    TwinTerms("fifo"),
    TwinTerms("tiresias:queues=2/6"),
    TwinTerms("max_min_fairness", round_s=1.0),
    TwinTerms("shockwave", round_s=1.0),
)


def _differences(terms: TwinTerms, folder: Path) -> tuple[float, float, int]:
    """How far simulated makespan and mean completion time are off, and how often the live run preempted."""
    jobs = random_jobs(30, seed=3, mean_s=4.0, over_s=8.0)
    live = run_live(jobs, terms, folder)
    assert len(live.records) == len(jobs)
    simulated = forecast(live.workload, terms)
    off = simulated.makespan_s / live.makespan_s - 1.0, simulated.mean_jct_s / live.mean_jct_s - 1.0
    return *off, live.preemptions


@pytest.mark.slow
@pytest.mark.parametrize("terms", some(TERMS, 2), ids=lambda terms: terms.policy)
def test_the_simulator_tells_what_really_happens(terms: TwinTerms, tmp_path: Path) -> None:
    """Where a policy preempts, the live run has to show it: without, this would test little."""
    told = []
    for run in range(TRIES):
        makespan, jct, preemptions = _differences(terms, tmp_path / str(run))
        told.append(f"makespan {makespan:+.1%}, mean completion time {jct:+.1%}, {preemptions} preemptions")
        print(f"{terms.policy}: {told[-1]}")
        if max(abs(makespan), abs(jct)) <= BOUND and bool(preemptions) == (terms.policy != "fifo"):
            return
    pytest.fail(f"the simulator is off: {'; '.join(told)}")
