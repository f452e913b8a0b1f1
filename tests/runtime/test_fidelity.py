"""The simulator tells what really happens: 30 jobs as real processes, and simulated from their own trace.

A short version of `benchmarks/fidelity.py`. A run that was disturbed may be repeated once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.testing.twin import Terms, forecast, random_jobs, run_live

BOUND = 0.05
TERMS = (
    Terms("fifo"),
    Terms("tiresias:queues=2/6"),
    Terms("max_min_fairness", round_s=1.0),
    Terms("shockwave", round_s=1.0),
)


def _differences(terms: Terms, folder: Path) -> tuple[float, float]:
    """How far simulated makespan and mean completion time are off."""
    jobs = random_jobs(30, seed=3, mean_s=2.5, over_s=5.0)
    live = run_live(jobs, terms, folder)
    assert len(live.records) == len(jobs)
    assert bool(live.preemptions) == (terms.policy != "fifo"), "preemption is what makes this a test"
    simulated = forecast(live.workload, terms)
    return simulated.makespan_s / live.makespan_s - 1.0, simulated.mean_jct_s / live.mean_jct_s - 1.0


@pytest.mark.slow
@pytest.mark.parametrize("terms", TERMS, ids=lambda terms: terms.policy)
def test_the_simulator_tells_what_really_happens(terms: Terms, tmp_path: Path) -> None:
    for run in ("first", "again"):
        makespan, jct = _differences(terms, tmp_path / run)
        print(f"{terms.policy}: makespan {makespan:+.1%}, mean completion time {jct:+.1%}")
        if max(abs(makespan), abs(jct)) <= BOUND:
            return
    pytest.fail(f"the simulator is off by {makespan:+.1%} in makespan and {jct:+.1%} in mean completion time")
