"""The market over time: what an equilibrium promises, checked by means other than those that found it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from fisher import Equilibrium, Market, bound, demands, equilibrium, rents
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from fairway.core.arrays import Floats

SEEDS = st.integers(0, 10_000)


def random_market(
    seed: int, buyers: int | None = None, rounds: int | None = None, limits: bool = True, equal: bool = False
) -> Market:
    """Jobs that speed up, slow down or pause; without `limits` a running gang fills the cluster, so x <= 1 is idle."""
    random = np.random.default_rng(seed)
    n, t = buyers or int(random.integers(2, 7)), rounds or int(random.integers(2, 6))
    gains = random.uniform(0.5, 2.0, (n, t)) * np.where(random.random((n, t)) < 0.5, 1.0, 3.0)
    gains *= random.random((n, t)) < 0.9
    gains[np.arange(n), random.integers(t, size=n)] += 0.5
    budgets = None if equal else random.choice([1.0, 1.0, 2.0, 5.0], n)
    if limits:
        return Market.of(gains, float(random.integers(4, 9)), budgets, random.choice([1.0, 1.0, 2.0, 4.0], n))
    supply = random.integers(1, 5, t).astype(np.float64)
    return Market.of(gains, supply, budgets, np.full(n, supply.max()))


def assert_feasible(market: Market, x: Floats) -> None:
    assert (x >= 0).all()
    assert (x <= 1).all()
    assert (market.gangs @ x <= market.supply * (1 + 1e-12)).all()


def limits_of(market: Market) -> tuple[Floats, Floats]:
    """The supplies as rows of a linear program over x, buyer after buyer."""
    return np.tile(np.eye(len(market.supply)), len(market.gangs)) * np.repeat(
        market.gangs, len(market.supply)
    ), market.supply


def gains_of(market: Market) -> Floats:
    """Utilities as rows of a linear program over x."""
    n, t = market.gains.shape
    rows = np.zeros((n, n * t))
    for i in range(n):
        rows[i, i * t : (i + 1) * t] = market.gains[i]
    return rows


def improvement(market: Market, utilities: Floats) -> float:
    """By how much utilities can rise, as a sum of parts of each, while none of them falls: a linear program."""
    rows, limits = limits_of(market)
    parts = gains_of(market) / utilities[:, None]
    found = linprog(
        -parts.sum(axis=0),
        np.vstack([rows, -parts]),
        np.concatenate([limits, np.full(len(utilities), -1.0 + 1e-7)]),
        bounds=(0.0, 1.0),
        method="highs",
    )
    assert found.status == 0
    return float(-found.fun - len(utilities))


def by_tangents(market: Market) -> float:
    """The optimum by HiGHS alone: logarithms under their tangents, more of them where they are needed."""
    rows, limits = limits_of(market)
    gains, (n, t) = gains_of(market), market.gains.shape
    matrix, right = [np.hstack([rows, np.zeros((t, n))])], [limits]
    at = market.earned + market.gains.sum(axis=1) * 0.1
    for _ in range(200):
        # level <= log(at) + (utility - at) / at
        matrix.append(np.hstack([-gains / at[:, None], np.eye(n)]))
        right.append(np.log(at) - 1.0 + market.earned / at)
        cost = np.concatenate([np.zeros(n * t), -market.budgets])
        bounds = [(0.0, 1.0)] * (n * t) + [(-50.0, 50.0)] * n
        found = linprog(cost, np.vstack(matrix), np.concatenate(right), bounds=bounds, method="highs")
        at = np.maximum(market.earned + gains @ found.x[: n * t], 1e-6)
        if -found.fun - market.welfare(at) < 1e-8:
            break
    return float(-found.fun)


def test_two_rounds_are_shared_by_who_gains_where() -> None:
    """The job that will be fast later waits for its fast round, at no loss to the other."""
    market = Market.of([[1.0, 4.0], [1.0, 1.0]], 1.0)
    found = equilibrium(market, gap=1e-12)
    assert found.utilities == pytest.approx([4.0, 1.0], rel=1e-4)
    assert found.x == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]), abs=1e-4)
    assert found.utilities.prod() == pytest.approx(4.0, rel=1e-6)
    assert market.utilities(market.share()) == pytest.approx([2.5, 1.0])
    assert found.prices == pytest.approx([1.0, 1.0], rel=1e-4)


def test_static_utilities_are_shared_by_budget() -> None:
    market = Market.of(np.ones((3, 4)), 2.0, budgets=np.array([1.0, 1.0, 2.0]), gangs=np.full(3, 2.0))
    found = equilibrium(market)
    assert found.utilities == pytest.approx([1.0, 1.0, 2.0], rel=1e-6)
    assert found.prices == pytest.approx(np.full(4, 0.5), rel=1e-6)


def test_what_was_earned_before_counts() -> None:
    """Water filling: who already has something waits until the others have as much."""
    one = np.ones((2, 1))
    assert equilibrium(Market.of(one, 1.0, earned=np.array([0.5, 0.0]))).x.ravel() == pytest.approx([0.25, 0.75], 1e-4)
    assert equilibrium(Market.of(one, 1.0, earned=np.array([3.0, 0.0]))).x.ravel() == pytest.approx([0, 1], abs=1e-4)


def test_where_there_is_enough_everybody_has_everything_for_nothing() -> None:
    market = Market.of(np.array([[1.0, 2.0], [3.0, 1.0]]), 8.0, gangs=np.array([4.0, 2.0]))
    found = equilibrium(market)
    assert found.x == pytest.approx(np.ones((2, 2)), abs=1e-6)
    assert found.prices == pytest.approx([0.0, 0.0], abs=1e-6)


@given(SEEDS)
def test_the_gap_is_reached_and_the_allocation_is_feasible(seed: int) -> None:
    market = random_market(seed)
    found = equilibrium(market)
    assert_feasible(market, found.x)
    assert found.gap <= 1e-9
    assert found.utilities == pytest.approx(market.utilities(found.x), rel=1e-12)
    assert found.welfare <= found.bound + 1e-12
    assert found.bound == bound(market, found.prices)


@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_is_that_of_a_general_solver(seed: int) -> None:
    market = random_market(seed, buyers=3 + seed % 2, rounds=3)
    found = equilibrium(market)
    assert found.welfare == pytest.approx(by_tangents(market), abs=1e-6)


@given(SEEDS)
def test_any_prices_bound_every_allocation(seed: int) -> None:
    """Weak duality, which makes the gap a certificate."""
    market = random_market(seed)
    random = np.random.default_rng(seed)
    prices = random.exponential(0.5, len(market.supply)) * (random.random(len(market.supply)) < 0.8)
    assert bound(market, prices) >= equilibrium(market).welfare - 1e-9
    x = random.random(market.gains.shape) * market.share()
    assert bound(market, prices) > market.welfare(market.utilities(x))


@given(SEEDS)
def test_a_bound_from_wrong_prices_is_a_poor_one(seed: int) -> None:
    """At twice the prices buyers have half as much: the supply is worth twice as much, log 2 of each budget is lost."""
    market = random_market(seed, limits=False)
    found = equilibrium(market)
    excess = market.budgets.sum() * (1.0 - np.log(2.0))
    assert bound(market, 2.0 * found.prices) - found.bound == pytest.approx(excess, rel=1e-4)


@given(SEEDS)
def test_demand_is_the_best_bundle_at_any_prices(seed: int) -> None:
    """Conditions of the optimum: part of a round is bought where worth equals price, all where it is more."""
    market = random_market(seed)
    prices = np.random.default_rng(seed).exponential(0.5, len(market.supply))
    prices[0] = 0.0
    x = demands(market, prices)
    worth = (market.budgets / market.utilities(x))[:, None] * market.gains
    costs = np.outer(market.gangs, prices)
    assert (worth[x < 1] <= costs[x < 1] * (1 + 1e-9)).all()
    assert (worth[x > 0] >= costs[x > 0] * (1 - 1e-9)).all()


@given(SEEDS)
def test_nobody_can_earn_more_unless_another_earns_less(seed: int) -> None:
    market = random_market(seed)
    assert improvement(market, equilibrium(market).utilities) < 1e-5


def test_equal_shares_of_every_round_can_be_improved_upon() -> None:
    """What the test before would find in a schedule that shares round by round."""
    worst = max(
        improvement(m, m.utilities(m.share())) for m in (random_market(seed, limits=False) for seed in range(9))
    )
    assert worst > 0.1


@given(SEEDS, st.booleans())
def test_everybody_earns_its_share_where_no_limit_binds(seed: int, equal: bool) -> None:
    """The sharing incentive, at equal budgets and at others."""
    market = random_market(seed, limits=False, equal=equal)
    found = equilibrium(market)
    assert (found.utilities >= market.utilities(market.share()) * (1 - 1e-6)).all()


@given(SEEDS)
def test_without_rents_the_share_is_kept_and_with_them_almost(seed: int) -> None:
    """Where limits bind, a buyer's rents bound by how much it may fall short."""
    market = random_market(seed)
    found = equilibrium(market)
    takings = float(found.prices @ market.supply) / market.budgets.sum()
    slack = takings + rents(market, found).sum(axis=1) / market.budgets
    assert takings <= 1 + 1e-6
    assert (found.utilities * slack >= market.utilities(market.share()) * (1 - 1e-6)).all()


def test_limits_can_cost_a_buyer_its_share() -> None:
    """Two GPUs, two rounds: the second round has room for one only, whose head start there the first round makes up."""
    market = Market.of([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]], 2.0)
    found = equilibrium(market, gap=1e-12)
    assert found.utilities == pytest.approx([1.0, 1.0, 1.0], rel=1e-3)
    assert market.utilities(market.share())[0] == pytest.approx(4 / 3)
    assert rents(market, found)[0].sum() == pytest.approx(1.0, rel=1e-3)


@given(SEEDS)
def test_prices_clear_and_budgets_are_spent_where_it_is_worth_most(seed: int) -> None:
    market = random_market(seed, limits=False)
    found = equilibrium(market)
    spent = found.x * np.outer(market.gangs, found.prices)
    assert found.prices @ market.supply == pytest.approx(market.budgets.sum(), rel=1e-6)
    assert spent.sum(axis=1) == pytest.approx(market.budgets, rel=1e-4)
    sold = market.gangs @ found.x / market.supply
    assert sold[found.prices > 1e-6] == pytest.approx(1.0, abs=1e-5)
    per_price = market.gains / found.prices
    best = per_price.max(axis=1, keepdims=True)
    waste = (spent * (1 - per_price / best)).sum(axis=1)
    assert (waste <= 1e-4 * market.budgets).all()


@given(SEEDS)
def test_budgets_are_spent_or_kept_as_rents(seed: int) -> None:
    market = random_market(seed)
    found = equilibrium(market)
    spent = (found.x * np.outer(market.gangs, found.prices)).sum(axis=1)
    kept = (found.x * rents(market, found)).sum(axis=1)
    assert spent + kept == pytest.approx(market.budgets, rel=1e-3)


def finish_times(schedule: tuple[int, ...], work: Floats) -> Floats:
    """When each job ends if one job has the GPU in each round; rounds repeat after the last one."""
    left, ends, now = work.copy(), np.zeros(len(work)), 0
    while (left > 0).any():
        job = schedule[now % len(schedule)]
        now += 1
        left[job] -= 1.0
        if left[job] == 0:
            ends[job] = now
    return ends


def test_the_largest_product_of_inverse_finish_times_is_the_least_product_of_rho() -> None:
    """All schedules of six rounds for jobs of 1, 2 and 3 rounds; isolated, a job runs on a third of the GPU."""
    work = np.array([1.0, 2.0, 3.0])
    schedules = sorted({order for order in product(range(3), repeat=6) if np.array_equal(np.bincount(order), work)})
    ends = np.array([finish_times(order, work) for order in schedules])
    rho = ends / (3.0 * work)
    assert (1.0 / ends).prod(axis=1).argmax() == rho.prod(axis=1).argmin()
    assert schedules[int(rho.prod(axis=1).argmin())] == (0, 1, 1, 2, 2, 2)


@pytest.mark.parametrize("seed", range(6))
def test_the_market_has_the_least_product_of_rho_among_all_schedules(seed: int) -> None:
    """Jobs that go on at the mean speed of the window end in inverse proportion to their utility."""
    random = np.random.default_rng(seed)
    jobs, rounds = 3, 5
    market = Market.of(random.uniform(0.5, 3.0, (jobs, rounds)), 1.0)
    work = random.uniform(50.0, 100.0, jobs)
    isolated = work * rounds / market.utilities(market.share())
    found = equilibrium(market)
    rho = work * rounds / found.utilities / isolated
    products = {}
    for schedule in product(range(jobs), repeat=rounds):
        utilities = market.utilities((np.arange(jobs)[:, None] == np.array(schedule)).astype(np.float64))
        if utilities.all():
            products[float((work * rounds / utilities / isolated).prod())] = utilities
    least = min(products)
    assert rho.prod() <= least * (1 + 1e-6)
    assert products[least].prod() == max(utilities.prod() for utilities in products.values())
    assert rho.max() <= 1 + 1e-6


@given(SEEDS)
def test_neither_order_nor_units_matter_and_equals_are_treated_equally(seed: int) -> None:
    market = random_market(seed, buyers=4)
    found = equilibrium(market)
    rank = np.array([2, 0, 3, 1])
    other = Market.of(
        market.gains[rank] * np.array([[1e6], [1.0], [1e-6], [3.0]]),
        market.supply * 8.0,
        market.budgets[rank] * 7.0,
        market.gangs[rank] * 8.0,
    )
    assert equilibrium(other).utilities / other.gains.max(axis=1) == pytest.approx(
        (found.utilities / market.gains.max(axis=1))[rank], rel=1e-4
    )
    twice = np.r_[0, 0:4]
    pair = Market.of(market.gains[twice], market.supply, market.budgets[twice], market.gangs[twice])
    twins = equilibrium(pair)
    assert twins.x[0] == pytest.approx(twins.x[1], abs=1e-9)


def test_the_same_market_gives_the_same_bits() -> None:
    market = random_market(3, buyers=30, rounds=10)
    one, other = equilibrium(market), equilibrium(market)
    assert one.x.tobytes() == other.x.tobytes()
    assert one.prices.tobytes() == other.prices.tobytes()


def test_a_limit_of_steps_is_kept_and_told() -> None:
    market = random_market(5, buyers=12, rounds=8)
    full = equilibrium(market)
    cut = equilibrium(market, most_steps=2)
    assert cut.steps <= 2 < full.steps
    assert_feasible(market, cut.x)
    assert cut.gap > 1e-6
    assert cut.welfare <= full.bound
    assert full.welfare <= cut.bound


@pytest.mark.parametrize(("jobs", "seed"), [(5, 0), (50, 1), (200, 2), (200, 3)])
def test_windows_of_twenty_rounds_take_few_steps(jobs: int, seed: int) -> None:
    """Two regimes each, entered in any round, gangs of up to 8: what a window of a real plan looks like."""
    random = np.random.default_rng(seed)
    later = np.arange(20) >= random.integers(0, 21, (jobs, 1))
    gains = np.where(later, random.uniform(1.0, 5.0, (jobs, 1)), 1.0)
    gangs = random.choice([1.0, 1.0, 2.0, 4.0, 8.0], jobs)
    found = equilibrium(Market.of(gains, max(8.0, gangs.sum() / 3), gangs=gangs))
    assert found.gap <= 1e-9
    assert found.steps <= 30


@pytest.mark.parametrize("seed", range(10))
def test_extreme_figures_are_solved(seed: int) -> None:
    random = np.random.default_rng(seed)
    gains = random.choice([0.0, 1e-6, 1.0, 1e3], (30, 12))
    budgets = np.exp(random.normal(0.0, 3.0, 30))
    supply = np.exp(random.normal(1.0, 2.0, 12))
    market = Market.of(gains, supply, budgets, random.choice([1.0, 8.0, 64.0], 30))
    found = equilibrium(market, gap=1e-6)
    assert_feasible(market, found.x)
    assert found.gap <= 1e-6


def test_tiny_gains_do_not_fool_the_certificate() -> None:
    """In the smallest of numbers a cost per gain is infinite, unless gains are measured by the best of them."""
    market = Market.of(np.array([[1e-305, 4e-305], [1.0, 1.0]]), 1.0)
    found = equilibrium(market, gap=1e-12)
    assert found.gap <= 1e-12
    assert found.utilities == pytest.approx([4e-305, 1.0], rel=1e-4)


def test_buyers_without_any_gain_are_left_out() -> None:
    market = Market.of([[0.0, 0.0], [1.0, 1.0]], 1.0)
    found = equilibrium(market)
    assert found.utilities == pytest.approx([0.0, 2.0], rel=1e-6)
    assert found.gap <= 1e-9
    assert not found.x[0].any()
    assert not rents(market, found)[0].any()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 2)])
def test_markets_in_which_nothing_can_be_earned_are_empty(shape: tuple[int, int]) -> None:
    found = equilibrium(Market.of(np.zeros(shape), 1.0))
    assert found == Equilibrium(found.x, found.utilities, found.prices, 0.0, 0.0, 0.0, 0)
    assert found.x.shape == shape
    assert not found.x.any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gains": [[1.0, -1.0]]}, "gains must be finite and not negative"),
        ({"gains": [[1.0, np.nan]]}, "gains must be finite"),
        ({"gains": [1.0]}, "table"),
        ({"supply": 0.0}, "supply must be positive"),
        ({"budgets": [0.0]}, "budgets must be positive"),
        ({"gangs": [1.0, 1.0]}, "1 buyers want 1 values"),
        ({"earned": [-1.0]}, "earned must be finite and not negative"),
    ],
)
def test_markets_that_make_no_sense_are_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Market.of(**({"gains": [[1.0, 1.0]], "supply": 1.0} | changed))  # type: ignore[arg-type]
