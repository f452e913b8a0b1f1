"""Themis' auction by itself: who is offered GPUs, the Nash product, hidden payments, rounding."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fairway.core.arrays import Floats
from fairway.policies.themis.auction import kept_parts, offered_to, partial_allocation, rounded_down
from fairway.policies.themis.nash import Bid, gains_of, nash_product
from fairway.testing.pace import loops


def linear(most: int, worth: float = 1.0) -> Bid:
    """A bidder that can use up to so many GPUs of one type, each worth the same."""
    return Bid([(count,) for count in range(most + 1)], [worth * count for count in range(most + 1)])


def random_bids(random: np.random.Generator, bidders: int, kinds: int, largest: int = 4) -> list[Bid]:
    """Gangs and multiples of them on one to all of the types, worth a random speed each."""
    bids = []
    for _ in range(bidders):
        gang, sizes = int(random.integers(1, largest + 1)), int(random.integers(1, 4))
        gpus, values = [(0,) * kinds], [float(random.uniform(0.0, 0.3))]
        for kind in random.permutation(kinds)[: random.integers(1, kinds + 1)].tolist():
            speed = float(random.uniform(0.5, 2.0))
            for size in range(1, sizes + 1):
                gpus.append(tuple(size * gang if k == kind else 0 for k in range(kinds)))
                values.append(speed * size / (1.0 + 0.1 * size))
        bids.append(Bid(gpus, values))
    return bids


def best_by_trying(bids: list[Bid], capacity: list[int]) -> float:
    """The largest sum of gains over all combinations of columns that fit."""
    best = -math.inf
    for columns in itertools.product(*(range(len(bid.values)) for bid in bids)):
        used = np.sum([bid.gpus[column] for bid, column in zip(bids, columns, strict=True)], axis=0)
        if (used <= capacity).all():
            gain = sum(gains[column] for gains, column in zip(gains_of(bids), columns, strict=True))
            best = max(best, gain)
    return best


def best_by_milp(bids: list[Bid], capacity: list[int]) -> float:
    """The same by an integer programme with one binary for each column, as the paper solves it."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    owner = np.repeat(np.arange(len(bids)), [len(bid.values) for bid in bids])
    gains = np.concatenate(gains_of(bids))
    one = (owner[None, :] == np.arange(len(bids))[:, None]).astype(float)
    used = np.array([row for bid in bids for row in bid.gpus], dtype=float).T
    rules = [LinearConstraint(one, 1.0, 1.0), LinearConstraint(used, -np.inf, np.array(capacity, dtype=float))]
    found = milp(-gains, constraints=rules, integrality=np.ones(len(gains)), bounds=Bounds(0, 1))
    return float(-found.fun)


def reached(bids: list[Bid], columns: list[int]) -> float:
    return sum(gains[column] for gains, column in zip(gains_of(bids), columns, strict=True))


def used_by(bids: list[Bid], columns: list[int]) -> list[int]:
    return np.sum([bid.gpus[column] for bid, column in zip(bids, columns, strict=True)], axis=0).tolist()


def test_worked_example_1_the_rival_pays_half_and_one_gpu_is_left() -> None:
    """A uses up to 4 GPUs, B up to 2; T_id = 200 s and 400 GPU-seconds each, so a GPU is worth a half."""
    outcome = partial_allocation([linear(4, 0.5), linear(2, 0.5)], [4])
    assert outcome.won == [2, 2]
    assert outcome.kept.tolist() == pytest.approx([1.0, 0.5])
    assert outcome.columns == [2, 1]


def test_worked_example_2_both_keep_half_and_four_gpus_are_left() -> None:
    outcome = partial_allocation([linear(8, 0.25), linear(8, 0.25)], [8])
    assert outcome.won == [4, 4]
    assert outcome.kept.tolist() == pytest.approx([0.5, 0.5])
    assert outcome.columns == [2, 2]


@pytest.mark.parametrize(("fairness", "offered"), [(0.8, 1), (0.5, 3), (0.0, 5), (1.0, 1), (0.6, 2)])
def test_worked_example_3_the_filter(fairness: float, offered: int) -> None:
    rho = np.array([1.2, 3.0, 0.9, 1.8, 1.1])
    assert offered_to(rho, fairness).tolist() == [1, 3, 0, 4, 2][:offered]


@pytest.mark.parametrize("agents", [2, 3, 4, 5, 6])
def test_identical_linear_agents_keep_the_part_that_theory_says(agents: int) -> None:
    """c = ((n - 1) / n) ** (n - 1), for as many GPUs as n and n - 1 agents can share evenly."""
    gpus = agents * (agents - 1)
    outcome = partial_allocation([linear(gpus)] * agents, [gpus])
    assert outcome.won == [agents - 1] * agents
    assert outcome.kept.tolist() == pytest.approx([((agents - 1) / agents) ** (agents - 1)] * agents)


def test_a_lone_bidder_pays_nothing() -> None:
    outcome = partial_allocation([linear(3)], [8])
    assert (outcome.won, outcome.kept.tolist(), outcome.columns) == ([3], [1.0], [3])


def test_no_bids_no_outcome() -> None:
    assert partial_allocation([], [4]).columns == []


@pytest.mark.parametrize("seed", range(12))
def test_the_dynamic_programme_finds_the_largest_product_with_and_without_each(seed: int) -> None:
    random = np.random.default_rng([seed, 1])
    kinds = int(random.integers(1, 4))
    bids = random_bids(random, 4, kinds)
    capacity = random.integers(1, 7, kinds).tolist()
    choice = nash_product(bids, capacity)
    assert reached(bids, choice.columns) == pytest.approx(best_by_trying(bids, capacity))
    assert all(np.array(used_by(bids, choice.columns)) <= capacity)
    for at in range(len(bids)):
        others = bids[:at] + bids[at + 1 :]
        now = reached(others, choice.columns[:at] + choice.columns[at + 1 :])
        assert choice.others_gain[at] == pytest.approx(best_by_trying(others, capacity) - now, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_large_auctions_agree_with_the_integer_programme(seed: int) -> None:
    bids = random_bids(np.random.default_rng([seed, 2]), 60, 1, largest=8)
    choice = nash_product(bids, [64])
    assert reached(bids, choice.columns) == pytest.approx(best_by_milp(bids, [64]), abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_the_choice_by_prices_is_lawful_and_near_the_optimum(seed: int) -> None:
    random = np.random.default_rng([seed, 3])
    bids, capacity = random_bids(random, 60, 3, largest=8), [40, 30, 20]
    choice = nash_product(bids, capacity, grid=1)
    assert all(np.array(used_by(bids, choice.columns)) <= capacity)
    assert (choice.others_gain >= 0).all()
    best = best_by_milp(bids, capacity)
    assert 0.97 * best <= reached(bids, choice.columns) <= best + 1e-6


def test_prices_decide_only_where_the_grid_is_large() -> None:
    bids = random_bids(np.random.default_rng(5), 12, 2)
    exact, priced = nash_product(bids, [8, 6]), nash_product(bids, [8, 6], grid=1)
    assert reached(bids, exact.columns) == pytest.approx(best_by_milp(bids, [8, 6]), abs=1e-6)
    assert reached(bids, priced.columns) <= reached(bids, exact.columns) + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_parts_are_in_0_to_1_and_rounding_stays_within_them(seed: int) -> None:
    random = np.random.default_rng([seed, 4])
    kinds = int(random.integers(1, 3))
    bids, capacity = random_bids(random, 12, kinds), random.integers(2, 12, kinds).tolist()
    outcome = partial_allocation(bids, capacity)
    assert ((outcome.kept > 0) & (outcome.kept <= 1)).all()
    for bid, won, part, column in zip(bids, outcome.won, outcome.kept, outcome.columns, strict=True):
        for got, had in zip(bid.gpus[column], bid.gpus[won], strict=True):
            assert got <= part * had + 1e-6


def test_rounding_down_knows_only_whole_gangs() -> None:
    gangs = Bid([(0,), (4,), (8,)], [0.1, 1.0, 2.0])
    assert [rounded_down(gangs, 2, part) for part in (1.0, 0.99, 0.5, 0.49)] == [2, 1, 1, 0]


def test_as_many_bidders_as_possible_get_something_where_nothing_is_worth_nothing() -> None:
    large = Bid([(0,), (4,)], [0.0, 100.0])
    small = Bid([(0,), (1,)], [0.0, 0.1])
    assert nash_product([large, small, small, small, small], [4]).columns == [0, 1, 1, 1, 1]


def test_earlier_bidders_win_ties() -> None:
    assert nash_product([linear(1), linear(1), linear(1)], [2]).columns == [1, 1, 0]


@pytest.mark.parametrize("scale", [0.1, 3.0, 1000.0])
def test_scaling_all_values_of_a_bid_changes_nothing(scale: float) -> None:
    """Where values are homogeneous, shouting louder is no misreport that could help."""
    honest = partial_allocation([linear(6), linear(4), linear(3, 2.0)], [8])
    loud = partial_allocation([linear(6, scale), linear(4), linear(3, 2.0)], [8])
    assert loud.columns == honest.columns
    assert loud.kept.tolist() == pytest.approx(honest.kept.tolist())


def shares_of(worth: Floats) -> Floats:
    """The Nash product on divisible goods, one unit each, with additive values: (instances, agents, goods).

    Proportional response in the market of equal budgets converges to it (Zhang, 2011).
    """
    spent = worth / worth.sum(axis=2, keepdims=True)
    shares = spent
    for _ in range(3000):
        shares = spent / spent.sum(axis=1, keepdims=True)
        gained = worth * shares
        spent = gained / gained.sum(axis=2, keepdims=True)
    return shares


def outcome_for(agent: int, worth: Floats, told: Floats) -> tuple[Floats, Floats]:
    """What an agent gets under the mechanism by its true values, before and after its payment."""
    others = [at for at in range(told.shape[1]) if at != agent]
    shares, without = shares_of(told), shares_of(told[:, others])
    with_it = np.log((told * shares).sum(axis=2)[:, others]).sum(axis=1)
    alone = np.log((told[:, others] * without).sum(axis=2)).sum(axis=1)
    won = (worth[:, agent] * shares[:, agent]).sum(axis=1)
    return won, won * kept_parts(alone - with_it)


def test_everybody_keeps_at_least_1_over_e_of_its_nash_value() -> None:
    worth = np.random.default_rng(6).uniform(0.05, 1.0, (40, 4, 3))
    for agent in range(4):
        won, kept = outcome_for(agent, worth, worth)
        assert (kept >= won / math.e - 1e-6).all()
        assert (kept <= won + 1e-9).all()


def test_no_misreport_helps_where_values_are_homogeneous() -> None:
    random = np.random.default_rng(7)
    worth = random.uniform(0.05, 1.0, (40, 3, 3))
    honest = outcome_for(0, worth, worth)[1]
    gained = []
    for _ in range(6):
        told = worth.copy()
        told[:, 0] *= random.uniform(0.2, 5.0, (40, 3))
        lied = outcome_for(0, worth, told)[1]
        assert (lied <= honest * (1 + 1e-4)).all()
        gained.append(lied / honest)
    assert np.min(gained) < 0.95, "the misreports must matter, or the test shows nothing"


def test_without_payments_a_misreport_does_help() -> None:
    """The canary of the test above: what is withheld is what makes honesty pay."""
    random = np.random.default_rng(7)
    worth = random.uniform(0.05, 1.0, (40, 3, 3))
    honest = outcome_for(0, worth, worth)[0]
    told = worth.copy()
    others = worth[:, 1:].mean(axis=1)
    told[:, 0] = np.where(worth[:, 0] > others, worth[:, 0] * 0.7, worth[:, 0])
    assert (outcome_for(0, worth, told)[0] > honest * (1 + 1e-3)).any()


@pytest.mark.parametrize("capacity", [[256], [96, 96, 64]])
def test_500_apps_are_auctioned_within_a_second_of_cpu(capacity: list[int]) -> None:
    """100 bidders, 101 Nash products, one type and three. A second is about 200 loops."""
    bids = random_bids(np.random.default_rng(8), 100, len(capacity), largest=8)
    assert loops(lambda: partial_allocation(bids, capacity), tries=1) < 200
