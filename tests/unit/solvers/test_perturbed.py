"""Every linear solve is disturbed by 1e-15, more than another CPU's rounding would do: the answers stay the same.

Whole simulations are disturbed, too: one flip among thousands of decisions would show in what follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairway import Result, simulate
from fairway.core import portable
from fairway.published import embedding
from fairway.solvers import newton
from fairway.solvers.allocation import TOLERANCE, Allocation, proof_of
from fairway.solvers.interior import solve
from fairway.solvers.vertex import solve_at_vertex
from fairway.testing.seeds import some
from fairway.traces import gavel_like, shockwave_like

NOISE = 1e-15


@contextmanager
def disturbed(seed: int) -> Iterator[None]:
    """Every small system is solved with another error, wherever it is solved."""
    random = np.random.default_rng(seed)
    eliminated, solve_stack = portable.eliminated, portable.solve_stack

    def shaken(rows: list[list[Any]]) -> list[float] | None:
        found = eliminated(rows)
        return None if found is None else [float(x) * (1.0 + NOISE * random.standard_normal()) for x in found]

    def shaken_stack(matrices: Any, right: Any) -> Any:
        found = solve_stack(matrices, right)
        return found * (1.0 + NOISE * random.standard_normal(found.shape))

    with pytest.MonkeyPatch.context() as patch:
        for module in (portable, newton):
            patch.setattr(module, "eliminated", shaken)
        for module in (portable, embedding):
            patch.setattr(module, "solve_stack", shaken_stack)
        yield


def problem(seed: int, kind: str) -> Allocation:
    """Jobs of speeds that differ by orders of magnitude; types that are all alike; a sum above floors."""
    random = np.random.default_rng([seed, 99])
    jobs, types = int(random.integers(2, 30)), int(random.integers(2, 5))
    rates = 10.0 ** random.normal(0.0, 0.7, (jobs, types))
    if kind == "alike":
        rates[:] = rates[:, :1]
    if kind == "in proportion":
        rates = rates[:, :1] * rates[:1]
    usable = random.random((jobs, types)) < 0.9
    usable[np.arange(jobs), random.integers(types, size=jobs)] = True
    rates = np.where(usable, rates, 0.0)
    base = Allocation.over(
        random.choice([1.0, 1.0, 2.0, 4.0], jobs), random.integers(1, 9, types).astype(np.float64), usable
    )
    held = np.ones(jobs, dtype=np.bool_)
    level = replace(base, rows=rates, weights=random.uniform(0.3, 3.0, jobs), held=held, level_gain=1.0)
    if kind != "sum":
        return level
    floors = solve(level).level * level.weights * (1.0 - 1e-6)
    return replace(
        level, gain=rates / rates.max(axis=1)[:, None], weights=np.zeros(jobs), floors=floors, level_gain=0.0
    )


@pytest.mark.parametrize("kind", ["different", "alike", "in proportion", "sum"])
def test_an_allocation_is_the_same_to_the_bit_however_its_systems_are_rounded(kind: str) -> None:
    for seed in range(25):
        one = problem(seed, kind)
        plain = solve(one)
        assert plain.proof.holds
        with disturbed(seed):
            shaken = solve(one)
        assert (plain.x == shaken.x).all(), f"seed {seed}"
        assert plain.level == shaken.level
        assert (plain.multipliers == shaken.multipliers).all()


def test_where_the_search_begins_does_not_show_in_the_answer() -> None:
    for seed in range(15):
        one = problem(seed, "different")
        cold = solve(one)
        near = cold._replace(x=cold.x[::-1], multipliers=cold.multipliers[::-1])
        assert (solve(one, near=near).x == cold.x).all(), f"seed {seed}"


def test_the_proof_tells_a_bad_point() -> None:
    """Or every point would be proven."""
    one = problem(3, "different")
    good = solve(one)
    assert proof_of(one, 0.9 * good.x, 0.9 * good.level, good.multipliers, good.prices).gap > 0.05
    assert proof_of(one, 1.1 * good.x, good.level, good.multipliers, good.prices).breach > 0.01
    assert proof_of(one, good.x, 1.01 * good.level, good.multipliers, good.prices).breach > TOLERANCE


def test_where_the_fast_method_gets_stuck_the_simplex_method_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    one = problem(7, "different")
    best = solve(one)
    monkeypatch.setattr(newton, "eliminated", lambda rows: None)
    found = solve(one)
    assert found.optimal
    assert found.level == pytest.approx(best.level, rel=1e-6)
    assert found.x.tolist() == solve_at_vertex(one).x.tolist()


CLUSTER = "v100:1x4,p100:1x4,k80:1x4"
POLICIES = (
    "max_min_fairness",
    "max_min_fairness:heterogeneity=agnostic",
    "finish_time_fairness",
    "min_makespan",
    "water_filling",
    "hierarchical",
    "max_throughput",
    "min_cost_slo",
    "optimus",
    "themis",
    "shockwave",
    "max_min_fairness:packing=on",
)


def run_of(policy: str, seed: int) -> Result:
    plain = gavel_like(12, seed=seed, mean_interarrival_s=100.0, durations="uniform-hours", max_h=2.0, multi_gpu=True)
    work = shockwave_like(14, seed=seed, mean_interarrival_s=100.0, max_h=2.0) if policy == "shockwave" else plain
    return simulate(work, cluster=CLUSTER, policy=policy, skip_impossible=True)


@pytest.mark.parametrize("policy", some(POLICIES, 5))
def test_a_whole_run_decides_the_same_however_systems_are_rounded(policy: str) -> None:
    for seed in (1, 2):
        plain = run_of(policy, seed)
        with disturbed(seed):
            shaken = run_of(policy, seed)
        assert plain.ledger.segments == shaken.ledger.segments, f"seed {seed}"
