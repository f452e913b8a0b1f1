"""Plans of a window: against all other plans and a general solver, on what Shockwave asks for, and at the edges."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from fairway.core.arrays import Floats
from fairway.solvers.window import Planned, Preference, Window, concave, plan_window

SEEDS = st.integers(0, 10_000)


def market_window(
    seed: int,
    jobs: int,
    capacity: int,
    rounds: int = 20,
    sizes: tuple[int, ...] = (1, 2, 4, 8),
    latest_price: float = 1 / 2400,
) -> tuple[Window, Preference]:
    """Jobs of ten minutes to eleven hours in rounds of two minutes, most of them small, with budgets that differ by up
    to five orders of magnitude: what the market of Shockwave looks like."""
    random = np.random.default_rng(seed)
    parts = np.array([0.6, 0.2, 0.12, 0.08])[: len(sizes)]
    gangs = random.choice(sizes, jobs, p=parts / parts.sum())
    left_s = np.exp(random.uniform(np.log(600.0), np.log(40_000.0), jobs)) * random.uniform(0.01, 1.0, jobs)
    given_s = np.arange(rounds + 1) * 120.0
    budgets = random.uniform(0.1, 2.0, jobs) ** 4
    done = np.minimum(given_s, left_s[:, None]) / left_s[:, None]
    values = (budgets / budgets.mean())[:, None] * np.log(1.0 + done) / jobs
    left = np.maximum(left_s[:, None] - given_s, 0.0)
    preference = Preference(budgets / (gangs * np.ceil(left_s / 120.0)), random.random(jobs) < 0.4, 2.0)
    return Window(gangs, capacity, values, left, latest_price), preference


def tiny_window(seed: int, latest_price: float) -> Window:
    random = np.random.default_rng([seed, 7])
    jobs, rounds, capacity = (int(random.integers(*span)) for span in ((1, 5), (1, 5), (1, 6)))
    work = random.uniform(0.2, 6.0, jobs)
    given_rounds = np.minimum(np.arange(rounds + 1), work[:, None])
    values = concave(random.uniform(0.1, 3.0, (jobs, 1)) * given_rounds ** random.uniform(0.3, 1.0, (jobs, 1)))
    return Window(random.integers(1, 5, jobs), capacity, values, work[:, None] - given_rounds, latest_price)


def is_sound(window: Window, plan: Planned) -> bool:
    """It fits, its figures are true, and it is below its bound."""
    close = 1e-9 * (1.0 + abs(plan.bound))
    return bool(
        plan.rounds.shape == (window.rounds, len(window.gangs))
        and (plan.rounds @ window.gangs <= window.capacity).all()
        and (plan.counts == plan.rounds.sum(axis=0)).all()
        and abs(plan.objective - window.objective(plan.counts)) <= close
        and plan.objective <= plan.bound + close
        and plan.gap >= 0.0
    )


def best_by_trying(window: Window) -> float:
    """The best plan by going through all sets of gangs in each round."""
    gangs = window.gangs.tolist()
    fitting = [
        chosen for chosen in product((0, 1), repeat=len(gangs)) if np.dot(chosen, window.gangs) <= window.capacity
    ]
    reached = {(0,) * len(gangs)}
    for _ in range(window.rounds):
        reached = {tuple(np.add(counts, chosen).tolist()) for counts in reached for chosen in fitting}
    return max(window.objective(np.array(counts, dtype=np.int64)) for counts in reached)


def best_by_milp(window: Window, limit_s: float = 20.0) -> tuple[float, float]:
    """The best plan that a general solver finds, and its own bound.

    Values and what is left are tables of whole rounds, both of them hulls of straight pieces.
    """
    jobs, rounds = len(window.gangs), window.rounds
    columns = jobs * rounds + jobs + 1
    matrix: list[Floats] = []
    low, high = list[float](), list[float]()
    for at in range(rounds):
        row = np.zeros(columns)
        row[at : jobs * rounds : rounds] = window.gangs
        matrix, low, high = [*matrix, row], [*low, -np.inf], [*high, float(window.capacity)]
    for i, c in product(range(jobs), range(rounds)):
        for table, column, below in ((window.values, jobs * rounds + i, True), (window.left, columns - 1, False)):
            slope = table[i, c + 1] - table[i, c]
            row = np.zeros(columns)
            row[i * rounds : (i + 1) * rounds], row[column] = -slope, 1.0
            at_zero = float(table[i, c] - slope * c)
            matrix.append(row)
            low.append(-np.inf if below else at_zero)
            high.append(at_zero if below else np.inf)
    cost = np.concatenate([np.zeros(jobs * rounds), -np.ones(jobs), [window.latest_price]])
    whole = np.concatenate([np.ones(jobs * rounds), np.zeros(jobs + 1)])
    found = milp(
        cost,
        integrality=whole,
        bounds=Bounds(np.where(whole > 0, 0.0, -np.inf), np.where(whole > 0, 1.0, np.inf)),
        constraints=LinearConstraint(np.array(matrix), low, high),
        options={"time_limit": limit_s, "mip_rel_gap": 1e-6},
    )
    return float(-found.fun), float(-found.mip_dual_bound)


@given(SEEDS, st.sampled_from([0.0, 0.1, 1.0, 100.0]))
def test_tiny_plans_are_sound_and_the_bound_is_above_the_best(seed: int, latest_price: float) -> None:
    window = tiny_window(seed, latest_price)
    plan = plan_window(window)
    assert is_sound(window, plan)
    assert best_by_trying(window) <= plan.bound + 1e-9


def test_nine_of_ten_tiny_plans_are_the_best_or_nearly() -> None:
    """Measured: of these 200, 186 are within 1 % of the best; the others lose a round to packing or to rounding."""
    good = 0
    for seed in range(200):
        window = tiny_window(seed, (0.0, 0.1, 1.0, 10.0)[seed % 4])
        plan, best = plan_window(window), best_by_trying(window)
        good += best - plan.objective <= 0.01 * (best - plan.idle) + 1e-9
    assert good >= 180


def test_plans_of_small_windows_are_close_to_those_of_a_general_solver() -> None:
    """Twelve jobs, six rounds of eight GPUs, gangs of up to eight: where a gang fills the cluster a round is much.

    Measured: of these nine, one loses 17 % of what can be gained, one 1.2 %, the others less than 0.4 %.
    """
    short = []
    for seed, latest_price in product(range(3), (0.0, 1 / 2400, 1 / 240)):
        window, preference = market_window(seed, 12, 8, rounds=6, latest_price=latest_price)
        plan, (best, best_bound) = plan_window(window, preference), best_by_milp(window)
        gain = best_bound - plan.idle
        assert best <= plan.bound + 1e-6 * gain
        assert plan.objective <= best_bound + 1e-6 * gain
        short.append((best - plan.objective) / gain)
    assert np.median(short) <= 0.01
    assert max(short) <= 0.2


@pytest.mark.parametrize(
    ("jobs", "capacity", "rounds", "middle", "most"),
    [(30, 16, 20, 1e-3, 0.03), (60, 32, 20, 1e-5, 0.01), (120, 32, 20, 1e-6, 1e-4), (120, 32, 5, 1e-3, 0.02)],
)
def test_gaps_of_realistic_windows_are_small(jobs: int, capacity: int, rounds: int, middle: float, most: float) -> None:
    """Gangs of 1, 2, 4 and 8; the gap is measured against the bound, so the true one is smaller."""
    gaps = []
    for seed in range(30):
        price = (0.0, 1 / 2400, 1 / 240)[seed % 3]
        window, preference = market_window(seed, jobs, capacity, rounds, latest_price=price)
        plan = plan_window(window, preference)
        assert is_sound(window, plan)
        gaps.append(plan.gap)
    assert np.median(gaps) <= middle
    assert max(gaps) <= most


@pytest.mark.parametrize("seed", [10, 13, 26, 51, 58])
def test_a_job_that_ends_last_does_not_lose_its_round_to_a_late_gang(seed: int) -> None:
    """Long jobs of one GPU that need every round, gangs that come late, and a high price of the latest finish."""
    window, preference = market_window(seed, 30, 16, latest_price=1 / 240)
    plan = plan_window(window, preference)
    assert plan.gap <= 0.01


def test_the_latest_finish_may_lie_between_those_of_the_relaxation() -> None:
    """At the price that fills this window two latest finishes are worth the same, and the best plan is between them."""
    left_s = np.random.default_rng(24).uniform(200.0, 9000.0, 6)
    given_s = np.arange(21) * 120.0
    values = np.log(1.0 + np.minimum(given_s, left_s[:, None]) / left_s[:, None]) / 6
    one = Window(np.ones(6, dtype=np.int64), 3, values, np.maximum(left_s[:, None] - given_s, 0.0), 1 / 2400)
    two = Window(np.ones(12, dtype=np.int64), 6, np.tile(values / 2, (2, 1)), np.tile(one.left, (2, 1)), 1 / 2400)
    assert plan_window(one).gap <= 0.01
    assert plan_window(two).gap <= 0.01


@given(SEEDS, st.integers(1, 12))
def test_the_hull_is_concave_above_its_values_and_touches_them(seed: int, rounds: int) -> None:
    values = np.random.default_rng(seed).normal(0.0, 1.0, (4, rounds + 1)).cumsum(axis=1)
    hull = concave(values)
    assert (hull >= values - 1e-9).all()
    assert (np.diff(hull, 2, axis=1) <= 1e-8).all()
    assert np.allclose(hull[:, [0, -1]], values[:, [0, -1]])
    assert np.allclose(concave(hull), hull)
    corners = np.pad(np.diff(hull, 2, axis=1) < -1e-8, ((0, 0), (1, 1)), constant_values=True)
    assert np.allclose(hull[corners], values[corners])


def test_the_hull_of_a_concave_table_is_the_table_itself() -> None:
    values = np.log(1.0 + np.arange(9.0))[None, :]
    assert (concave(values) == values).all()
    assert concave(np.array([[0.0, 0.0, 2.0]])).tolist() == [[0.0, 1.0, 2.0]]


@pytest.mark.parametrize("columns", [1, 2])
def test_tables_that_are_too_short_to_bend_stay_as_they_are(columns: int) -> None:
    values = np.ones((3, columns))
    assert (concave(values) == values).all()


def line(jobs: int, rounds: int, gain: float = 1.0) -> Floats:
    return gain * np.tile(np.arange(rounds + 1.0), (jobs, 1))


def after(jobs: int, rounds: int, work: float = 10.0) -> Floats:
    return np.maximum(work - line(jobs, rounds), 0.0)


EDGES = {
    "nobody": Window(np.zeros(0, dtype=np.int64), 4, np.zeros((0, 4)), np.zeros((0, 4)), 1.0),
    "no rounds": Window(np.array([1, 2]), 4, np.zeros((2, 1)), np.full((2, 1), 9.0), 1.0),
    "no gpus": Window(np.array([1, 2]), 0, line(2, 3), after(2, 3), 1.0),
    "all too large": Window(np.array([5, 6]), 4, line(2, 3), after(2, 3), 1.0),
    "one too large": Window(np.array([1, 6]), 4, line(2, 3), after(2, 3), 1.0),
    "worth nothing": Window(np.array([1, 2]), 2, np.zeros((2, 4)), np.zeros((2, 4))),
    "all equal": Window(np.ones(7, dtype=np.int64), 2, line(7, 3), after(7, 3), 1.0),
    "huge values": Window(np.array([1, 1, 2]), 2, line(3, 3) * [[1.0], [1e30], [1e15]], after(3, 3), 1.0),
    "tiny values": Window(np.array([1, 1, 2]), 2, line(3, 3, 1e-30), after(3, 3), 0.0),
    "huge price": Window(np.array([1, 1, 2]), 2, line(3, 3), after(3, 3) * [[1.0], [2.0], [3.0]], 1e30),
    "huge negative": Window(np.array([1, 1]), 1, line(2, 3, 1e6) - 1e9, after(2, 3), 1e-3),
    "odd gangs": Window(np.array([3, 5, 7, 2]), 9, np.sqrt(line(4, 6)), after(4, 6), 0.1),
    "falling values": Window(np.array([1, 1]), 1, -line(2, 3), after(2, 3), 0.0),
    "nothing left": Window(np.array([1, 1]), 1, line(2, 3), np.zeros((2, 4)), 5.0),
}


@pytest.mark.parametrize("name", list(EDGES))
@pytest.mark.filterwarnings("error")
def test_plans_at_the_edges_are_sound(name: str) -> None:
    window = EDGES[name]
    jobs = len(window.gangs)
    for preference in (None, Preference(np.arange(jobs) * 1e30, np.ones(jobs, dtype=bool), 2.0)):
        plan = plan_window(window, preference)
        assert is_sound(window, plan)
        assert np.isfinite([plan.objective, plan.bound, plan.gap]).all()
        if jobs and window.rounds and jobs <= 4:
            assert best_by_trying(window) <= plan.bound + 1e-9 * (1.0 + abs(plan.bound))


def test_what_the_edges_come_to() -> None:
    assert plan_window(EDGES["no gpus"]).counts.tolist() == [0, 0]
    assert plan_window(EDGES["one too large"]).counts.tolist() == [3, 0]
    assert plan_window(EDGES["huge values"]).counts.tolist() == [3, 3, 0]
    assert plan_window(EDGES["all equal"]).counts.sum() == 6
    assert plan_window(EDGES["falling values"]).counts.tolist() == [0, 0]
    assert plan_window(EDGES["nobody"]).rounds.shape == (3, 0)
    assert plan_window(EDGES["no rounds"]).gap == 0.0


def test_urgent_jobs_have_the_first_rounds_and_who_runs_goes_on() -> None:
    """Two rounds each of four: the urgent one first; where it does not run, only if it is twice as urgent."""
    values = np.minimum(line(2, 4), 2.0)
    window = Window(np.array([1, 1]), 1, values, np.zeros((2, 5)))
    first = plan_window(window, Preference(np.array([1.0, 1.5]), np.array([False, False]), 2.0))
    assert first.rounds[:, 1].tolist() == [True, True, False, False]
    stays = plan_window(window, Preference(np.array([1.0, 1.5]), np.array([True, False]), 2.0))
    assert stays.rounds[:, 0].tolist() == [True, True, False, False]
    urgent = plan_window(window, Preference(np.array([1.0, 2.5]), np.array([True, False]), 2.0))
    assert urgent.rounds[:, 1].tolist() == [True, True, False, False]


def test_a_plan_does_not_write_into_what_it_is_given() -> None:
    window, preference = market_window(1, 20, 8)
    before = [np.array(part) for part in (*window[:4], *preference[:2])]
    plan_window(window, preference)
    assert all((old == new).all() for old, new in zip(before, (*window[:4], *preference[:2]), strict=True))
